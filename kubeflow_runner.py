"""The weekly retrain on Vertex AI: the same pipeline as local_runner.py's, compiled, started, scheduled.

    python kubeflow_runner.py compile --settings FILE --image IMAGE@sha256:DIGEST --output weekly.json
    python kubeflow_runner.py submit --settings FILE --job weekly.json --snapshot-date 2026-03-02
    python kubeflow_runner.py schedule --settings FILE --job weekly.json
    python kubeflow_runner.py status --settings FILE

docs/vertex.md says what each needs. Exit status: 0 done; 1 something a person can mend; 2 settings or a command line that
cannot be used; 130 interrupted.
"""

import argparse
import datetime
import json
import os
import pathlib
import sys
import traceback
import warnings

from pipeline.start import add_override, instant_to_come, override_of, require_whole_override

def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="kubeflow_runner.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    settings = argparse.ArgumentParser(add_help=False)
    settings.add_argument(
        "--settings", required=True, metavar="FILE", help="settings with vertex; start from pipeline/configs/vertex.yaml"
    )
    planned = argparse.ArgumentParser(add_help=False)
    planned.add_argument("--job", required=True, metavar="FILE", help="what compile wrote, here or in Cloud Storage")
    planned.add_argument(
        "--profile",
        metavar="FILE",
        help="training.json that the window is planned with (default: that of the newest run in vertex.store)",
    )
    planned.add_argument(
        "--although-it-does-not-fit", action="store_true", help="start although the plan does not fit the window"
    )

    compiling = commands.add_parser("compile", parents=[settings], help="write the pipeline as Vertex takes it")
    compiling.add_argument("--image", required=True, metavar="IMAGE@sha256:DIGEST", help="the image of every step")
    compiling.add_argument("--output", required=True, metavar="FILE", help="where it goes")
    compiling.add_argument(
        "--limits", metavar="FILE", help="the limits of a week's labels (default: schema/production/gate.yaml)"
    )
    compiling.add_argument(
        "--thresholds", metavar="FILE", help="what a model must reach before it serves (default: schema/production/release.yaml)"
    )
    compiling.add_argument("--tune", action="store_true", help="search for hyperparameters first, as the monthly run does")

    submitting = commands.add_parser("submit", parents=[settings, planned], help="start one run")
    submitting.add_argument(
        "--snapshot-date", required=True, metavar="YYYY-MM-DD", help="the week to train on: label edits from before that day (UTC)"
    )
    submitting.add_argument(
        "--window-end", type=instant_to_come, metavar="INSTANT", help="when the run must be done, such as 2026-03-03T06:00+01:00 (default: "
        "vertex.window_hours after its start)",
    )  # fmt: skip
    add_override(submitting)

    commands.add_parser(
        "schedule", parents=[settings, planned], help="start it every week, or, compiled with --tune, every month"
    )

    telling = commands.add_parser("status", parents=[settings], help="schedules, the newest runs, and where one failed")
    telling.add_argument("--runs", type=int, default=10, metavar="N", help="how many runs, 1 to 100 (default: 10)")
    telling.add_argument("--json", action="store_true", help="for machines")

    options = parser.parse_args(arguments)
    if options.command == "status" and not 1 <= options.runs <= 100:
        parser.error(f"--runs {options.runs} must be 1 to 100")
    if options.command == "submit":
        require_whole_override(parser, options)
    return options


def main(arguments: list[str] | None = None) -> int:
    """Does one command; returns the exit status."""
    options = parse(arguments)
    # Google's libraries warn of what a later version will want; nobody who starts a run can do anything about it.
    warnings.filterwarnings("ignore")
    from pipeline import errors

    try:
        return _COMMANDS[options.command](options)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        known = errors.user_error(error)
        if known is None:
            traceback.print_exc()
            return 1
        print(f"error: {known}", file=sys.stderr)
        return known.exit_status


def _settings(options):
    from pipeline import settings
    from pipeline.errors import SettingsError

    config = settings.load(options.settings)
    if config.vertex is None:
        raise SettingsError(f"{options.settings} has no vertex: pipeline/configs/vertex.yaml shows what it holds")
    return config


def _compile(options) -> int:
    from pipeline import files, origin, typed
    from pipeline.errors import PipelineError
    from pipeline.evaluation.thresholds import Thresholds
    from pipeline.places import PRODUCTION
    from pipeline.validation.rules import Limits
    from pipeline.vertex.images import require_digest

    image = require_digest(options.image)
    config = _settings(options)
    # Never those of the sample data unless they are named: they would let nearly anything pass.
    limits = typed.load(Limits, options.limits or PRODUCTION / "gate.yaml")
    thresholds = typed.load(Thresholds, options.thresholds or PRODUCTION / "release.yaml")
    if not pathlib.Path(options.output).absolute().parent.is_dir():
        raise PipelineError(f"--output {options.output}: there is no such folder")
    # Loads TFX, so only once it is certain that there is something to compile.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    from pipeline.vertex.compile import compiled
    from pipeline.vertex.service import steps_of

    job = compiled(config, limits, thresholds, origin.discover(), image, options.tune)
    files.write_atomically(options.output, files.to_json(job))
    print(f"{options.output}: {len(steps_of(job))} steps of {config.name}, image {image}")
    return 0


def _planned(options, config) -> None:
    from pipeline.errors import PipelineError
    from pipeline.vertex import plan

    told, fits = plan.judge(config, options.profile)
    print(told)
    if not fits:
        if not options.although_it_does_not_fit:
            raise PipelineError(
                "nothing was started, because it would not fit. `python -m pipeline plan` compares ways to train; "
                "--although-it-does-not-fit starts it all the same, and training stops in time with the best it has"
            )
        print("started all the same, as --although-it-does-not-fit says")


def _submit(options) -> int:
    from pipeline.start import Start, date_and_window
    from pipeline.vertex import service

    config = _settings(options)
    override = override_of(options)
    end = options.window_end.isoformat() if options.window_end else ""
    date, _ = date_and_window(Start("", options.snapshot_date, window_end=end))
    compiled = service.read_compiled(options.job, config)
    _planned(options, config)
    vertex = service.connect(config.vertex)
    run_id = service.job_id(compiled.name, date, datetime.datetime.now(datetime.timezone.utc))
    run = service.submit(vertex, service.pipeline_job(compiled, config.vertex, date, override, end), run_id)
    print(f"started run {run.name.rpartition('/')[2]} on labels of before {date}, image {compiled.image}")
    return 0


def _schedule(options) -> int:
    from pipeline.vertex import service

    config = _settings(options)
    compiled = service.read_compiled(options.job, config)
    _planned(options, config)
    vertex = service.connect(config.vertex)
    schedule, new = service.put_schedule(vertex, service.schedule_of(compiled, vertex))
    print(f"schedule {schedule.display_name} is {'new' if new else 'up to date'}: {schedule.cron}, image {compiled.image}")
    return 0


def _status(options) -> int:
    from pipeline.vertex import service, status

    config = _settings(options)
    found = status.read(service.connect(config.vertex), config.name, options.runs)
    print(json.dumps(status.as_json(found), indent=2) if options.json else status.as_text(found))
    return 0


_COMMANDS = {"compile": _compile, "submit": _submit, "schedule": _schedule, "status": _status}


if __name__ == "__main__":
    sys.exit(main())
