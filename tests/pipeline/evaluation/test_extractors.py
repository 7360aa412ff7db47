"""The bound of a batch that a source reads is set for the Evaluator alone."""

import contextlib

import pytest
from absl import flags

from pipeline.evaluation import extractors

NAME = "tfxio_use_byte_size_batching"


@pytest.mark.parametrize("fails", [False, True])
def test_sources_read_by_bytes_inside_the_block_alone(fails):
    import tfx_bsl.coders.batch_util  # noqa: F401 - defines the flag, which is false unless somebody sets it

    assert flags.FLAGS[NAME].default is False
    with pytest.raises(ZeroDivisionError) if fails else contextlib.nullcontext():
        with extractors.tapped(extractors.Tap("folder", 1, 1)) as name:
            assert name == "pipeline.evaluation.tfx_hook.custom_extractors" and flags.FLAGS[NAME].default is True
            assert not fails or 1 / 0
    assert flags.FLAGS[NAME].default is False
