"""Every test here talks to the service."""

import pytest

from pipeline.vizier import local


@pytest.fixture(scope="session", autouse=True)
def _environment(vizier_environment):
    pass


@pytest.fixture(scope="session")
def service(tmp_path_factory):
    """One that every test may use that harms nobody: its first suggestion loads JAX, which takes seconds."""
    with local.running(tmp_path_factory.mktemp("vizier") / "studies.sqlite", "quasi_random") as service:
        yield service
