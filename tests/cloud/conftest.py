"""Google Cloud on this machine: Cloud Storage for each test anew, BigQuery once with a fresh data set for each test."""

import httplib2
import pytest

from tests.cloud import google_apis, storage_emulator
from tests.cloud.warehouses import BigQuery


@pytest.fixture
def cloud():
    """A running emulator with the buckets `photos` and `out`."""
    with storage_emulator.running("photos", "out") as emulator:
        yield emulator


@pytest.fixture(scope="session")
def _google_apis(tmp_path_factory):
    apis = google_apis.GoogleApis(tmp_path_factory.mktemp("google"))
    yield apis
    apis.close()


@pytest.fixture
def google(_google_apis, monkeypatch):
    """Google's hosts, without faults, which this process and those it starts take for the real ones."""
    for name, value in _google_apis.environment.items():
        monkeypatch.setenv(name, value)
    # Read from the environment when the module was imported, by whichever test came first.
    monkeypatch.setattr(httplib2, "CA_CERTS", _google_apis.environment["HTTPLIB2_CA_CERTS"])
    _google_apis.heal()
    yield _google_apis
    _google_apis.heal()


@pytest.fixture
def bigquery(google):
    """BigQuery with an empty data set, and what tests do to it."""
    with BigQuery(google) as bigquery:
        yield bigquery
