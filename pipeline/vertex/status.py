"""What there is of a pipeline on Vertex AI: its schedules, its newest runs, and where and why a run failed. No TensorFlow, no TFX."""

import dataclasses
import datetime
import re

from google.api_core import exceptions
from google.auth import exceptions as auth
from google.cloud import aiplatform_v1 as v1

from pipeline import storage
from pipeline.places import Places
from pipeline.validation import report
from pipeline.vertex import jobs
from pipeline.vertex.service import Service, refusal

GATE = "SnapshotGate"

_State = v1.PipelineState
_TaskState = v1.PipelineTaskDetail.State

# Vertex's text: "The DAG failed because some tasks failed. The failed tasks are: [SnapshotGate, ...]."
_FAILED_TASKS = re.compile(r"failed tasks are: \[([^\]]*)\]")


@dataclasses.dataclass(frozen=True)
class Failure:
    """A step that failed.

    Attributes:
        step: Its name.
        said: Why, as Vertex has it.
        rules: Of the gate, the rules that the snapshot breaks; empty when its report cannot be read.
        report: Where the gate's report is; '' without one.
    """

    step: str
    said: str
    rules: tuple[str, ...] = ()
    report: str = ""


@dataclasses.dataclass(frozen=True)
class Status:
    """What there is of a pipeline on Vertex.

    Attributes:
        schedules: Its schedules.
        runs: Its newest runs, newest first.
        failures: Id of a run -> the steps in it that failed.
    """

    schedules: list[v1.Schedule]
    runs: list[v1.PipelineJob]
    failures: dict[str, list[Failure]]


def read(service: Service, pipeline: str, count: int) -> Status:
    """Reads the schedules and the newest `count` runs of a pipeline. Raises PipelineError."""
    labelled = f'labels.pipeline="{jobs.label_value(pipeline)}"'
    try:
        schedules = service.schedules.list_schedules(v1.ListSchedulesRequest(parent=service.parent))
        names = {f"{pipeline}-{kind}" for kind in ("weekly", "monthly")}
        mine = [schedule for schedule in schedules if schedule.display_name in names]
        request = v1.ListPipelineJobsRequest(
            parent=service.parent, filter=labelled, order_by="create_time desc", page_size=count
        )
        runs = []
        for run in service.pipelines.list_pipeline_jobs(request):
            runs.append(run)
            if len(runs) == count:
                break
        places = Places(store=service.settings.store)
        failures = {
            # A listing may leave out the tasks.
            _id(run): failures_of(service.pipelines.get_pipeline_job(name=run.name), places)
            for run in runs
            if run.state == _State.PIPELINE_STATE_FAILED
        }
        return Status(sorted(mine, key=lambda schedule: schedule.display_name), runs, failures)
    except (exceptions.GoogleAPIError, auth.GoogleAuthError) as error:
        raise refusal(error, service.settings) from error


def failures_of(run: v1.PipelineJob, places: Places) -> list[Failure]:
    """The steps of a run that failed, in the order in which they did; not the DAG that holds them, which failed with them.

    Args:
        run: The run, with its tasks.
        places: Where the gate's report is.
    """
    failed = [task for task in run.job_detail.task_details if task.state == _TaskState.FAILED]
    holders = {task.parent_task_id for task in failed}
    steps = sorted((task for task in failed if task.task_id not in holders), key=_ended)
    if any(task.parent_task_id for task in steps) or not failed:
        return [_failure(task.task_name, task.error.message, _id(run), places) for task in steps]
    # Vertex tells of the DAG alone: its own words name the steps.
    named = [name.strip() for task in steps for found in _FAILED_TASKS.findall(task.error.message) for name in found.split(",")]
    if named:
        return [_failure(name, steps[0].error.message, _id(run), places) for name in named]
    return [_failure(task.task_name, task.error.message, _id(run), places) for task in steps]


def _failure(step: str, said: str, run_id: str, places: Places) -> Failure:
    if step != GATE:
        return Failure(step, said)
    folder = places.reports(run_id)
    rules = tuple(report.broken_rules(folder))
    return Failure(step, said, rules, storage.join(folder, "gate.html") if rules else "")


def _ended(task: v1.PipelineTaskDetail) -> tuple[float, int]:
    return task.end_time.timestamp() if task.end_time else 0.0, task.task_id


def as_text(found: Status) -> str:
    """The status for people: a line a schedule, a line a run, and where and why a run failed."""
    lines = []
    for schedule in found.schedules:
        state = v1.Schedule.State(schedule.state).name.lower()
        following = f", next {_utc(schedule.next_run_time)}" if schedule.next_run_time else ""
        lines.append(f"schedule {schedule.display_name}: {schedule.cron}, {state}{following}")
    for run in found.runs:
        state = _State(run.state).name.removeprefix("PIPELINE_STATE_").lower()
        lines.append(f"run {_id(run)}: {state}, started {_utc(run.create_time)}")
        failures = found.failures.get(_id(run), [])
        lines += [f"  {failure.step}: {_why(failure)}" for failure in failures]
        if run.error.message and not failures:
            lines.append(f"  {_one_line(run.error.message)}")
    return "\n".join(re.sub(r"[^\x20-\x7e\x80-\U0010ffff]", "?", line) for line in lines) or "no schedules, no runs"


def _why(failure: Failure) -> str:
    if failure.rules:
        return f"the snapshot breaks {', '.join(failure.rules)}; report {failure.report}"
    return _one_line(failure.said) or "Vertex gives no reason"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]


def as_json(found: Status) -> dict:
    """The status for machines."""
    return {
        "schedules": [
            {
                "name": schedule.name, "display_name": schedule.display_name, "cron": schedule.cron,
                "state": v1.Schedule.State(schedule.state).name,
                "next": schedule.next_run_time.isoformat() if schedule.next_run_time else None,
            }
            for schedule in found.schedules
        ],
        "runs": [
            {
                "run_id": _id(run), "state": _State(run.state).name, "labels": dict(run.labels),
                "created": run.create_time.isoformat() if run.create_time else None, "error": run.error.message,
                "failed": [dataclasses.asdict(failure) for failure in found.failures.get(_id(run), [])],
            }
            for run in found.runs
        ],
    }  # fmt: skip


def _id(run: v1.PipelineJob) -> str:
    return run.name.rpartition("/")[2]


def _utc(instant) -> str:
    return f"{instant.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC" if instant else "never"
