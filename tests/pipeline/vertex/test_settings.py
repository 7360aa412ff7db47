"""What the settings of Vertex take, and how they refuse."""

import pytest

from pipeline.errors import SettingsError
from pipeline.settings import Settings
from pipeline import typed
from tests.pipeline.vertex.conftest import filled, loaded


def test_productions_settings_are_whole_but_for_their_blanks():
    vertex = loaded().vertex
    assert (vertex.project, vertex.region, vertex.store) == ("acme-products", "europe-west4", "gs://acme-retrain/retrain")
    assert vertex.training.gpus == 1 and vertex.training.spot and vertex.dataflow.public_ips is False


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"region": "Europe"}, "vertex.region"),
        ({"region": "europe-west4.evil.example"}, "vertex.region"),
        ({"project": "UPPER"}, "vertex.project"),
        ({"store": "gs://bucket/"}, "vertex.store"),
        ({"store": "relative/folder"}, "vertex.store"),
        ({"store": "gs://bucket/a*b"}, "vertex.store"),
        ({"service_account": "somebody"}, "vertex.service_account"),
        ({"network": "default"}, "vertex.network"),
        ({"alert_topic": "retrain-alerts"}, "vertex.alert_topic"),
        ({"labels": {"Team": "x"}}, "vertex.labels"),
        ({"labels": {"study": "x"}}, "vertex.labels has 'study', which the pipeline sets itself"),
        ({"tuning": {"machine": "a2-highgpu-4g"}}, "vertex.tuning.machine"),
        ({"tuning": {"machine": "g2-standard-24"}}, "vertex.tuning.machine"),  # two L4, of which a trial would use one
        ({"tuning": {"accelerator": "NVIDIA_TESLA_K80"}}, "vertex.tuning.accelerator"),
        ({"tuning": {"accelerator": "NVIDIA_TESLA_T4"}}, "an n1 machine only, and vertex.tuning.machine is g2-standard-8"),
        ({"tuning": {"timeout_hours": 200.0}}, "vertex.tuning.timeout_hours"),
        ({"tuning": {"boot_disk_gb": 10}}, "vertex.tuning.boot_disk_gb"),
        ({"tuning": {"machine": "a2-highgpu-1g"}}, "times tuning.parallel 8 are 8 A100s: 4 are the budget"),
        ({"labels": {"snapshot": "x"}}, "vertex.labels has 'snapshot', which the pipeline sets itself"),
        ({"window_hours": -1.0}, "vertex.window_hours"),
        ({"colour": "red"}, "vertex.colour: there is no such setting"),
        ({"training__machine": "a2-highgpu-8g"}, "vertex.training.machine"),
        ({"training__machine": "a2-highgpu-2g"}, "are 8 A100s: 4 are the budget"),
        ({"training__timeout_hours": 0.0}, "vertex.training.timeout_hours"),
        ({"training__reduction_server": {"image": "us-docker.pkg.dev/x/reductionserver:latest"}}, "reduction_server.image"),
        ({"schedule__weekly": "every Monday"}, "vertex.schedule.weekly"),
        ({"schedule__time_zone": "Europe Berlin"}, "vertex.schedule.time_zone"),
        ({"dataflow__max_workers": 0}, "vertex.dataflow.max_workers"),
        ({"dataflow__service_account": "somebody"}, "vertex.dataflow.service_account"),
        ({"labels": {"verdict": "x"}}, "vertex.labels has 'verdict', which the pipeline sets itself"),
        ({"release": {}}, "vertex.release.image: this setting is required"),
        ({"release__image": "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-15:latest"}, "vertex.release.image"),
        ({"release__endpoint": "Photographs"}, "vertex.release.endpoint"),
        ({"release__machine": "a2-highgpu-1g"}, "vertex.release.machine"),
        ({"release__canary_percent": 0}, "vertex.release.canary_percent"),
        ({"release__canary_percent": 51}, "vertex.release.canary_percent"),
        ({"release__watch_minutes": 0.0}, "vertex.release.watch_minutes"),
        ({"release__watch_answers": 0}, "vertex.release.watch_answers"),
        ({"release__max_error_share": 1.0}, "vertex.release.max_error_share"),
        ({"release__max_latency_ms": 0.0}, "vertex.release.max_latency_ms"),
        ({"release__max_probability_difference": 0.2}, "vertex.release.max_probability_difference"),
        ({"release__service_account": "somebody"}, "vertex.release.service_account"),
        ({"release__grace_minutes": -1.0}, "vertex.release.grace_minutes"),
        ({"release__min_replicas": 3}, "vertex.release.max_replicas 2 is below vertex.release.min_replicas 3"),
        ({"release__traffic": 5}, "vertex.release.traffic: there is no such setting"),
    ],
)
def test_what_cannot_be_used_is_named(changes, words):
    with pytest.raises(SettingsError) as raised:
        loaded(**changes)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("training", "vertex", "words"),
    [
        ({"workers": 1}, {"reduction_server": {"image": f"x@sha256:{'0' * 64}"}}, "training.workers is 1"),
        ({"workers": 1, "batch_size": 258}, {"machine": "a2-highgpu-4g"}, "training.batch_size 258 does not divide over 4 A100s"),
        ({"workers": 2, "batch_size": 130}, {"machine": "a2-highgpu-2g"}, "training.batch_size 130 does not divide over 4 A100s"),
    ],
)
def test_training_and_its_machines_must_agree(training, vertex, words):
    content = filled()
    content["training"] |= training
    content["vertex"]["training"] |= vertex
    with pytest.raises(SettingsError, match=words):
        typed.from_dict(Settings, content, "test")


def test_a_trial_has_a_gpu_of_its_own_on_machines_that_cost_less_than_those_that_train():
    job = loaded().vertex.tuning
    assert (job.machine, job.gpu, job.gpus) == ("g2-standard-8", "NVIDIA_L4", 1) and job.gpu != loaded().vertex.training.gpu
    v100 = loaded(tuning={"machine": "n1-standard-8", "accelerator": "NVIDIA_TESLA_V100"}).vertex.tuning
    assert (v100.gpu, v100.gpus) == ("NVIDIA_TESLA_V100", 1)
    assert (loaded(tuning={"machine": "n1-standard-8"}).vertex.tuning.gpu, job.restart) == ("", False)


@pytest.mark.parametrize(
    ("machine", "tuning", "mixed", "words"),
    [
        ({}, {"batch_size": [128, 512]}, True, ""),
        ({}, {"batch_size": [128, 512]}, False, "batch_size 512 takes about 43 GiB, .* g2-standard-8 it may take 22 GiB"),
        ({"machine": "a2-highgpu-1g"}, {"parallel": 4, "batch_size": [256]}, False, ""),
        ({"machine": "n1-standard-8", "accelerator": "NVIDIA_TESLA_T4"}, {"batch_size": [256]}, False, "may take 14 GiB"),
        ({"machine": "n1-standard-8"}, {"batch_size": [512]}, False, ""),  # without a GPU: what the machine has
    ],
)
def test_the_batches_of_a_search_must_fit_its_gpu(machine, tuning, mixed, words):
    content = filled()
    content["tuning"] |= tuning
    content["training"]["mixed_precision"] = mixed
    content["vertex"]["tuning"] = machine
    if not words:
        typed.from_dict(Settings, content, "test")
        return
    with pytest.raises(SettingsError, match=words):
        typed.from_dict(Settings, content, "test")
