"""Synthetic photographs, and a folder of them."""

import io

import numpy as np
import pytest
from PIL import Image

from pipeline.settings import ShardSettings


def jpeg(width=80, height=60, colour=(90, 120, 150), mode="RGB", seed=0, **options) -> bytes:
    """A JPEG of soft noise around a colour."""
    noise = np.random.default_rng(seed).normal(0, 20, (6, 6, 3)) + np.array(colour)
    image = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).resize((width, height), Image.BICUBIC)
    content = io.BytesIO()
    image.convert(mode).save(content, options.pop("format", "JPEG"), **options)
    return content.getvalue()


def shard_settings(**changes) -> ShardSettings:
    """Settings that fit small photographs; about four of them fill a shard."""
    return ShardSettings(**{"short_side": 32, "min_side": 16, "target_bytes": 4096, "max_quarantine_share": 0.0, **changes})


@pytest.fixture
def images(tmp_path):
    """A folder of twelve photographs, p00 to p11."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(12):
        (folder / f"p{number:02d}.jpg").write_bytes(jpeg(seed=number, width=80 + number, colour=(15 * number, 120, 150)))
    return folder
