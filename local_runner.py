"""The weekly retrain on this machine: from labels and photographs to a model that serves.

    python local_runner.py --snapshot-date 2026-03-02

Reads data/sample unless --data names another folder, which must hold

    images/       JPEG files, at any depth; a file's name without its ending is the image id
    labels.csv    the label edits: image_id, product_id, label, source, updated_at
    schema/       optional: schema.pbtxt (the classes), gate.yaml (the limits of a week) and release.yaml (the thresholds of a
                  model); else the project's own

Everything that a run leaves behind is under --store. Exit status: 0 done; 1 something a person can mend;
2 settings or a command line that cannot be used; 3 the snapshot was rejected; 4 another run holds the store; 130 interrupted.
"""

import argparse
import contextlib
import logging
import os
import pathlib
import sys
import traceback
import warnings

from pipeline.places import DEFAULT_STORE
from pipeline.start import add_override, instant_to_come, override_of, require_whole_override

ROOT = pathlib.Path(__file__).resolve().parent


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        prog="local_runner.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--snapshot-date",
        required=True,
        metavar="YYYY-MM-DD",
        help="the week to train on: label edits from before that day (UTC). In the sample the good weeks are "
        "2026-03-02, 03-09, 03-16, 03-23 and 04-06; 2026-03-30 is a bad one",
    )
    parser.add_argument(
        "--data", default=str(ROOT / "data" / "sample"), metavar="DIR", help="photographs and labels (default: data/sample)"
    )
    parser.add_argument(
        "--settings",
        default=str(ROOT / "pipeline" / "configs" / "local.yaml"),
        metavar="FILE",
        help="settings of the pipeline (default: pipeline/configs/local.yaml)",
    )
    parser.add_argument(
        "--store", default=DEFAULT_STORE, metavar="DIR", help="where runs leave their things (default: store)"
    )
    parser.add_argument(
        "--thresholds",
        metavar="FILE",
        help="what a model must reach before it serves (default: release.yaml beside the schema, or the project's own)",
    )
    parser.add_argument("--tune", action="store_true", help="search for hyperparameters first, with the budget of the settings")
    parser.add_argument(
        "--verify-ranking",
        type=int,
        metavar="K",
        help="after the run, train the best K trials of its search in full, and say how well the tuning sample ranked them; "
        "K is 3 or more, and it takes as many trainings less one",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes that train together on this machine, 1 to 4 (default: training.workers of the settings)",
    )
    add_override(parser)
    parser.add_argument(
        "--window-end",
        type=instant_to_come,
        metavar="INSTANT",
        help="when the run must be done, such as 2026-03-03T06:00+01:00: a search and the training stop in time, with the best "
        "trial and the best weights so far",
    )
    options = parser.parse_args(arguments)
    require_whole_override(parser, options)
    if options.verify_ranking is not None and options.window_end:
        parser.error(
            "--verify-ranking trains on after the run, past --window-end: drop one, or ask later by "
            "python -m pipeline tune verify-ranking RUN_ID K"
        )
    return options


def main(arguments: list[str] | None = None) -> int:
    """Runs the pipeline once; returns the exit status."""
    options = parse(arguments)
    # Before anything slow is imported: mistakes on the command line and in files answer at once.
    from pipeline import errors

    try:
        return _run(options)
    except KeyboardInterrupt:
        print(
            "\ninterrupted. What was pushed goes on serving; run the same command again to retrain this week.",
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        known = errors.user_error(error)
        if known is None:
            traceback.print_exc()
            print(f"\nThis is a defect of the pipeline, not of yours. The log is under {options.store}/logs.", file=sys.stderr)
            return 1
        print(f"\nerror: {known}", file=sys.stderr)
        return known.exit_status


def _run(options: argparse.Namespace) -> int:
    from pipeline import console, errors, origin, settings, store, typed
    from pipeline.evaluation.thresholds import Thresholds
    from pipeline.places import Places
    from pipeline.start import Start
    from pipeline.tuning import decision as tuning
    from pipeline.validation.facts import read_classes
    from pipeline.validation.rules import Limits
    from pipeline.warehouse.base import parse_date

    date = str(parse_date(options.snapshot_date))
    data = pathlib.Path(options.data).resolve()
    schema = data / "schema" if (data / "schema").is_dir() else ROOT / "schema"
    places = Places(
        store=str(pathlib.Path(options.store).resolve()),
        images=str(data / "images"),
        labels=str(data / "labels.csv"),
        schema=str(schema),
    )
    config = settings.load(options.settings)
    if options.workers is not None:
        config = settings.with_workers(config, options.workers)
    limits = typed.load(Limits, schema / "gate.yaml")
    # Data of one's own may come without: what a model must reach is no matter of its classes.
    own = schema / "release.yaml"
    thresholds = typed.load(Thresholds, options.thresholds or (own if own.exists() else ROOT / "schema" / "release.yaml"))
    override = override_of(options)
    # For their errors, which need not wait for the step that meets them.
    read_classes(schema / "schema.pbtxt")
    if not (data / "images").is_dir():
        raise errors.PipelineError(
            f"there is no folder of photographs {data / 'images'}: name the folder that holds images/ by --data"
        )
    if config.warehouse.kind == "duckdb" and not (data / "labels.csv").is_file():
        raise errors.PipelineError(
            f"there is no label table {data / 'labels.csv'}: name the folder that holds labels.csv by --data"
        )
    # Only so that a week that cannot search is refused now and not after the gate: the step TuningDecision decides.
    decision = tuning.for_week(date, options.tune, config.retune, places.configurations, places.quality)
    if decision.tune:
        _require_vizier(decision.reason)
    if options.verify_ranking is not None:
        _require_ranking(options.verify_ranking, decision, config.tuning.trials)

    run_id = store.new_run_id(date)
    log = places.log(run_id)
    progress = console.Progress()
    with (
        _told_to_catalogs(config.lineage.openlineage, places, run_id),
        store.interruptible(),
        store.exclusive(places, run_id),
        console.quiet_logs(log, progress),
        console.stderr_in_log(log),
    ):
        print(f"Run {run_id}\n  data   {data}\n  store  {places.store}\n  log    {log}", flush=True)
        try:
            progress.begin("loading TFX and TensorFlow")
            # Read by TensorFlow when it is imported: Keras 2, as the network and TFMA want it.
            os.environ["TF_USE_LEGACY_KERAS"] = "1"
            from models.training import set_threads
            from pipeline import local, summary
            from pipeline.pipeline import create_pipeline, on_this_machine

            # Now, because the steps before the training use TensorFlow too.
            set_threads(config.training.intra_op_threads, config.training.inter_op_threads)
            progress.end()
            start = Start(
                run_id,
                date,
                override=override,
                window_end=options.window_end.isoformat() if options.window_end else "",
            )
            pipeline = create_pipeline(
                config, limits, thresholds, places, origin.discover(), start, options.tune, on_this_machine(places)
            )
            local.ProgressDagRunner(run_id, progress).run(pipeline)
        except BaseException:
            progress.close_line()
            logging.getLogger(__name__).info("the run ended early", exc_info=True)
            raise
    print(summary.of_run(places, run_id))
    if options.verify_ranking is None:
        return 0
    # Late: what it needs is loaded by now.
    from pipeline.tuning.verify import verify_ranking

    print(flush=True)
    return verify_ranking(
        argparse.Namespace(run_id=run_id, trials=options.verify_ranking, to=None, store=places.store)
    )


def _require_ranking(count: int, decision, trials: int) -> None:
    from pipeline import errors
    from pipeline.tuning import ranking

    ranking.require_possible(count, trials)
    if not decision.tune:
        raise errors.PipelineError(
            f"--verify-ranking {count} checks a search, and this week does not search ({decision.reason}): add --tune, or name a "
            f"run that searched: python -m pipeline tune verify-ranking RUN_ID {count}"
        )


@contextlib.contextmanager
def _told_to_catalogs(wanted: bool, places, run_id: str):
    """Writes the run's OpenLineage events when it ended, however it did; what hinders that changes nothing of its end."""
    from pipeline import errors

    try:
        yield
    except errors.StoreBusy:
        wanted = False  # it never began
        raise
    finally:
        if wanted:
            from pipeline.lineage import facts
            from pipeline.lineage.mlmd import MLMDLineage
            from pipeline.provenance import events

            try:
                run = MLMDLineage(places.metadata).run(run_id)
                events.emit(run, facts.of_run(run), places.openlineage(run_id))
            except (errors.PipelineError, OSError) as error:
                print(f"warning: the OpenLineage events of {run_id} were not written: {error}", file=sys.stderr)


def _require_vizier(reason: str) -> None:
    from pipeline import errors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        from pipeline.vizier import local
    try:
        local.require_environment()
    except errors.PipelineError as error:
        raise errors.PipelineError(f"this week searches for hyperparameters ({reason}), and {error}") from error


if __name__ == "__main__":
    sys.exit(main())
