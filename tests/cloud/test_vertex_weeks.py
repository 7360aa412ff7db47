"""Four weeks on the fake Vertex AI, from the command that schedules them to what serves: three good Mondays and the bad one.

The pipeline is the product's own, compiled by its command; each task is a process with the container's own command, training
is a custom job, labels are in BigQuery's emulator, and photographs, artifacts and the store in Cloud Storage's, which each
process reaches as it would reach Google: TensorFlow, Beam and Google's client through the proxy and its certificates.
Training is cut to two epochs of a tiny network: what is told here is the pipeline's behaviour, not the model's quality.
For the third week the team takes two machines to train on: it compiles again, and brings the schedule up to date.
"""

import base64
import csv
import dataclasses
import datetime
import json
import pathlib

import pytest
import yaml

from google.cloud import aiplatform_v1 as v1

from pipeline import settings
from pipeline.lineage import facts, timeline, verify
from pipeline.lineage.vertex import VertexLineage
from pipeline.places import Places
from pipeline.release import ledger
from tests.cloud import google_apis, storage_emulator
from tests.cloud.vertex.containers import IMAGE, Containers
from tests.cloud.vertex.server import Vertex
from tests.cloud.warehouses import BigQuery
from tests.end_to_end.conftest import few_epochs_thresholds

pytestmark = pytest.mark.timeout(1500)

ROOT = google_apis.ROOT
SAMPLE = ROOT / "data" / "sample"
TOPIC = "retrain-alerts"
STORE = "gs://retrain/store"
TABLE_LABELS = {"team": "retail"}

_COMMAND_SECONDS, _WEEK_SECONDS = 300, 600

GOOD, BAD = (9, 16, 23), 30
"""The Mondays of March 2026."""

WORKERS = {9: 1, 16: 1, 23: 2}
"""Machines that each week trains on."""

UP_TO_THE_GATE = (
    "RunManifest", "ImageSharder", "SnapshotGen", "SnapshotExampleGen", "StatisticsGen", "ImportSchemaGen", "ExampleValidator",
    "LastAccepted", "DistributionValidator", "SnapshotGate",
)  # fmt: skip
BEHIND_IT = (
    "LabelJoin", "TuningDecision", "Tuner", "Trainer", "SmokeTest", "ServingModel", "Evaluator", "ReleaseGate",
    "ReleasePusher", "ServingLedger",
)  # fmt: skip


def utc(*numbers: int) -> datetime.datetime:
    return datetime.datetime(*numbers, tzinfo=datetime.timezone.utc)


def run_id(monday: int) -> str:
    """Id of the run that the schedule starts on a Monday at 20:00 in Berlin, which has summer time from 29 March on."""
    return f"product-photographs-202603{monday:02}{18 if monday == 30 else 19}0000"


def date(monday: int) -> str:
    """The Monday as YYYY-MM-DD."""
    return f"2026-03-{monday:02}"


def table(monday: int) -> str:
    """Its snapshot."""
    return f"labels_{date(monday).replace('-', '')}"


def filled_settings(dataset: str, workers: int) -> dict:
    """pipeline/configs/vertex.yaml as a team fills it in, cut down to what two cores train in seconds."""
    text = (ROOT / "pipeline" / "configs" / "vertex.yaml").read_text()
    for blank, value in {
        "your-project": google_apis.PROJECT, "your-bucket": "retrain", "your-photographs": "photographs",
        "your-team": "retail", "your-digest": "5e" * 32,
    }.items():  # fmt: skip
        text = text.replace(blank, value)
    content = yaml.safe_load(text)
    local = yaml.safe_load((ROOT / "pipeline" / "configs" / "local.yaml").read_text())
    content |= {name: local[name] for name in ("shards", "splits", "gate", "tuning")}
    content["release"]["bootstrap"] = True
    content["network"] = {"blocks": [1, 1], "bottleneck": False, "width": 8, "image_size": 64}
    content["training"] = {
        "unfrozen_epochs": 2, "batch_size": 16, "learning_rate": 0.003, "intra_op_threads": 2, "inter_op_threads": 2, "workers": workers,
    }  # fmt: skip
    content["warehouse"] |= {"dataset": dataset, "table_labels": TABLE_LABELS}
    # The containers' clock is the machine's, not the fake's: a window in March would be over.
    content["vertex"] |= {"store": STORE, "code": str(ROOT), "dataflow": None, "window_hours": 0}
    content["vertex"]["training"] = {"machine": "n1-standard-4", "spot": True, "timeout_hours": 1}
    content["vertex"]["release"] |= {"canary_percent": 50, "watch_minutes": 0.02, "watch_answers": 8, "max_latency_ms": 60000}
    return content


@dataclasses.dataclass
class Weeks:
    """What happened.

    Attributes:
        vertex: The fake.
        objects: Cloud Storage.
        said: What each command printed.
        schedule: The schedule in the end.
        training: The custom jobs, oldest first.
        tables: The tables that the pipeline made.
        settings: The file of the settings in the end.
    """

    vertex: Vertex
    objects: storage_emulator.Emulator
    said: dict[str, str] = dataclasses.field(default_factory=dict)
    schedule: v1.Schedule | None = None
    training: list[v1.CustomJob] = dataclasses.field(default_factory=list)
    tables: list = dataclasses.field(default_factory=list)
    settings: str = ""

    def tasks(self, monday: int) -> dict[str, str]:
        """The state of each task of the week's run; a step's without the DAG that holds it."""
        found = self.vertex.pipelines.tasks(run_id(monday))
        return {name.removeprefix("tfx-dag."): state for name, state in found.items()}

    def uri(self, monday: int, step: str, output: str) -> str:
        """Where an artifact of the week's run lies."""
        run = next(job for job in self.vertex.pipelines.jobs() if job.name.endswith(run_id(monday)))
        (task,) = (task for task in run.job_detail.task_details if task.task_name == step)
        return task.outputs[output].artifacts[0].uri

    def report(self, monday: int, name: str) -> dict:
        """A report of the week's run."""
        return json.loads(self.objects.content(f"{STORE}/reports/{run_id(monday)}/{name}"))

    def ledger(self) -> list[ledger.Entry]:
        """What was released."""
        lines = self.objects.content(f"{STORE}/serving/ledger.jsonl").splitlines()
        return [ledger.Entry(**json.loads(line)) for line in lines]

    def command(self, name: str, folder: pathlib.Path, *words: str) -> None:
        """Runs kubeflow_runner.py in a container of the image, as a team's own automation does, and keeps what it printed."""
        log, settings = folder / f"{name}.log", str(folder / "settings.yaml")
        arguments = ["kubeflow_runner", name, "--settings", settings, *words]
        container = self.vertex.containers.start(IMAGE, ["python", "-m"], arguments, {}, log)
        assert container.wait(_COMMAND_SECONDS) == 0, log.read_text()
        self.said[name] = log.read_text()
        log.unlink()


@pytest.fixture(scope="module")
def weeks(_google_apis, _vertex_server, _forks, tmp_path_factory):
    """Compiles, schedules, and lets three Mondays pass."""
    folder = tmp_path_factory.mktemp("weeks")
    with pytest.MonkeyPatch.context() as patch, storage_emulator.running("photographs", "retrain") as objects:
        for name, value in _google_apis.environment.items():
            patch.setenv(name, value)
        patch.setattr(_google_apis, "objects", objects)
        containers = Containers(_google_apis.environment, _forks)
        containers.images[IMAGE] = dataclasses.replace(containers.images[IMAGE], forks=("tfx", "kubeflow_runner"))
        with _vertex_server.serving(Vertex(folder / "vertex", _google_apis, containers)) as vertex:
            vertex.publisher.add_topic(TOPIC)
            with BigQuery(_google_apis) as bigquery:
                yield tell(Weeks(vertex, objects), bigquery, folder)


def tell(weeks: Weeks, bigquery: BigQuery, folder: pathlib.Path) -> Weeks:
    """The story."""
    with open(SAMPLE / "labels.csv", encoding="utf-8", newline="") as stream:
        bigquery.load_labels(list(csv.reader(stream))[1:])
    for path in (SAMPLE / "images").iterdir():
        weeks.objects.put(f"gs://photographs/jpeg/{path.name}", path.read_bytes())
    thresholds = few_epochs_thresholds(0.0)
    thresholds["smoke"]["max_latency_ms"] = 60000  # whatever else this machine does
    (folder / "thresholds.yaml").write_text(yaml.safe_dump(thresholds))
    weeks.vertex.advance(utc(2026, 3, 8))
    machines = 0
    for monday in (*GOOD, BAD):
        if WORKERS.get(monday, machines) != machines:
            machines = WORKERS[monday]
            put_schedule(weeks, folder, filled_settings(bigquery.dataset, machines))
        weeks.vertex.advance(utc(2026, 3, monday, 22), settle=False)
        weeks.vertex.settle(_WEEK_SECONDS)
    weeks.command("status", folder)
    weeks.settings = str(folder / "settings.yaml")
    options = {"api_endpoint": "europe-west4-aiplatform.googleapis.com"}
    parent = f"projects/{google_apis.PROJECT}/locations/europe-west4"
    (weeks.schedule,) = v1.ScheduleServiceClient(client_options=options).list_schedules(parent=parent)
    jobs = v1.JobServiceClient(client_options=options).list_custom_jobs(parent=parent)
    weeks.training = sorted(jobs, key=lambda job: job.create_time)
    weeks.tables = [bigquery.client.get_table(bigquery.address(name)) for name in bigquery.tables() if name != "labels"]
    return weeks


def put_schedule(weeks: Weeks, folder: pathlib.Path, settings: dict) -> None:
    """Compiles with these settings and schedules what comes of it, as a team does after each change."""
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    weekly = str(folder / "weekly.json")
    limits = ["--limits", str(ROOT / "schema" / "gate.yaml"), "--thresholds", str(folder / "thresholds.yaml")]
    weeks.command("compile", folder, "--image", IMAGE, "--output", weekly, *limits)
    weeks.command("schedule", folder, "--job", weekly)


@pytest.mark.parametrize("monday", GOOD)
def test_a_good_week_ends_well_at_every_step(weeks, monday):
    tasks = weeks.tasks(monday)
    assert set(tasks.values()) == {"SUCCEEDED"}, weeks.vertex.pipelines.failures(run_id(monday))
    assert tasks.keys() == {"RunAlert", "tfx-dag", *UP_TO_THE_GATE, *BEHIND_IT}
    manifest = json.loads(weeks.objects.content(f"{weeks.uri(monday, 'RunManifest', 'manifest')}/manifest.json"))
    assert (manifest["run_id"], manifest["snapshot_date"]) == (run_id(monday), date(monday))


def test_each_release_is_in_the_ledger_with_its_model(weeks):
    entries = weeks.ledger()
    # The first has nothing to stand beside; each later one is a canary first.
    wanted = [("release", GOOD[0], "1", 1.0)]
    for number, monday in enumerate(GOOD[1:], start=2):
        wanted += [("canary", monday, str(number), 0.5), ("promote", monday, str(number), 1.0)]
    assert [(entry.action, entry.run_id, entry.to_version, entry.share) for entry in entries] == [
        (action, run_id(monday), version, share) for action, monday, version, share in wanted
    ]
    assert [entry.from_version for entry in entries] == ["", *(str(1 + number // 2) for number in range(len(entries) - 1))]
    for before, after in zip(entries, entries[1:]):
        assert after.previous == before.line_sha256
    for entry in entries:
        assert entry.path == f"{STORE}/serving/versions/{entry.run_id}"
        assert entry.snapshot == f"labels_{entry.snapshot_date.replace('-', '')}"
        assert {"saved_model.pb", "variables/variables.index"} <= weeks.objects.below(entry.path).keys()
    assert len({entry.weights_sha256 for entry in entries}) == len(GOOD)
    # The lineage has the same, with the digest of each line.
    recorded = []
    for monday in GOOD:
        facts = json.loads(weeks.objects.content(f"{weeks.uri(monday, 'ServingLedger', 'release')}/release.json"))
        assert facts["released"] and facts["to_version"] == str(GOOD.index(monday) + 1) and not facts["reason"]
        recorded += json.loads(facts["ledger_entries"])
    assert [(each["number"], each["line_sha256"]) for each in recorded] == [(each.number, each.line_sha256) for each in entries]


def test_the_endpoint_answers_with_the_last_good_weeks_model(weeks):
    options = {"api_endpoint": "europe-west4-aiplatform.googleapis.com"}
    parent = f"projects/{google_apis.PROJECT}/locations/europe-west4"
    (endpoint,) = v1.EndpointServiceClient(client_options=options).list_endpoints(parent=parent)
    newest = str(len(GOOD))
    assert {id: percent for id, percent in endpoint.traffic_split.items() if percent} == {newest: 100}
    # The one before stays for its grace time; what served before that was undeployed.
    assert {each.model_version_id for each in endpoint.deployed_models} >= {newest, str(len(GOOD) - 1)}
    photograph = next((SAMPLE / "images").iterdir()).read_bytes()
    instance = {"bytes_inputs": {"b64": base64.b64encode(photograph).decode()}}
    answer = v1.PredictionServiceClient(client_options=options).predict(endpoint=endpoint.name, instances=[instance])
    assert answer.model_version_id == newest and len(answer.predictions[0]["probabilities"]) == 7
    versions = v1.ModelServiceClient(client_options=options).list_model_versions(name=answer.model)
    runs = {each.version_id: (each.labels["run"], each.labels["verdict"], "serving" in each.version_aliases) for each in versions}
    assert runs == {str(number): (run_id(day), "passed", day == GOOD[-1]) for number, day in enumerate(GOOD, start=1)}


def test_each_week_is_judged_against_the_one_before(weeks):
    first, *others = (weeks.report(monday, "release.json") for monday in GOOD)
    assert first["blessed"] and first["serving"] is None and first["compared_examples"] == 0
    for monday, report in zip(GOOD, others, strict=False):
        assert report["blessed"] and run_id(monday) in report["serving"]
        assert report["compared_examples"] == report["examples"] > 0 and report["serving_metrics"]["accuracy"] >= 0


def test_an_auditor_is_told_of_each_week_by_vertex_ml_metadata_and_finds_all_of_it_intact(weeks):
    known = settings.load(weeks.settings)
    store = VertexLineage(known.vertex, known.name)
    assert not timeline.read(store, Places(store=STORE).ledger).problems
    assert [release.line_sha256 for release in store.releases()] == [entry.line_sha256 for entry in weeks.ledger()]
    run, places = store.run(run_id(GOOD[-1])), Places(store=STORE)
    checks = verify.verify(run, facts.of_run(run), timeline.read(store, places.ledger), places)
    assert {check.part for check in checks} == set(verify.PARTS)
    assert [(check.what, check.status, check.detail) for check in checks if check.status != verify.INTACT] == []
    bad = facts.of_run(store.run(run_id(BAD)))
    assert bad.state == "FAILED at SnapshotGate" and "max_duplicates" in bad.reason


def test_the_bad_week_is_refused_and_nothing_else_ran(weeks):
    tasks = weeks.tasks(BAD)
    assert {name for name, state in tasks.items() if state == "FAILED"} == {"tfx-dag", "SnapshotGate"}
    assert {name for name, state in tasks.items() if state == "NOT_TRIGGERED"} == set(BEHIND_IT)
    assert "max_duplicates: 5, allowed: 0" in weeks.vertex.pipelines.log(run_id(BAD), "tfx-dag.SnapshotGate")
    assert weeks.vertex.pipelines.jobs()[-1].state.name == "PIPELINE_STATE_FAILED"
    # Nor is it what a later week is compared with, nor did it train.
    accepted = {name.partition("/")[0] for name in weeks.objects.below(f"{STORE}/accepted")}
    assert accepted == {table(day) for day in GOOD}
    assert len(weeks.vertex.called("CreateCustomJob")) == len(GOOD)


def test_one_alert_names_the_rules_the_run_and_what_goes_on_serving(weeks):
    (message,) = weeks.vertex.publisher.published(TOPIC)
    alert = json.loads(message.data)
    serves = weeks.ledger()[-1]
    assert dict(message.attributes) == {"pipeline": "product-photographs", "run_id": run_id(BAD), "state": "FAILED"}
    assert alert["steps"] == ["SnapshotGate"]
    assert {"max_duplicates", "max_orphans", "max_unknown_labels"} <= set(alert["rules"])
    last_good = f"version {serves.to_version} of run {run_id(GOOD[-1])} ({table(GOOD[-1])})"
    assert alert["serving"] == f"{last_good} goes on serving"
    for words in (run_id(BAD), "max_duplicates", alert["serving"]):
        assert words in alert["text"]
    assert alert["report"] == f"{STORE}/reports/{run_id(BAD)}/gate.html"
    assert b"is rejected" in weeks.objects.content(alert["report"])


def test_training_is_a_custom_job_of_its_own_on_spot_machines(weeks):
    for monday, job in zip(GOOD, weeks.training, strict=True):
        assert job.state.name == "JOB_STATE_SUCCEEDED" and job.display_name == f"product-photographs-train-{run_id(monday)}"
        assert job.job_spec.scheduling.strategy.name == "SPOT"
        assert job.job_spec.base_output_directory.output_uri_prefix == weeks.uri(monday, "Trainer", "model_run")
        assert "2/2" in weeks.vertex.jobs.log(job.name)


def test_two_machines_train_one_model(weeks):
    for monday, job in zip(GOOD, weeks.training, strict=True):
        assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1] * WORKERS[monday]
        record = json.loads(weeks.objects.content(f"{weeks.uri(monday, 'Trainer', 'model_run')}/training.json"))
        assert (record["workers"], record["replicas"]) == (WORKERS[monday], WORKERS[monday])


def test_every_resource_carries_its_labels(weeks):
    scheduled = {"team": "retail", "pipeline": "product-photographs", "snapshot": "scheduled"}
    for run in weeks.vertex.pipelines.jobs():
        assert scheduled.items() <= dict(run.labels).items()
    for monday, job in zip(GOOD, weeks.training, strict=True):
        assert dict(job.labels) == scheduled | {"snapshot": date(monday)}
    for table in weeks.tables:
        assert table.labels == TABLE_LABELS, table.table_id


def test_the_schedule_starts_one_run_at_a_time_and_catches_none_up(weeks):
    schedule = weeks.schedule
    assert (schedule.display_name, schedule.cron) == ("product-photographs-weekly", "TZ=Europe/Berlin 0 20 * * 1")
    assert schedule.max_concurrent_run_count == schedule.max_concurrent_active_run_count == 1
    assert not schedule.catch_up and not schedule.allow_queueing
    # It was made on 8 March: the Monday before that is not caught up.
    assert schedule.started_run_count == 4 == len(weeks.vertex.pipelines.jobs())
    assert schedule.next_run_time == utc(2026, 4, 6, 18)


def test_what_the_commands_say(weeks):
    assert f"20 steps of product-photographs, image {IMAGE}" in weeks.said["compile"]
    assert "schedule product-photographs-weekly is up to date" in weeks.said["schedule"]
    runs = [f"run {run_id(monday)}: succeeded" for monday in GOOD]
    for words in (*runs, f"run {run_id(BAD)}: failed", "next 2026-04-06 18:00 UTC"):
        assert words in weeks.said["status"]
    (why,) = (line for line in weeks.said["status"].splitlines() if line.startswith("  "))
    assert why.startswith("  SnapshotGate: the snapshot breaks ") and "max_duplicates" in why
    assert why.endswith(f"report {STORE}/reports/{run_id(BAD)}/gate.html")
