"""Is everything that a run recorded still there, and as it was? Recomputes digests; changes nothing.

What stands in ML Metadata is taken for true, and everything else is held against it: files, warehouse, ledger. Where
code of an earlier time recorded no digest, that is said, never passed over.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.lineage import digests
from pipeline.lineage.base import DONE, Artifact, Execution, LineageStore, Run, same
from pipeline.lineage.facts import RunFacts
from pipeline.lineage.timeline import Timeline
from pipeline.lineage.warehouses import opened
from pipeline.places import Places
from pipeline.provenance import beside
from pipeline.shards import generations

INTACT, ALTERED, LOST, UNRECORDED, UNKNOWN, SKIPPED = "intact", "ALTERED", "LOST", "not recorded", "NOT CHECKED", "skipped"

BAD = (ALTERED, LOST, UNKNOWN)
"""What makes a verification fail."""

PARTS = ("records", "snapshot", "shards", "labels", "gate", "training", "export", "provenance", "ledger")
"""What is verified, in this order; each may be left out by its name."""

# Where TFX's Trainer puts the SavedModel in its artifact (tfx/utils/path_utils.py).
SERVING_MODEL = "Format-Serving"

_GRAPH = "saved_model.pb"
"""What every SavedModel has."""

_RECORDS = {
    "pipeline.RunManifest": "manifest.json",
    "pipeline.ImageShards": "generation.json",
    "pipeline.LabelSnapshot": "snapshot.json",
    "pipeline.ServingRelease": "release.json",
}
"""Artifact type -> the file beside it that says what its facts say."""


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was held against its record.

    Attributes:
        part: One of `PARTS`.
        what: What it is, with its place.
        status: `INTACT` and its like.
        detail: What is wrong; empty when nothing is.
    """

    part: str
    what: str
    status: str
    detail: str = ""


def verify(run: Run, facts: RunFacts, timeline: Timeline, places: Places, skip: tuple[str, ...] = ()) -> list[Check]:
    """Holds all that a run recorded against what is there now.

    Args:
        run: The run; what it did not reach is not checked.
        facts: Its facts.
        timeline: Lineage and ledger, for the ledger's problems.
        places: The store.
        skip: Parts that are left out.

    Returns:
        The checks, in the order of `PARTS`.
    """
    checks: dict[str, Callable[[], Iterator[Check]]] = {
        "records": lambda: _records(run),
        "snapshot": lambda: _snapshot(run, facts, places),
        "shards": lambda: _shards(facts),
        "labels": lambda: _labels(run, facts),
        "gate": lambda: _gate(run, facts, places),
        "training": lambda: _training(run, facts),
        "export": lambda: _export(run, facts),
        "provenance": lambda: _provenance(run),
        "ledger": lambda: _ledger(facts, timeline, places),
    }
    found: list[Check] = []
    for part in PARTS:
        found += [Check(part, "left out by --skip", SKIPPED)] if part in skip else checks[part]()
    return found


def run_of_model(store: LineageStore, folder: str) -> tuple[str, str]:
    """The run that made a SavedModel.

    Args:
        store: The lineage.
        folder: The SavedModel's folder, or a Trainer's artifact that holds it.

    Returns:
        The id of the newest run that recorded this digest and released it at this path, else that recorded this digest (a run
        that is repeated makes the same files), else that released a model at this path; and the SavedModel's folder.

    Raises:
        PipelineError: There is no such folder, or no run of this store made what is in it.
    """
    folder = storage.absolute(folder)
    inner = storage.join(folder, SERVING_MODEL)
    folder = inner if storage.exists(storage.join(inner, _GRAPH)) else folder
    released = [release.run_id for release in store.releases() if storage.absolute(release.path) == folder]
    # A folder of something else may be as large as a disk.
    if not storage.exists(storage.join(folder, _GRAPH)):
        if released:
            return released[-1], folder
        raise PipelineError(f"{folder} is no model, it holds no {_GRAPH}: name the folder of a SavedModel, or a run id")
    digest = digests.of_folder(folder)
    made = [use.run_id for use in store.uses("pipeline.ServingRelease", "export_sha256", [digest])]
    for candidates in ([run_id for run_id in made if run_id in released], made, released):
        if candidates:
            return candidates[-1], folder
    raise PipelineError(
        f"no run of this store recorded a model with the digest {digest} of {folder}, or released one there: it was altered, "
        "made elsewhere, or by a run of a time when the digest was not recorded"
    )


def model(facts: RunFacts, folder: str) -> Check:
    """Holds the files of a SavedModel, wherever they are, against what the run recorded."""
    recorded = facts.release.export_sha256 if facts.release else None
    return _digest("export", f"model {folder}", recorded, digests.of_folder, folder)


def file(part: str, what: str, recorded: str | None, uri: str) -> Check:
    """Holds a file against the digest that was recorded of it."""
    return _digest(part, what, recorded, digests.of_file, uri)


def _digest(part: str, what: str, recorded: str | None, compute: Callable[[str], str], uri: str) -> Check:
    try:
        found = compute(uri)
    except FileNotFoundError:
        return Check(part, what, LOST, "it is not there" if recorded else "it is not there, and its digest was not recorded")
    except OSError as error:
        return Check(part, what, UNKNOWN, f"it cannot be read: {error.strerror or error}")
    except (ValueError, KeyError) as error:  # pyarrow's, of a damaged Parquet file
        return Check(part, what, ALTERED, f"it is damaged: {error}")
    if not recorded:
        return Check(part, what, UNRECORDED, f"sha256 {found} now")
    if found != recorded:
        return Check(part, what, ALTERED, f"sha256 {recorded} was recorded, {found} is there")
    return Check(part, what, INTACT)


def _records(run: Run) -> Iterator[Check]:
    for type_name, name in _RECORDS.items():
        artifact = run.output(type_name)
        if artifact is None:
            continue
        uri = storage.join(artifact.uri, name)
        what = f"{type_name.removeprefix('pipeline.')} {uri}"
        content = _read_json("records", what, uri)
        if isinstance(content, Check):
            yield content
            continue
        differing = sorted(key for key, value in content.items() if not same(artifact.facts.get(key), _as_fact(value)))
        detail = f"not what the lineage recorded: {', '.join(differing)}" if differing else ""
        yield Check("records", what, ALTERED if differing else INTACT, detail)


def _as_fact(value):
    """A value of a JSON file as `components.facts.record` keeps it; the settings, which are a tree there, as their text."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return value if isinstance(value, (int, float)) else str(value)


def _read_json(part: str, what: str, uri: str) -> dict | Check:
    try:
        content = json.loads(storage.read(uri))
    except FileNotFoundError:
        return Check(part, what, LOST, "it is not there")
    except OSError as error:
        return Check(part, what, UNKNOWN, f"it cannot be read: {error.strerror}")
    except ValueError as error:
        return Check(part, what, ALTERED, f"it is no JSON: {error}")
    return content if isinstance(content, dict) else Check(part, what, ALTERED, "it holds no record")


def _snapshot(run: Run, facts: RunFacts, places: Places) -> Iterator[Check]:
    if not facts.snapshot:
        return
    what = f"snapshot {facts.snapshot_uri}"
    try:
        place = opened(run, places)
    except FileNotFoundError as error:
        yield Check("snapshot", what, LOST, f"there is no {error.filename}")
        return
    except PipelineError as error:
        yield Check("snapshot", what, UNKNOWN, str(error))
        return
    with place:
        try:
            found = place.find(facts.snapshot)
        except PipelineError as error:
            yield Check("snapshot", what, ALTERED, str(error))
            return
    if found is None:
        yield Check("snapshot", what, LOST, "the warehouse has no such snapshot")
    elif (found.rows, found.checksum) != (facts.rows, facts.checksum):
        recorded, there = (f"{known.rows} rows, checksum {known.checksum}" for known in (facts, found))
        yield Check("snapshot", what, ALTERED, f"{recorded} were recorded; {there} are there")
    else:
        yield Check("snapshot", what, INTACT)


def _shards(facts: RunFacts) -> Iterator[Check]:
    if not facts.shards or not facts.shards.folder:
        return
    folder = facts.shards.folder
    what = f"index of image shards {folder}"
    uri = storage.join(folder, generations.MANIFEST)
    if not storage.exists(uri):
        yield Check("shards", what, LOST, f"there is no {uri}")
        return
    try:
        manifest = generations.read_manifest(uri)
        generation = generations.of_manifest(folder, manifest)
        packing, names, index = manifest["packing"], manifest["shards"], sorted(manifest["index"])
    except (PipelineError, KeyError, TypeError) as error:
        yield Check("shards", what, ALTERED, f"its manifest cannot be used: {error}")
        return
    # The digest that the lineage has covers the ids, the bytes and the shard of every photograph; a shard's name carries
    # half of its own digest. So the manifest need not be believed.
    def said(place: str) -> str:
        return generations.index_digest(packing, _rows(place, index))

    yield _digest("shards", what, facts.shards.digest, said, folder)
    wanted = [(storage.join(folder, name), "index file", manifest["index"][name]) for name in index]
    wanted += [(generation.shard_path(name), "image shard", names[name]["sha256"]) for name in sorted(names)]
    with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(_digest, "shards", f"{kind} {uri}", digest, digests.of_file, uri) for uri, kind, digest in wanted]
        checks = [job.result() for job in jobs]
    yield from (check for check in checks if check.status != INTACT)
    renamed = sorted(name for name in names if name != f"shard-{names[name]['sha256'][:32]}.tfrecord")
    for name in renamed:
        detail = "its name carries another digest than the manifest"
        yield Check("shards", f"image shard {generation.shard_path(name)}", ALTERED, detail)
    if not renamed and all(check.status == INTACT for check in checks):
        yield Check("shards", f"{len(names)} image shards in {generation.root}", INTACT)


def _rows(folder: str, index: list[str]) -> Iterator[list]:
    # Here: no other question needs it, and it is half of what they would load.
    import pyarrow.parquet as pq

    columns = ["image_id", "sha256", "shard", "ordinal"]
    for name in index:
        with storage.opened(storage.join(folder, name)) as stream:
            for batch in pq.ParquetFile(stream).iter_batches(columns=columns):
                yield from zip(*(batch.column(column).to_pylist() for column in columns), strict=True)


def _labels(run: Run, facts: RunFacts) -> Iterator[Check]:
    for artifact in _made(run, "LabelJoin", "labels"):
        yield _digest("labels", f"label records {artifact.uri}", facts.labels_sha256, digests.of_folder, artifact.uri)


def _made(run: Run, name: str, key: str) -> Sequence[Artifact]:
    """What a step put out; TFX removes what one that failed had begun."""
    step = run.step(name)
    return step.outputs.get(key, ()) if step and step.state in DONE else ()


def _gate(run: Run, facts: RunFacts, places: Places) -> Iterator[Check]:
    if not facts.gate:
        return
    step = run.step("SnapshotGate")
    folders = [_reports(step, run.run_id) or places.reports(run.run_id)]
    report = run.output("pipeline.GateReport")
    for folder in [*folders, *([report.uri] if report else [])]:
        uri = storage.join(folder, "gate.json")
        yield _digest("gate", f"gate report {uri}", facts.gate.report_sha256, digests.of_file, uri)


def _reports(step: Execution | None, run_id: str) -> str:
    """Folder of the run's reports by the gate's own parameter; empty when it is not known."""
    folder = str(step.parameters.get("reports") or "") if step else ""
    # Older runs named their own folder there, and not that of all runs.
    return folder if not folder or storage.name_of(folder) == run_id else storage.join(folder, run_id)


def _training(run: Run, facts: RunFacts) -> Iterator[Check]:
    artifact = run.output("ModelRun")
    if artifact is None:
        return
    uri = storage.join(artifact.uri, "training.json")
    what = f"training record {uri}"
    content = _read_json("training", what, uri)
    if isinstance(content, Check):
        yield content
    elif facts.training is None:
        yield Check("training", what, UNRECORDED, "the run ended before it could record it")
    elif content != facts.training:
        keys = content.keys() | facts.training.keys()
        differing = sorted(key for key in keys if content.get(key) != facts.training.get(key))
        yield Check("training", what, ALTERED, f"not what the lineage recorded: {', '.join(differing)}")
    else:
        yield Check("training", what, INTACT)


def _export(run: Run, facts: RunFacts) -> Iterator[Check]:
    folders = [storage.join(item.uri, SERVING_MODEL) for item in _made(run, "Trainer", "model")]
    if facts.release and facts.release.path:
        folders.append(facts.release.path)
    for folder in folders:
        yield model(facts, folder)


def _provenance(run: Run) -> Iterator[Check]:
    push = beside.pushed(run)
    # A run of a time when no statement was written says of none.
    if push and push.statement_sha256:
        place = beside.statement(push.model)
        yield file("provenance", f"provenance statement {place}", push.statement_sha256, place)


def _ledger(facts: RunFacts, timeline: Timeline, places: Places) -> Iterator[Check]:
    what = f"serving ledger {places.ledger}"
    try:
        there = storage.exists(places.ledger)
    except OSError:  # which the timeline's problems tell
        there = True
    if not timeline.intervals and not there:
        return
    for problem in timeline.problems:
        yield Check("ledger", what, ALTERED if there else LOST, problem)
    if not timeline.problems:
        yield Check("ledger", what, INTACT)
    release = facts.release
    if release and release.released and not release.ledger_line_sha256:
        detail = "the lineage has no digest of it; only the line after it vouches for it, where there is one"
        yield Check("ledger", f"line {release.ledger_number} of {places.ledger}", UNRECORDED, detail)
