"""The commands beside the runners: `python -m pipeline shard | plan | predict | drift | release | replay | tune | audit`."""

import argparse
import json
import os
import pathlib
import sys
import warnings

from pipeline import window
from pipeline.errors import PipelineError, user_error
from pipeline.lineage import commands as commands_of_audit
from pipeline.places import DEFAULT_STORE, Places
from pipeline.release import commands as commands_of_releases
from pipeline.served import commands as commands_of_drift
from pipeline.shards import commands as commands_of_shards


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m pipeline", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    store = argparse.ArgumentParser(add_help=False)
    store.add_argument("--store", default=DEFAULT_STORE, metavar="DIR", help="where runs left their things (default: store)")

    commands_of_shards.add_arguments(
        commands.add_parser("shard", help="pack photographs into image shards, prove them, or say what is packed")
    )

    window.add_arguments(commands.add_parser("plan", help="which hardware trains within the window, and for how much"))

    predict = commands.add_parser("predict", parents=[store], help="classify photographs with the model that serves")
    predict.add_argument("images", nargs="+", metavar="IMAGE", help="JPEG file")
    predict.add_argument("--endpoint", default="default", help="endpoint of the serving ledger (default: default)")

    commands_of_drift.add_arguments(
        commands.add_parser("drift", help="do requests still look like what the model that serves was trained on?")
    )

    commands_of_releases.add_arguments(
        commands.add_parser("release", help="what serves; roll back, or promote, with a reason")
    )

    replay = commands.add_parser("replay", parents=[store], help="train the model of a run again: are the weights the same?")
    replay.add_argument("run_id", metavar="RUN_ID", help="the run, as `audit serving` names it")
    replay.add_argument(
        "--to", metavar="DIR", help="where the new model goes: an empty or new folder, or a former replay of this run "
        "(default: replays/RUN_ID in the store)",
    )  # fmt: skip

    tune = commands.add_parser("tune", help="how searches for hyperparameters stand, and how well they rank")
    tune_questions = tune.add_subparsers(dest="question", required=True, metavar="QUESTION")
    status = tune_questions.add_parser("status", parents=[store], help="trials, best so far, what is left")
    status.add_argument("--study", metavar="NAME", help="one study, by its name or its beginning (default: all)")
    status.add_argument("--json", action="store_true", help="everything that is known, for machines")

    ranking = tune_questions.add_parser(
        "verify-ranking", parents=[store], help="train the best trials in full: did the tuning sample rank them well?"
    )
    ranking.add_argument("run_id", metavar="RUN_ID", help="a run that searched for hyperparameters and trained")
    ranking.add_argument("trials", metavar="K", type=int, help="how many of its best trials are trained, 3 or more")
    ranking.add_argument("--to", metavar="DIR", help="where records go (default: rankings/RUN_ID in the store)")

    audit = commands.add_parser("audit", help="what produced the model that served, and is all of it still there?")
    commands_of_audit.add_arguments(audit)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Answers one command; returns the exit status."""
    options = parse(arguments)
    try:
        status = _COMMANDS[options.command](options)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read the answer has seen enough (`| head`); Python must not flush the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        known = user_error(error)
        if known is None:
            raise
        print(f"error: {known}", file=sys.stderr)
        return known.exit_status


def _predict(options: argparse.Namespace) -> int:
    from pipeline.release import ledger

    entry = ledger.serving(Places(store=options.store).ledger, options.endpoint)
    if entry is None:
        raise PipelineError(
            f"nothing serves at endpoint {options.endpoint!r} of the store {options.store}: run the pipeline first, or "
            "name another store by --store"
        )
    if not pathlib.Path(entry.path).is_dir():
        raise PipelineError(
            f"the model that serves, {entry.path}, is not there: the serving ledger names it by the path that the store "
            "had when it was released; bring the store back to that place, or run the pipeline in this one"
        )
    # Loads TensorFlow, so only once it is certain that there is something to ask.
    from pipeline.predict import predict

    print(f"version {entry.to_version} of run {entry.run_id} ({entry.snapshot})", file=sys.stderr)
    failed = 0
    for answer in predict(entry.path, options.images):
        if answer.error:
            failed += 1
            print(f"{answer.path}: {answer.error}", file=sys.stderr)
        else:
            print(f"{answer.path}  {answer.label}  {answer.probability:.3f}")
    if failed:
        print(f"{failed} of {len(options.images)} files could not be classified", file=sys.stderr)
    return 1 if failed else 0


def _replay(options: argparse.Namespace) -> int:
    from pipeline.replay import replay

    return replay(options)


def _tune(options: argparse.Namespace) -> int:
    return {"status": _tune_status, "verify-ranking": _verify_ranking}[options.question](options)


def _verify_ranking(options: argparse.Namespace) -> int:
    from pipeline.tuning.verify import verify_ranking

    return verify_ranking(options)


def _tune_status(options: argparse.Namespace) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        from pipeline.tuning import status
    found = status.studies(Places(store=options.store), options.study)
    if options.json:
        print(json.dumps([status.as_json(each) for each in found], indent=2, ensure_ascii=False))
    else:
        print("\n\n".join(status.as_text(each) for each in found))
    return 0


_COMMANDS = {
    "shard": commands_of_shards.shard,
    "plan": window.plan,
    "predict": _predict,
    "drift": commands_of_drift.drift,
    "release": commands_of_releases.release,
    "replay": _replay,
    "tune": _tune,
    "audit": commands_of_audit.audit,
}


if __name__ == "__main__":
    sys.exit(main())
