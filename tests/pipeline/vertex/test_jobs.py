"""The job that trains, as the API's own messages hold it."""

import datetime

import pytest
from google.cloud import aiplatform_v1 as v1

from pipeline.vertex import images, jobs
from pipeline.errors import SettingsError
from tests.pipeline.vertex.conftest import IMAGE, loaded

REDUCTION = f"us-docker.pkg.dev/vertex-ai-restricted/training/reductionserver@sha256:{'b' * 64}"


def job(workers=4, spot=True, output="gs://acme-retrain/run", **vertex) -> v1.CustomJob:
    settings = loaded(**vertex).vertex
    return jobs.custom_job(
        settings, settings.training, name="p-train-run-1", workers=workers, image=IMAGE, command=["python", "-m", "x"],
        environment={"A": "b"}, labels={"team": "retail"}, output=output, spot=spot,
    )  # fmt: skip


def pools(of: v1.CustomJob) -> list[tuple]:
    return [
        (pool.machine_spec.machine_type, pool.machine_spec.accelerator_count, pool.replica_count)
        for pool in of.job_spec.worker_pool_specs
    ]


def test_one_machine_is_a_chief_alone():
    assert pools(job(workers=1)) == [("a2-highgpu-1g", 1, 1)]
    content = {"training__machine": "n1-standard-8"}
    assert pools(job(workers=2, **content)) == [("n1-standard-8", 0, 1), ("n1-standard-8", 0, 1)]


def test_chief_workers_and_reduction_servers_have_their_places():
    made = job(training__reduction_server={"image": REDUCTION, "replicas": 3})
    assert pools(made) == [("a2-highgpu-1g", 1, 1), ("a2-highgpu-1g", 1, 3), ("n1-highcpu-16", 0, 3)]
    chief, workers, servers = made.job_spec.worker_pool_specs
    for pool in (chief, workers):
        assert (pool.container_spec.image_uri, list(pool.container_spec.command)) == (IMAGE, ["python", "-m", "x"])
        assert [(variable.name, variable.value) for variable in pool.container_spec.env] == [("A", "b")]
        assert pool.machine_spec.accelerator_type == v1.AcceleratorType.NVIDIA_TESLA_A100
    assert servers.container_spec.image_uri == REDUCTION
    assert not servers.container_spec.command and not servers.container_spec.args and not servers.container_spec.env


def test_a_search_has_its_own_machines_and_no_reduction_servers():
    settings = loaded(tuning={"timeout_hours": 20.0}, training__reduction_server={"image": REDUCTION}).vertex
    made = jobs.custom_job(
        settings, settings.tuning, name="p-tune-run-1", workers=8, image=IMAGE, command=["python"], environment={}, labels={},
        output="", spot=True,
    )  # fmt: skip
    assert pools(made) == [("g2-standard-8", 1, 1), ("g2-standard-8", 1, 7)]
    assert made.job_spec.worker_pool_specs[1].machine_spec.accelerator_type == v1.AcceleratorType.NVIDIA_L4
    assert made.job_spec.scheduling.timeout == datetime.timedelta(hours=20)
    v1.CreateCustomJobRequest.serialize(v1.CreateCustomJobRequest(parent="projects/p/locations/r", custom_job=made))


@pytest.mark.parametrize("spot", [True, False])
def test_time_restart_and_strategy(spot):
    scheduling = job(spot=spot, training__timeout_hours=2.5, training__restart=False).job_spec.scheduling
    assert scheduling.timeout == datetime.timedelta(hours=2.5) and not scheduling.restart_job_on_worker_restart
    assert scheduling.strategy.name == ("SPOT" if spot else "STANDARD")


def test_who_it_is_and_where_it_writes():
    spec = job(network="projects/1/global/networks/n").job_spec
    assert spec.service_account == "retrain@acme-products.iam.gserviceaccount.com"
    assert spec.network == "projects/1/global/networks/n"
    assert spec.base_output_directory.output_uri_prefix == "gs://acme-retrain/run"
    assert not job(output="/mounted/run").job_spec.base_output_directory.output_uri_prefix  # Vertex takes gs:// only


def test_labels_name_team_pipeline_and_snapshot():
    found = jobs.labels_of(loaded().vertex, "product-photographs", "2026-03-02")
    assert found == {"team": "retail", "pipeline": "product-photographs", "snapshot": "2026-03-02"}
    assert jobs.label_value('Größe "x"/' + 80 * "y") == "gr--e--x--" + 53 * "y"


def test_an_image_by_digest_is_taken_verbatim():
    assert images.require_digest(IMAGE) == IMAGE


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("eu.pkg.dev/p/retrain:latest", "describe eu.pkg.dev/p/retrain:latest '--format=value("),
        ("eu.pkg.dev/p/retrain", "describe eu.pkg.dev/p/retrain "),
        ("eu.pkg.dev/p/retrain@sha256:12", "describe eu.pkg.dev/p/retrain "),
        ("retrain; rm -rf /", "is no image"),
        ("", "is no image"),
    ],
)
def test_an_image_by_tag_is_refused_with_the_command_that_finds_its_digest(image, words):
    with pytest.raises(SettingsError) as raised:
        images.require_digest(image)
    assert words in str(raised.value)
