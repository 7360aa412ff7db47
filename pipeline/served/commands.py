"""`python -m pipeline drift`: compares a sample of requests with what the model that serves was trained and judged on.

TensorFlow is loaded only once it is certain that there is something to ask, and somebody to be asked.
"""

import argparse
import datetime
import json
import os
import sys
import warnings

from pipeline import files, storage, typed
from pipeline.errors import PipelineError
from pipeline.places import DEFAULT_STORE, PRODUCTION, SCHEMA, Places

DRIFTED = 3
"""Exit status when a rule failed: as that of a snapshot which the gate rejects."""

_FILE = "served.yaml"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command line."""
    parser.add_argument(
        "source",
        metavar="REQUESTS",
        help="a log of requests (.jsonl), or a folder or gs:// prefix of such logs or of new photographs (.jpg)",
    )
    parser.add_argument("--store", default=DEFAULT_STORE, metavar="DIR", help="where runs left their things (default: store)")
    parser.add_argument("--endpoint", default="default", help="endpoint of the serving ledger (default: default)")
    parser.add_argument(
        "--limits", metavar="FILE", help="how far requests may drift (default: schema/served.yaml, and for a store in Cloud "
        "Storage schema/production/served.yaml)",
    )  # fmt: skip
    parser.add_argument("--most", type=_count, default=2000, metavar="N", help="photographs that are drawn (default: 2000)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the draw (default: 0)")
    parser.add_argument("--json", action="store_true", help="everything that is known, for machines")


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of photographs, 1 or more")
    return number


def drift(options: argparse.Namespace) -> int:
    """Answers the command; returns the exit status. Raises PipelineError."""
    from pipeline.served import baseline, requests
    from pipeline.served.rules import ServedLimits

    places = Places(store=storage.absolute(options.store))
    own = (PRODUCTION if storage.is_cloud(places.store) else SCHEMA) / _FILE
    limits = typed.load(ServedLimits, options.limits or own)
    known = baseline.find(places, options.endpoint)
    sample = requests.draw(options.source, options.most, options.seed)
    asked = len(sample.places)
    if asked < limits.min_images:
        raise PipelineError(
            f"{sample.source} has {sample.found} photographs, and {asked} were drawn: min_images in {options.limits or own} is "
            f"{limits.min_images}, because with fewer chance decides. Take more requests, or a larger --most"
        )
    entry = known.entry
    asked_whom = f"version {entry.to_version} of run {entry.run_id} ({entry.snapshot})"
    print(f"{asked_whom} is asked about {asked} of {sample.found} photographs", file=sys.stderr, flush=True)
    content, page = _judged(options, places, known, sample, limits)
    now = datetime.datetime.now(datetime.timezone.utc)
    name = storage.join(places.reports(entry.run_id), f"drift-{now:%Y%m%dT%H%M%SZ}")
    content |= {"at": now.isoformat(timespec="seconds"), "report": f"{name}.html"}
    try:
        storage.write(f"{name}.json", files.to_json(content).encode())
        storage.write(f"{name}.html", page.encode())
    except OSError as error:
        raise PipelineError(f"cannot write the report {name}.html: {error.strerror}") from error
    if options.json:
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        from pipeline.served import report

        print(report.as_text(content))
    return DRIFTED if content["drifted"] else 0


def _judged(options, places: Places, known, sample, limits) -> tuple[dict, str]:
    """The report as plain data and as a page."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        from pipeline.served import asking, report, rules, statistics
        from pipeline.validation import histograms

    with storage.on_disk(known.entry.path) as model:
        observed = asking.ask(model, sample.read(), known.shards, known.classes)
    before, now, divergences = histograms.of_statistics(known.statistics), {}, {}
    if observed.predictions.images:
        measured = statistics.of(observed.sizes)
        now = histograms.of_statistics(measured)
        divergences = histograms.divergences(measured, known.statistics)
    facts = rules.Facts(observed.predictions, known.predictions, observed.unusable, divergences)
    content = report.content(known, sample, options.seed, facts, rules.judge(facts, limits), limits, now, before)
    return content, report.page(content, facts, now, before)
