"""What a store answers: to an auditor, to who asks its model, and to the next week's run."""

import contextlib
import dataclasses
import io
import json
import pathlib
from typing import Any

from pipeline import __main__ as commands
from pipeline.places import Places
from pipeline.release import ledger
from pipeline.settings import RetuneSettings
from pipeline.tuning import decision
from pipeline.validation import acceptance, histograms

NEXT_WEEK = "2026-03-16"


def of(folder: pathlib.Path) -> dict[str, Any]:
    """All of them, by the command or the decision.

    Args:
        folder: `data/` and `store/`, at the place where they were made.
    """
    places = Places(store=str(folder / "store"))
    runs = [entry.run_id for entry in ledger.read(places.ledger)]
    days = sorted({entry.at[:10] for entry in ledger.read(places.ledger)})
    questions = [
        *(["audit", "serving", "--on", day] for day in days),
        *(["audit", question, run] for question in ("run", "verify") for run in runs),
        ["audit", "diff", *runs, "--ids"],
        ["audit", "image", "p00"],
        ["audit", "snapshot", "labels_20260309"],
    ]
    asked = {" ".join(words): _json(words, places.store) for words in questions}
    return {"audit": asked, "next week": next_week(places), "probabilities": probabilities(folder)}


def _json(words: list[str], store: str) -> Any:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = commands.main([*words, "--json", "--store", store])
    return {"status": status, "says": json.loads(out.getvalue())}


def next_week(places: Places) -> dict[str, Any]:
    """What the run of the week after finds: the baseline of drift, the model to beat, and whether it tunes, with what."""
    accepted = acceptance.newest_before(places.accepted, NEXT_WEEK)
    retune = RetuneSettings(every_weeks=5, max_drop=1.0)
    return {
        "accepted": dataclasses.asdict(accepted),
        "statistics": {name: dataclasses.asdict(each) for name, each in histograms.read(accepted.statistics).items()},
        "serving": dataclasses.asdict(ledger.serving(places.ledger, "default")),
        "tuning": dataclasses.asdict(decision.for_week(NEXT_WEEK, False, retune, places.configurations, places.quality)),
    }


def probabilities(folder: pathlib.Path) -> dict[str, list[float]]:
    """What the model that serves says of some photographs, by its serving signature."""
    # Late: it loads TensorFlow.
    import tensorflow as tf

    entry = ledger.serving(Places(store=str(folder / "store")).ledger, "default")
    signature = tf.saved_model.load(entry.path).signatures["serving_default"]
    found = {}
    for path in sorted((folder / "data" / "images").iterdir())[:12]:
        answer = signature(bytes_inputs=tf.constant([path.read_bytes()]))
        found[path.name] = [float(each) for each in answer["probabilities"].numpy()[0]]
    return found
