"""Cloud Storage on this machine, for each test anew."""

import pytest

from tests.cloud import storage_emulator


@pytest.fixture
def cloud():
    """A running emulator with the buckets `photos` and `out`."""
    with storage_emulator.running("photos", "out") as emulator:
        yield emulator
