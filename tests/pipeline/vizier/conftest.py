"""The environment of the service, built before the first test that needs it."""

import subprocess
import sys

import pytest

from pipeline.vizier import local


@pytest.fixture(scope="session", autouse=True)
def _environment():
    # Returns at once when it is there.
    subprocess.run([sys.executable, local.ROOT / "requirements" / "vizier.py"], check=True)
