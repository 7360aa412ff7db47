"""Every test here talks to the service."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _environment(vizier_environment):
    pass
