"""`python -m pipeline audit`: the questions of an auditor, each one command."""

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
from collections.abc import Callable, Iterator

from pipeline import files, storage
from pipeline.errors import PipelineError
from pipeline.lineage import opening
from pipeline.places import Places


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command lines."""
    questions = parser.add_subparsers(dest="question", required=True, metavar="QUESTION")
    shared = argparse.ArgumentParser(add_help=False)
    opening.add_arguments(shared)
    shared.add_argument("--json", action="store_true", help="everything that is known, for machines")

    def question(name: str, answer, about: str) -> argparse.ArgumentParser:
        added = questions.add_parser(name, parents=[shared], help=about, description=about)
        added.set_defaults(answer=answer)
        return added

    serving = question("serving", _serving, "which runs served on a day, and what went into them")
    serving.add_argument("--on", required=True, metavar="YYYY-MM-DD", help="the day")
    serving.add_argument("--at", metavar="TIME", help="14:00 (that minute), 14:00:30 (that second), 14:00+01:00")
    serving.add_argument("--zone", default="UTC", help="time zone of day and time, such as Europe/Berlin (default: UTC)")
    serving.add_argument("--endpoint", metavar="NAME", help="only what served there (default: every endpoint)")

    run = question("run", _run, "one run, every step of it, and why it ended early if it did")
    run.add_argument("run_id", metavar="RUN_ID", help="the run")

    verify = question("verify", _verify, "is all that a run recorded still there, and as it was?")
    verify.add_argument("target", metavar="RUN_ID|MODEL_DIR", help="a run, or the SavedModel that it made")
    verify.add_argument(
        "--skip",
        default="",
        metavar="PART[,PART...]",
        help="leave out: records, snapshot, shards, labels, gate, training, export, provenance, ledger",
    )
    verify.add_argument("--public-key", metavar="FILE", help="verify the signatures of `audit sign` too, with this key")

    diff = question("diff", _diff, "what differs between two runs, and nothing else")
    diff.add_argument("run_a", metavar="RUN_A", help="the earlier run")
    diff.add_argument("run_b", metavar="RUN_B", help="the later run")
    diff.add_argument("--ids", action="store_true", help="every image whose label was added, removed or changed, by its id")

    image = question("image", _image, "which snapshots, runs and models used a photograph, with which label, in which split")
    image.add_argument("image_id", metavar="IMAGE_ID", help="the photograph")

    snapshot = question("snapshot", _snapshot, "which runs and models used a label snapshot, and when they served")
    snapshot.add_argument("table", metavar="TABLE", help="the snapshot, such as labels_20260302")

    report = question("report", _report, "one HTML file about a run: lineage graph, timeline of serving, every fact")
    report.add_argument("run_id", metavar="RUN_ID", help="the run")
    report.add_argument("--html", required=True, metavar="FILE", help="where it goes; a former report is replaced")
    report.add_argument("--verify", action="store_true", help="with what `verify` finds")

    export = question("export", _export, "provenance statement, bill of materials and lineage events of a run, as files")
    export.add_argument("run_id", metavar="RUN_ID", help="the run")
    export.add_argument(
        "--to", metavar="DIR", help="where they go; a former export is replaced (default: exports/RUN_ID in the store)"
    )

    sign = question("sign", _sign, "sign a model that the lineage knows, and its provenance statement, with a key")
    sign.add_argument("target", metavar="RUN_ID|MODEL_DIR", help="a run that pushed a model, or the SavedModel that it made")
    sign.add_argument("--key", required=True, metavar="FILE", help="the private key: an elliptic-curve key in PEM")


def audit(options: argparse.Namespace) -> int:
    """Answers the command; returns the exit status."""
    # The answers are imported when they are asked for: `python -m pipeline plan` needs none of them.
    return options.answer(options, opening.places(options))


def _serving(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import audit, facts, moment, text, timeline

    span = moment.span(options.on, options.at, options.zone)
    store = opening.lineage(options, places)
    known = timeline.read(store, places.ledger)
    answers = audit.serving(store, known, span, options.endpoint)
    if options.json:
        _print_json(
            {
                "from": facts.instant(span.start),
                "to": facts.instant(span.end),
                "problems": list(known.problems),
                "served": [
                    {
                        **(facts.to_dict(served.facts) if served.facts else {"run_id": served.interval.run_id}),
                        "serving": audit.interval_as_json(served.interval),
                    }
                    for served in answers
                ],
            }
        )
    else:
        print(text.of_serving(span, answers, known.problems))
    return 0


def _run(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import audit, facts, text, timeline

    store = opening.lineage(options, places)
    run = store.run(options.run_id)
    known = timeline.read(store, places.ledger)
    found = facts.of_run(run)
    if options.json:
        _print_json(
            {
                **facts.to_dict(found),
                "serving": [audit.interval_as_json(interval) for interval in known.of_run(run.run_id)],
                "steps": audit.steps_as_json(run),
                "problems": list(known.problems),
            }
        )
    else:
        print(text.of_run(run, found, known))
    return 0


def _verify(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import facts, text, timeline, verify

    skip = tuple(part.strip() for part in options.skip.split(",") if part.strip())
    unknown = [part for part in skip if part not in verify.PARTS]
    if unknown:
        raise PipelineError(f"--skip names {', '.join(map(repr, unknown))}: the parts are {', '.join(verify.PARTS)}")
    store = opening.lineage(options, places)
    run, model = _run_and_model(store, options.target)
    found = facts.of_run(run)
    checks = [verify.model(found, model)] if model else []
    checks += verify.verify(run, found, timeline.read(store, places.ledger), places, skip)
    if options.public_key:
        checks += _signatures(run, model, options.public_key)
    bad = [check for check in checks if check.status in verify.BAD]
    if options.json:
        _print_json({"run_id": run.run_id, "intact": not bad, "checks": [dataclasses.asdict(check) for check in checks]})
    else:
        print(text.of_checks(run.run_id, checks))
    return 1 if bad else 0


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What the system refuses as a sentence."""
    try:
        yield
    except OSError as error:
        raise PipelineError(f"{what}: {error.filename or 'a file'}: {error.strerror or error}") from error


def _run_and_model(store, target: str):
    """The run that is meant, and the SavedModel's folder when one was named."""
    from pipeline.lineage import verify

    if "/" in target or os.path.isdir(target):
        run_id, model = verify.run_of_model(store, target)
        return store.run(run_id), model
    return store.run(target), None


def _signatures(run, model: str | None, public_key: str) -> list:
    from pipeline.provenance import beside, signing

    push = beside.pushed(run)
    if not push and not model:
        signing.verifier(public_key)
        raise PipelineError(
            f"run {run.run_id} pushed no model, so nothing of it is signed: name a model's folder, or leave out --public-key"
        )
    pushed_here = push is not None and model in (None, push.model)
    return signing.checks(model or push.model, public_key, pushed_here and push.statement_sha256 is not None)


def _export(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import facts
    from pipeline.provenance import export

    run = opening.lineage(options, places).run(options.run_id)
    with _told(f"the export of run {run.run_id} cannot be made"):
        done = export.write(run, facts.of_run(run), options.to or os.path.join(places.store, "exports", run.run_id))
    if options.json:
        _print_json(dataclasses.asdict(done))
    else:
        print(f"Export of run {done.run_id}\n  to  {done.folder}")
        for name, digest in done.sha256.items():
            print(f"  {digest}  {name}")
        for note in done.notes:
            print(f"note: {note}")
    return 0


def _sign(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import facts
    from pipeline.provenance import signing

    run, model = _run_and_model(opening.lineage(options, places), options.target)
    with _told(f"the model of run {run.run_id} cannot be signed"):
        made = signing.sign_model(run, facts.of_run(run), model, options.key)
    if options.json:
        _print_json({"run_id": run.run_id, "signatures": made})
    else:
        print("\n".join(f"written {place}" for place in made))
    return 0


def _diff(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import diff, facts, text

    store = opening.lineage(options, places)
    before, after = store.run(options.run_a), store.run(options.run_b)
    old, new = facts.of_run(before), facts.of_run(after)
    changes = diff.of_labels(before, after, old, new, places, options.ids)
    differences = diff.of_facts(old, new)
    if options.json:
        _print_json(
            {
                "before": before.run_id,
                "after": after.run_id,
                "labels": dataclasses.asdict(changes),
                "differences": [dataclasses.asdict(difference) for difference in differences],
            }
        )
    else:
        print(text.of_diff(before.run_id, after.run_id, differences, changes))
    return 0


def _image(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import forward, text

    return _uses(
        options, places, lambda store, known: forward.of_image(store, known, places, options.image_id), text.of_image
    )  # fmt: skip


def _snapshot(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import forward, text

    return _uses(options, places, lambda store, known: forward.of_snapshot(store, known, options.table), text.of_snapshot)


def _uses(options: argparse.Namespace, places: Places, ask: Callable, tell: Callable) -> int:
    """Answers what used something: `ask` gets the lineage and the timeline, `tell` makes text of what it gives."""
    from pipeline.lineage import timeline

    store = opening.lineage(options, places)
    known = timeline.read(store, places.ledger)
    used = ask(store, known)
    if options.json:
        _print_json({**dataclasses.asdict(used), "problems": list(known.problems)})
    else:
        print(tell(used, known.problems))
    return 0


def _report(options: argparse.Namespace, places: Places) -> int:
    from pipeline.lineage import facts, report, timeline, verify

    store = opening.lineage(options, places)
    run = store.run(options.run_id)
    found, known = facts.of_run(run), timeline.read(store, places.ledger)
    checks = verify.verify(run, found, known, places) if options.verify else None
    now = datetime.datetime.now(datetime.timezone.utc)
    page = report.page(run, found, known, checks, now, storage.absolute(places.store))
    report.write(options.html, page)
    digest = files.sha256(page.encode())
    bad = sum(check.status in verify.BAD for check in checks or ())
    if options.json:
        _print_json({"run_id": run.run_id, "html": os.path.abspath(options.html), "sha256": digest, "bad": bad})
    else:
        print(f"written {options.html}, sha256 {digest}")
        if bad:
            print(f"{bad} things are not as recorded: see the page, or ask verify")
    return 1 if bad else 0


def _print_json(answer) -> None:
    # An instant is the only thing in an answer that JSON does not know.
    print(json.dumps(answer, indent=2, ensure_ascii=False, default=lambda instant: instant.isoformat(timespec="seconds")))
