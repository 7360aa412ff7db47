"""A team that releases to an endpoint of the fake Vertex AI: its settings, models, what there is, and how its runs are killed.

The models answer as their smoke sets say, from containers without TensorFlow (tests/cloud/vertex/answering.py).
"""

import base64
import datetime
import functools
import hashlib
import json
import pathlib

import pytest
import yaml
from google.cloud import aiplatform_v1 as v1

from pipeline import typed
from pipeline.places import Places
from pipeline.release import ledger
from pipeline.release import vertex as releases
from pipeline.settings import Settings
from pipeline.vertex import endpoint as endpoints
from tests.cloud import google_apis
from tests.cloud.vertex import names
from tests.cloud.vertex.containers import REGISTRY, Image

IMAGE = f"{REGISTRY}/serving@sha256:{hashlib.sha256(b'serving').hexdigest()}"
NAME = "product-photographs"
CLASSES = ["bird", "flower"]
OPTIONS = {"api_endpoint": "europe-west4-aiplatform.googleapis.com"}


WHY = ("--reason", "flowers are seen as fruit", "--by", "ana")
"""What a person says."""


def photographs(shift: float = 0.0) -> list[dict]:
    found = []
    for number in range(4):
        content = base64.b64encode(b"JPEG %d" % number).decode()
        probabilities = [0.2 * number + shift, 1 - 0.2 * number - shift]
        found.append({"request": {"bytes_inputs": {"b64": content}}, "probabilities": probabilities})
    return found


SERVES_AS = f"retrain-serving@{google_apis.PROJECT}.iam.gserviceaccount.com"


class Team:
    """A store, settings and an endpoint, as a team has them; `change` other settings of `vertex.release`."""

    def __init__(self, folder: pathlib.Path, vertex):
        self.folder, self.vertex = folder, vertex
        vertex.containers.images[IMAGE] = Image(
            ("python", "-m", "tests.cloud.vertex.answering"), {"PYTHONPATH": str(google_apis.ROOT)}
        )
        # As the first run leaves it.
        location = f"projects/{names.NUMBER}/locations/europe-west4"
        vertex.metadata.put("contexts", location, NAME, display_name=NAME, schema_title="system.Pipeline")
        self.places = Places(store=str(folder / "store"))
        self.change()

    def change(self, **release) -> "Team":
        known = {
            "image": IMAGE, "canary_percent": 50, "watch_minutes": 0.001, "watch_answers": 8, "max_latency_ms": 60000.0,
            "service_account": SERVES_AS,
        }  # fmt: skip
        content = {
            "name": "product-photographs",
            "warehouse": {"kind": "bigquery", "project": google_apis.PROJECT, "dataset": "labels"},
            "tuning": {"batch_size": [128, 256]},
            "release": {"endpoint": NAME},
            "vertex": {
                "project": google_apis.PROJECT, "region": "europe-west4",
                "store": self.places.store, "images": "gs://photographs",
                "labels": {"team": "retail"}, "release": known | release,
            },
        }  # fmt: skip
        (self.folder / "settings.yaml").write_text(yaml.safe_dump(content))
        self.settings = typed.from_dict(Settings, content, "test")
        return self

    def target(self) -> releases.Target:
        return releases.Target(self.settings.vertex, NAME, self.settings.name, self.places)

    def candidate(self, week: int, shift: float = 0.0, loads: bool = True) -> releases.Candidate:
        """A model of a week; with a shift it answers otherwise than its trainer."""
        model = self.folder / f"model-{week}"
        for name in ("assets.extra", "variables") if loads else ("assets.extra",):
            (model / name).mkdir(parents=True, exist_ok=True)
        (model / "saved_model.pb").write_text("graph")
        (model / "assets.extra" / "smoke.json").write_text(json.dumps({"classes": CLASSES, "photographs": photographs()}))
        if shift:
            (model / "answers.json").write_text(json.dumps({"classes": CLASSES, "photographs": photographs(shift)}))
        if loads:
            (model / "variables" / "variables.index").write_text(str(week))
        date = datetime.date(2026, 3, 2) + datetime.timedelta(weeks=week - 1)
        digest = hashlib.sha256(str(week).encode()).hexdigest()
        return releases.Candidate(self.run(week), f"labels_{date:%Y%m%d}", str(date), digest, str(model))

    @staticmethod
    def run(week: int) -> str:
        return f"product-photographs-week-{week}"

    def release(self, week: int, target=None, **model) -> releases.Outcome:
        """As the step of the week's run does it."""
        target, candidate = target or self.target(), self.candidate(week, **model)
        target.keep(candidate)
        return target.release(candidate)

    # --- What there is ---

    def entries(self) -> list[ledger.Entry]:
        return ledger.of_endpoint(self.places.ledger, NAME)

    def told(self) -> list[tuple[str, str, float]]:
        return [(entry.action, entry.to_version, entry.share) for entry in self.entries()]

    @functools.cached_property
    def endpoint(self) -> endpoints.Endpoint:
        """The endpoint as a test looks at it."""
        return self.target().endpoint

    def split(self) -> dict[str, int]:
        return self.endpoint.state().split

    def deployed(self) -> list[str]:
        return sorted(each.version for each in self.endpoint.state().deployed)

    def versions(self) -> dict[str, set[str]]:
        """Version -> its aliases."""
        return {each.number: set(each.aliases) for each in self.endpoint.versions()}

    def by_hand(self, **split: int) -> None:
        """Somebody splits the traffic in the console."""
        client = v1.EndpointServiceClient(client_options=OPTIONS)
        wanted = {version.removeprefix("v"): percent for version, percent in split.items()}
        endpoint = v1.Endpoint(name=self.endpoint.name, traffic_split=wanted)
        client.update_endpoint(endpoint=endpoint, update_mask={"paths": ["traffic_split"]})


class Killed(BaseException):
    """What stands for SIGKILL within one process: nothing catches it."""


class Mortal:
    """Counts what a release changes, and ends it after so many changes."""

    def __init__(self, target, monkeypatch, after: int):
        self.left = after
        self.last = ""
        for name in ("_models", "_endpoints", "_predictions"):
            monkeypatch.setattr(target.endpoint, name, _Mortal(getattr(target.endpoint, name), self))
        write = ledger.append

        def append(*arguments, **fields):
            self.done("before the ledger")
            entry = write(*arguments, **fields)
            self.done("after the ledger")
            return entry

        monkeypatch.setattr(ledger, "append", append)

    def done(self, what: str) -> None:
        self.left -= 1
        self.last = what
        if self.left == 0:
            raise Killed(what)


class _Mortal:
    def __init__(self, client, life: Mortal):
        self._client, self._life = client, life

    def __getattr__(self, name):
        method = getattr(self._client, name)
        if name.startswith(("get_", "list_")):
            return method

        def call(*arguments, **fields):
            answer = method(*arguments, **fields)
            # Of the many questions of a watch, the first stands for all.
            if name != "predict" or self._life.last != "predict":
                self._life.done(name)
            return answer

        return call


def killed_at(team, week: int, place: str) -> None:
    """Lets a week's release be killed at a place."""
    with pytest.MonkeyPatch.context() as patch:
        target = team.target()
        life = Mortal(target, patch, after=10**6)
        count = life.done

        def done(what):
            count(what)
            if what == place:
                raise Killed(what)

        patch.setattr(life, "done", done)
        with pytest.raises(Killed):
            team.release(week, target)
