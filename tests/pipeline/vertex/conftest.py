"""Settings of an invented team, its compiled pipelines, and a server that answers as Vertex where a test says how."""

import json

import pytest
import yaml

from pipeline import settings, typed
from pipeline.evaluation.thresholds import Thresholds
from pipeline.origin import Origin
from pipeline.places import PRODUCTION
from pipeline.validation.rules import Limits
from pipeline.vertex import service
from tests.pipeline.vertex import answers

IMAGE = f"europe-west4-docker.pkg.dev/acme-products/retrain/pipeline@sha256:{'a1' * 32}"

ORIGIN = Origin("c0ffee", "clean", "tfx.txt", "0" * 64, "", "3.11", "Linux", "ana")


def filled() -> dict:
    """pipeline/configs/vertex.yaml with its blanks filled in."""
    text = (settings.CONFIGS / "vertex.yaml").read_text()
    for blank, value in {
        "your-project": "acme-products", "your-bucket": "acme-retrain", "your-photographs": "acme-photographs",
        "your-team": "retail", "your-digest": "5e" * 32,
    }.items():  # fmt: skip
        text = text.replace(blank, value)
    return yaml.safe_load(text)


def loaded(**vertex) -> settings.Settings:
    """Its settings, with some of `vertex` changed; `training__machine` for one that lies deeper."""
    content = filled()
    for name, value in vertex.items():
        place = content["vertex"]
        *above, last = name.split("__")
        for part in above:
            place = place[part]
        place[last] = value
    return typed.from_dict(settings.Settings, content, "test")


def rules() -> tuple[Limits, Thresholds]:
    """Production's limits of a week and thresholds of a release, which are compiled unless others are named."""
    return typed.load(Limits, PRODUCTION / "gate.yaml"), typed.load(Thresholds, PRODUCTION / "release.yaml")


@pytest.fixture(scope="session")
def compiled_jobs() -> dict[str, dict]:
    """The weekly and the monthly pipeline, compiled."""
    from pipeline.vertex.compile import compiled

    return {name: compiled(loaded(), *rules(), ORIGIN, IMAGE, name == "monthly") for name in ("weekly", "monthly")}


@pytest.fixture
def job_file(compiled_jobs, tmp_path):
    """Writes one of them; returns its path."""

    def write(name="weekly") -> str:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(compiled_jobs[name]))
        return str(path)

    return write


@pytest.fixture
def vertex():
    with answers.running() as server:
        yield server


@pytest.fixture
def there(vertex):
    """Vertex of the settings."""

    def there(**changes) -> service.Service:
        return service.Service(loaded(**changes).vertex, vertex.pipelines, vertex.schedules)

    return there
