"""Google Cloud on this machine: Cloud Storage and Vertex AI for each test anew, BigQuery with a data set for each test."""

import subprocess
import sys

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
    google.emulator()  # so that what keeps it from starting fails here, with its own words
    with BigQuery(google) as bigquery:
        yield bigquery


@pytest.fixture(scope="session")
def _vertex_server(_google_apis):
    # Its messages take seconds to import, which the other tests here need not wait for.
    from tests.cloud.vertex.server import Server

    server = Server(_google_apis)
    yield server
    server.close()


@pytest.fixture(scope="session")
def _forks(tmp_path_factory):
    from tests.cloud.vertex.containers import Forks

    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture
def vertex(google, _vertex_server, _forks, tmp_path):
    """Vertex AI with nothing in it, which this process and those it starts take for the real one."""
    from tests.cloud.vertex.containers import Containers
    from tests.cloud.vertex.server import Vertex

    with _vertex_server.serving(Vertex(tmp_path / "vertex", google, Containers(google.environment, _forks))) as vertex:
        yield vertex


@pytest.fixture(scope="module")
def _environment(_google_apis):
    """Google's hosts for a whole module. A process that changes its environment while threads of gRPC read it may crash."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _google_apis.environment.items():
            patch.setenv(name, value)
        patch.setattr(httplib2, "CA_CERTS", _google_apis.environment["HTTPLIB2_CA_CERTS"])
        yield _google_apis


@pytest.fixture
def team(_environment, _vertex_server, _forks, tmp_path):
    """A team that has released nothing yet to its endpoint, on a Vertex AI with nothing in it."""
    from tests.cloud.release_team import Team
    from tests.cloud.vertex.containers import Containers
    from tests.cloud.vertex.server import Vertex

    containers = Containers(_environment.environment, _forks)
    with _vertex_server.serving(Vertex(tmp_path / "vertex", _environment, containers)) as vertex:
        yield Team(tmp_path, vertex)


@pytest.fixture
def serving(team):
    """A team whose first week serves."""
    assert team.release(1).released
    return team


@pytest.fixture
def ask(team, capsys):
    """Runs `python -m pipeline release ... --settings`: exit status, what it printed, what it complained of."""
    from pipeline.__main__ import main

    def ask(*words):
        status = main(["release", *words, "--settings", str(team.folder / "settings.yaml")])
        told = capsys.readouterr()
        return status, told.out, told.err

    return ask


@pytest.fixture
def publisher(vertex):
    """Pub/Sub's topics, and what was published there."""
    return vertex.publisher


@pytest.fixture(scope="session")
def vizier_environment():
    """The environment of Vizier's service, built before the first test that needs it."""
    # Returns at once when it is there.
    subprocess.run([sys.executable, google_apis.ROOT / "requirements" / "vizier.py"], check=True)
