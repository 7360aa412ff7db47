"""Packs photographs into image shards once, and later only what is new.

Listing, comparison and index are DuckDB's (planning.py), pixels are Beam's (packing.py), and this module seals a
generation (generations.py). A run that is killed at any moment is completed by the next one, with the same bytes, and
nobody ever sees half a generation.
"""

import contextlib
import errno
import json
import logging
import pathlib
import re
import shutil
import threading
import time

import PIL
from apache_beam.options.pipeline_options import PipelineOptions

from pipeline import files, storage, typed
from pipeline.errors import PipelineError, StoreBusy
from pipeline.shards import generations, packing, planning
from pipeline.shards.generations import Generation

log = logging.getLogger(__name__)

VERSION = 2
"""Version of what the sharder makes of a photograph; a new one packs every photograph again."""

# These decide what bytes are stored; another value packs every photograph again.
_DECIDING = ("short_side", "quality", "min_side", "max_pixels")

_SHOWN = 10

_ATTEMPTS = 3

_SECONDS_BETWEEN_REPORTS = 5.0


def pack_folder(images: str, root: str, settings, options: PipelineOptions) -> Generation:
    """Brings the shards below `root` up to date with the photographs in `images`.

    Args:
        images: A folder or gs:// prefix of JPEG files, or a table of URIs; see `sources.find`.
        root: Folder of the shards, on a disk or in Cloud Storage.
        settings: `ShardSettings`.
        options: Beam's options, for the packing.

    Returns:
        The generation that describes the photographs as they are: a new one, or the newest one when nothing changed.
        Unchanged ones (URI, size and version) cost a line of a listing, and are not read.

    Raises:
        PipelineError: There is no photograph, two have one id, more than `settings.max_quarantine_share` cannot be used,
            or shards that are needed are missing.
        StoreBusy: Another process of this machine packs into `root`.
    """
    images, root = storage.absolute(str(images)), storage.absolute(str(root))
    if re.search(r"[*?[\]]", root):
        raise PipelineError(f"the folder of shards {root} has one of * ? [ ] in its path, which TensorFlow takes for a pattern")
    try:
        with storage.locked(root):
            _sweep(root)
            for _ in range(_ATTEMPTS):
                with contextlib.suppress(planning.OvertakenError):
                    resumed = planning.read(root) is not None
                    generation = _pack(images, root, settings, options)
                    # The plan was of an earlier hour; what came since is a generation of its own.
                    return _pack(images, root, settings, options) if resumed else generation
    except BlockingIOError as error:
        raise StoreBusy(f"another process packs photographs into {root}: wait for it to end, or choose another folder") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise PipelineError(f"cannot use the image shards {root}: {error.strerror} ({error.filename})") from error
    raise PipelineError(f"other machines pack photographs into {root} at the same time: wait for them to end, then run again")


def _sweep(root: str) -> None:
    """Removes what a killed process of this machine left in the folder of a generation that it was writing."""
    if storage.is_cloud(root):
        return
    for path in pathlib.Path(root).glob("generation-*/.*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _pack(images: str, root: str, settings, options: PipelineOptions) -> Generation:
    latest = generations.latest(root)
    number = latest.number + 1 if latest else 1
    wanted = _packing(settings)
    plan = planning.read(root)
    if plan and (plan.images, plan.packing, plan.previous) != (images, wanted, number - 1):
        if plan.previous == number - 1:
            log.warning("a packing that was cut off is given up: it was of %s with %s", plan.images, plan.packing)
        planning.drop(root)
        plan = None
    base = _base(root, latest, wanted)
    if plan is None:
        sealed = latest is not None and base.folder == latest.folder
        plan = planning.make(root, images, base, sealed, number - 1, wanted, settings)
    if plan is None:
        return latest
    if latest and latest.manifest()["packing"] != wanted:
        log.warning("the shard settings changed to %s: every photograph is packed again", wanted)
    folder = generations.folder_of(root, number)
    previous = _state(latest.folder, generations.MANIFEST) if latest else planning.Base()
    try:
        _pack_buckets(plan, root, settings, options)
        outcome = planning.finish(plan, base, previous, folder)
    except Exception as error:
        if planning.read(root) != plan:
            raise planning.OvertakenError from error
        raise
    if latest and not outcome.differs:
        if not storage.exists(storage.join(folder, generations.MANIFEST)):
            storage.remove_folder(folder)
        planning.drop(root)
        return latest
    return _seal(root, folder, number, plan, outcome, settings)


def _packing(settings) -> str:
    values = typed.to_dict(settings)
    return json.dumps({"version": VERSION} | {name: values[name] for name in _DECIDING}, sort_keys=True)


def _base(root: str, latest: Generation | None, wanted: str) -> planning.Base:
    """What need not be packed again."""
    folder = generations.folder_of(root, latest.number + 1 if latest else 1)
    rejected = storage.join(folder, generations.REJECTED)
    if storage.exists(rejected) and generations.read_manifest(rejected)["packing"] == wanted:
        return _present(root, _state(folder, generations.REJECTED))
    if latest is None:
        return planning.Base()
    if latest.manifest()["packing"] != wanted:
        return planning.Base()
    return _present(root, _state(latest.folder, generations.MANIFEST))


def _state(folder: str, name: str) -> planning.Base:
    manifest = generations.read_manifest(storage.join(folder, name))
    return planning.Base(folder, manifest["shards"], tuple(sorted(manifest["index"])))


def _present(root: str, base: planning.Base) -> planning.Base:
    found = {storage.name_of(listed.uri): listed.bytes for listed in storage.children(root)[0]}
    wrong = sorted(name for name, facts in base.shards.items() if found.get(name) != facts["bytes"])
    if wrong:
        raise PipelineError(
            f"{len(wrong)} image shard(s) of {base.folder} are missing or of another size than when they were made, the first "
            f"is {storage.join(root, wrong[0])}: restore them from a backup, or move {root} away so that the photographs are packed again"
        )
    return base


def _pack_buckets(plan: planning.Plan, root: str, settings, options: PipelineOptions) -> None:
    if not plan.buckets:
        return
    done = threading.Event()
    watcher = threading.Thread(target=_report, args=(plan, done), daemon=True)
    watcher.start()
    try:
        packing.run(list(plan.buckets), root, settings, options)
    finally:
        done.set()
        watcher.join()


def _report(plan: planning.Plan, done: threading.Event) -> None:
    """Says from time to time how far the packing is; the machines that pack leave a file for each bucket."""
    results = {storage.name_of(packing.result_of(bucket)) for bucket in plan.buckets}
    started, at_start, told = time.monotonic(), None, None
    wait = _SECONDS_BETWEEN_REPORTS
    while not done.wait(wait):
        try:
            finished = len(results.intersection(storage.names(plan.folder)))
        except OSError as error:  # a report is not worth a packing
            log.info("cannot see how far the packing is: %s", error)
            continue
        at_start = finished if at_start is None else at_start
        if finished == told:
            continue
        told, share = finished, finished / len(results)
        speed = (finished - at_start) / (time.monotonic() - started)
        left = f", {(len(results) - finished) / speed:.0f} s left" if speed else ""
        log.info("packed %d of %d shards, about %d photographs%s", finished, len(results), round(share * plan.fresh), left)
        wait = min(60.0, 1.5 * wait)


def _seal(root, folder, number, plan, outcome: planning.Outcome, settings) -> Generation:
    counts = outcome.counts
    index = {
        name: files.sha256(storage.read(storage.join(folder, name)))
        for name in storage.names(folder)
        if name.startswith("index-")
    }
    manifest = {
        "format": generations.FORMAT,
        "number": number,
        "digest": outcome.digest,
        "images": plan.images,
        "packing": plan.packing,
        "settings": typed.to_dict(settings),
        "libraries": {"Pillow": PIL.__version__},
        "counts": counts,
        "shards": outcome.shards,
        "index": index,
    }
    try:
        _require_usable(outcome, plan.listed, settings)
    except PipelineError:
        storage.write(storage.join(folder, generations.REJECTED), files.to_json(manifest).encode())
        planning.drop(root)
        raise
    try:
        storage.create(storage.join(folder, generations.MANIFEST), files.to_json(manifest).encode())
    except FileExistsError:
        sealed = generations.read_manifest(storage.join(folder, generations.MANIFEST))
        if sealed["digest"] != outcome.digest:
            raise PipelineError(
                f"another machine sealed {folder} of other photographs meanwhile: run the same command again"
            ) from None
    planning.drop(root)
    for row in outcome.refused[:_SHOWN]:
        log.warning("%s is in quarantine: %s", _shown(row["source_uri"]), row["reason"])
    if len(outcome.refused) > _SHOWN:
        log.warning("and %d more are in quarantine: %s", len(outcome.refused) - _SHOWN, storage.join(folder, "quarantine.json"))
    return generations.of_manifest(folder, generations.read_manifest(storage.join(folder, generations.MANIFEST)))


def _require_usable(outcome: planning.Outcome, listed: int, settings) -> None:
    refused = outcome.refused
    if len(refused) > settings.max_quarantine_share * listed:
        rows = "\n".join(f"  {_shown(row['source_uri'])}: {row['reason']}" for row in refused[:_SHOWN])
        more = f"\n  and {len(refused) - _SHOWN} more" if len(refused) > _SHOWN else ""
        raise PipelineError(
            f"{len(refused)} of {listed} photographs cannot be used, more than shards.max_quarantine_share "
            f"{settings.max_quarantine_share} allows:\n{rows}{more}\n"
            "Replace or remove these files, or raise the share in the settings; what is packed stays packed"
        )
    if not outcome.counts["images"]:
        raise PipelineError("every photograph went to quarantine: nothing is left to train on")


def _shown(uri: str) -> str:
    """A name as it may be printed: one may hold a line break, or what moves a terminal's cursor."""
    return uri if uri.isprintable() else repr(uri)
