"""Schedules of pipeline jobs: when the fake's clock passes their times, they start runs."""

import datetime

from google.cloud.aiplatform_v1 import types

from tests.cloud.vertex import listing, names
from tests.cloud.vertex.cron import Cron
from tests.cloud.vertex.metadata import merge
from tests.cloud.vertex.pipelines import Pipelines
from tests.cloud.vertex.refusals import Code, Refused, invalid, unsupported, untimely
from tests.cloud.vertex.state import State

Phase = types.Schedule.State


class Schedules:
    """The calls of ScheduleService.

    Args:
        state: What the fake shares.
        pipelines: What runs the jobs.
    """

    def __init__(self, state: State, pipelines: Pipelines):
        self._state, self._pipelines = state, pipelines
        self._schedules: dict[str, types.Schedule] = {}
        self._started: dict[str, list[str]] = {}
        self._queued: dict[str, list[datetime.datetime]] = {}
        self._missed: dict[str, list[datetime.datetime]] = {}
        self._alarms: dict[str, int] = {}

    # --- ScheduleService ---

    def create_schedule(self, request: types.CreateScheduleRequest) -> types.Schedule:
        schedule = types.Schedule(request.schedule)
        schedule.name = f"{request.parent}/schedules/{names.new_number()}"
        self._check(schedule)
        now = self._state.clock.now()
        schedule.state = Phase.ACTIVE
        schedule.create_time = schedule.update_time = now
        schedule.start_time = schedule.start_time or now
        schedule.catch_up = False
        schedule.started_run_count = 0
        with self._state.changed:
            self._schedules[schedule.name] = schedule
            self._started[schedule.name], self._queued[schedule.name], self._missed[schedule.name] = [], [], []
            self._set_next(schedule, max(now, schedule.start_time - datetime.timedelta(microseconds=1)))
            return types.Schedule(schedule)

    def get_schedule(self, request: types.GetScheduleRequest) -> types.Schedule:
        with self._state.changed:
            return types.Schedule(self._find(request.name))

    def list_schedules(self, request: types.ListSchedulesRequest) -> types.ListSchedulesResponse:
        with self._state.changed:
            ours = [each for name, each in self._schedules.items() if name.startswith(f"{request.parent}/")]
            schedules = [types.Schedule(each) for each in ours]
            found, token = listing.page(schedules, request)
            return types.ListSchedulesResponse(schedules=found, next_page_token=token)

    def update_schedule(self, request: types.UpdateScheduleRequest) -> types.Schedule:
        with self._state.changed:
            schedule = self._find(request.schedule.name)
            if schedule.state == Phase.COMPLETED:
                raise untimely(f"{schedule.name} is COMPLETED and cannot be updated")
            changed = types.Schedule(schedule)
            merge(request.schedule, changed, request.update_mask)
            self._check(changed)
            merge(request.schedule, schedule, request.update_mask)
            schedule.update_time = now = self._state.clock.now()
            if schedule.state == Phase.ACTIVE:
                self._set_next(schedule, max(now, schedule.start_time - datetime.timedelta(microseconds=1)))
            return types.Schedule(schedule)

    def pause_schedule(self, request: types.PauseScheduleRequest) -> None:
        with self._state.changed:
            schedule = self._find(request.name)
            if schedule.state != Phase.ACTIVE:
                raise untimely(f"{schedule.name} is {schedule.state.name} and cannot be paused")
            schedule.state = Phase.PAUSED
            schedule.last_pause_time = schedule.update_time = self._state.clock.now()

    def resume_schedule(self, request: types.ResumeScheduleRequest) -> None:
        with self._state.changed:
            schedule = self._find(request.name)
            if schedule.state != Phase.PAUSED:
                raise untimely(f"{schedule.name} is {schedule.state.name} and cannot be resumed")
            schedule.state, schedule.catch_up = Phase.ACTIVE, request.catch_up
            schedule.last_resume_time = schedule.update_time = now = self._state.clock.now()
            missed, self._missed[schedule.name] = self._missed[schedule.name], []
            self._set_next(schedule, now)
            for due in missed if request.catch_up else []:
                self._trigger(schedule, due)

    def delete_schedule(self, request: types.DeleteScheduleRequest):
        self._find(request.name)

        def delete():
            self._schedules.pop(request.name, None)

        return self._state.operations.start("DeleteSchedule", request.name, delete)

    # --- Time ---

    def _set_next(self, schedule: types.Schedule, after: datetime.datetime) -> None:
        """Puts the next run on the clock; what stood there for the schedule counts no more."""
        self._alarms[schedule.name] = number = self._alarms.get(schedule.name, 0) + 1
        due = Cron(schedule.cron).after(after)
        schedule.next_run_time = due
        if self._is_over(schedule, due):
            self._complete(schedule)
            return
        self._state.clock.at(due, lambda: self._ring(schedule.name, number, due))

    def _ring(self, name: str, number: int, due: datetime.datetime) -> None:
        with self._state.changed:
            schedule = self._schedules.get(name)
            if not schedule or self._alarms[name] != number or schedule.state == Phase.COMPLETED:
                return
            if schedule.state == Phase.PAUSED:
                self._missed[name].append(due)
            else:
                self._trigger(schedule, due)
            if schedule.state != Phase.COMPLETED:
                self._set_next(schedule, due)

    def _trigger(self, schedule: types.Schedule, due: datetime.datetime) -> None:
        """Starts a run, lets it wait, or leaves it out."""
        if not self._has_room(schedule):
            if schedule.allow_queueing or schedule.catch_up:
                self._queued[schedule.name].append(due)
            return
        self._start(schedule, due)

    def start_queued(self) -> None:
        """Starts the runs that waited for others to end."""
        with self._state.changed:
            for name, waiting in self._queued.items():
                schedule = self._schedules.get(name)
                while waiting and schedule and schedule.state != Phase.PAUSED and self._has_room(schedule):
                    self._start(schedule, waiting.pop(0))

    def _start(self, schedule: types.Schedule, due: datetime.datetime) -> None:
        request = types.CreatePipelineJobRequest(schedule.create_pipeline_job_request)
        if request.pipeline_job_id:
            request.pipeline_job_id = f"{request.pipeline_job_id}-{due:%Y%m%d%H%M%S}"
        else:
            pipeline = request.pipeline_job.pipeline_spec["pipelineInfo"]["name"]
            request.pipeline_job_id = f"{pipeline}-{due:%Y%m%d%H%M%S}"
        response = "OK"
        try:
            job = self._pipelines.create_pipeline_job(request, schedule.name, due, self.start_queued)
            self._started[schedule.name].append(job.name)
            schedule.started_run_count += 1
        except Refused as refused:
            response = f"{refused.code.name}: {refused}"
        schedule.last_scheduled_run_response = {"scheduled_run_time": due, "run_response": response}
        if schedule.max_run_count and schedule.started_run_count >= schedule.max_run_count:
            self._complete(schedule)

    def _complete(self, schedule: types.Schedule) -> None:
        schedule.state = Phase.COMPLETED
        schedule.next_run_time = None

    # --- Rules ---

    def _find(self, name: str) -> types.Schedule:
        if name not in self._schedules:
            raise Refused(Code.NOT_FOUND, f"The Schedule {name!r} does not exist.")
        return self._schedules[name]

    def _has_room(self, schedule: types.Schedule) -> bool:
        active = sum(self._pipelines.is_active(name) for name in self._started[schedule.name])
        most = schedule.max_concurrent_active_run_count
        return not most or active < most

    def _is_over(self, schedule: types.Schedule, due: datetime.datetime) -> bool:
        return bool(schedule.end_time) and due > schedule.end_time

    def _check(self, schedule: types.Schedule) -> None:
        names.check_display_name(schedule.display_name)
        if schedule.create_notebook_execution_job_request:
            raise unsupported("create_notebook_execution_job_request")
        if not schedule.cron:
            raise invalid("cron is missing")
        Cron(schedule.cron)
        if schedule.max_concurrent_run_count < 1:
            raise invalid(f"max_concurrent_run_count must be at least 1 and is {schedule.max_concurrent_run_count}")
        for field in ("max_run_count", "max_concurrent_active_run_count"):
            if getattr(schedule, field) < 0:
                raise invalid(f"{field} must not be negative and is {getattr(schedule, field)}")
        parent = names.numbered(schedule.create_pipeline_job_request.parent)
        if parent != "/".join(schedule.name.split("/")[:4]):
            raise invalid(f"create_pipeline_job_request.parent must be the schedule's own and is {parent!r}")
        self._pipelines.check(schedule.create_pipeline_job_request)
