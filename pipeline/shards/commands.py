"""`python -m pipeline shard`: pack photographs, prove what is packed, say what there is."""

import argparse
import dataclasses
import errno
import json
import logging
import os
import sys
import warnings

from pipeline import settings, storage, typed
from pipeline.errors import PipelineError
from pipeline.shards import generations
from pipeline.shards.generations import Generation

_SHOWN = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describes the command line."""
    parser.add_argument(
        "--images", metavar="PLACE", help="folder or gs:// prefix of JPEG files, or a .csv or .parquet table with a column uri"
    )
    parser.add_argument("--output", required=True, metavar="FOLDER", help="folder or gs:// prefix of the shards")
    parser.add_argument("--settings", metavar="FILE", help="settings whose part `shards` counts (default: those of the newest generation, or production's)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--verify", action="store_true", help="prove manifest, index and every byte of the newest generation")
    what.add_argument("--status", action="store_true", help="say which generations there are")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("beam", nargs="*", metavar="-- BEAM", help="options of Beam, for instance -- --runner=DataflowRunner ...")


def shard(options: argparse.Namespace) -> int:
    """Answers the command; returns the exit status."""
    output = storage.absolute(options.output)
    with _messages():
        try:
            if options.status:
                return _status(output, options.json)
            if options.verify:
                return _verify(output, options.json)
            return _pack(output, options)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EPIPE):
                raise
            raise PipelineError(f"cannot use {output}: {error.strerror} ({error.filename})") from error


def _pack(output: str, options: argparse.Namespace) -> int:
    if not options.images:
        raise PipelineError("say by --images where the photographs are, or ask for --status or --verify")
    before = generations.latest(output)
    config = _settings(options.settings, before)
    # Loads Beam, so only once it is certain that there is something to do.
    from apache_beam.options.pipeline_options import PipelineOptions

    from pipeline.shards import sharder

    beam = PipelineOptions(options.beam or list(settings.BEAM_HERE))
    generation = sharder.pack_folder(options.images, output, config, beam)
    new = before is None or generation.number != before.number
    if options.json:
        print(json.dumps(_facts(generation) | {"sealed": new}, indent=2, ensure_ascii=False))
        return 0
    if not new:
        print(f"nothing is new: generation {generation.number} of {output} is up to date, {_size(generation)}")
        return 0
    counts = generation.manifest()["counts"]
    print(f"generation {generation.number} of {output}: {_size(generation)}")
    print(
        f"{counts['new']:,} new, {counts['changed']:,} changed, {counts['gone']:,} gone, {counts['kept']:,} not packed again, "
        f"{counts['quarantined']:,} in quarantine"
    )
    if counts["vanished"]:
        print(f"{counts['vanished']:,} were gone when they should have been read; the next packing looks again")
    if counts["changed"]:
        print(f"the changed ones are in {storage.join(generation.folder, 'changes.parquet')}")
    return 0


def _settings(file: str | None, before: Generation | None) -> settings.ShardSettings:
    if file:
        return settings.load(file).shards
    if before:
        # Another value would pack every photograph again, which nobody means by leaving --settings out.
        return typed.from_dict(settings.ShardSettings, before.manifest()["settings"], f"{before.folder}/manifest.json")
    return settings.ShardSettings()


def _status(output: str, as_json: bool) -> int:
    known = generations.every(output)
    unfinished = _unfinished(output)
    if as_json:
        print(json.dumps({"generations": [_facts(one) for one in known], "unfinished": unfinished}, indent=2, ensure_ascii=False))
        return 0
    if not known and not unfinished:
        raise PipelineError(f"{output} holds no image shards: `python -m pipeline shard --images PLACE --output {output}` makes them")
    print(f"{'generation':>10}  {'images':>12}  {'packed':>12}  {'changed':>8}  {'gone':>8}  {'quarantine':>10}  {'shards':>7}  {'bytes':>18}")
    for one in known:
        print(
            f"{one.number:>10}  {one.images:>12,}  {one.packed:>12,}  {one.changed:>8,}  {one.gone:>8,}  {one.quarantined:>10,}  "
            f"{one.shards:>7,}  {one.bytes:>18,}"
        )
    if unfinished:
        print(f"a packing is unfinished: {unfinished['shards_done']} of {unfinished['shards']} shards; the same command as before goes on")
    return 0


def _unfinished(output: str) -> dict[str, int] | None:
    # Read here and not by planning.read, which loads DuckDB.
    try:
        plan = json.loads(storage.read(storage.join(output, generations.PLAN, "plan.json")))
    except (FileNotFoundError, NotADirectoryError):
        return None
    done = sum(name.endswith(".packed.parquet") for name in storage.names(plan["folder"]))
    return {"shards_done": done, "shards": len(plan["buckets"])}


def _verify(output: str, as_json: bool) -> int:
    generation = generations.require_latest(output)
    from pipeline.shards import verify

    verdict = verify.verify(generation)
    if as_json:
        print(json.dumps(_facts(generation) | dataclasses.asdict(verdict), indent=2, ensure_ascii=False))
    elif verdict.problems:
        print(f"generation {generation.number} of {output} is not whole:", file=sys.stderr)
        for problem in verdict.problems[:_SHOWN]:
            print(f"  {problem}", file=sys.stderr)
        if len(verdict.problems) > _SHOWN:
            print(f"  and {len(verdict.problems) - _SHOWN:,} more (--json lists them)", file=sys.stderr)
        print("Restore these files from a backup, or pack the photographs again into another folder", file=sys.stderr)
    else:
        print(f"generation {generation.number} of {output} is whole: {_size(generation)}")
        if verdict.superseded:
            print(f"{verdict.superseded:,} records are of photographs that changed or are gone")
        if verdict.unused:
            print(f"{len(verdict.unused):,} other shards are in the folder, of older generations or of packings that were cut off")
    return 1 if verdict.problems else 0


def _facts(generation: Generation) -> dict:
    return dataclasses.asdict(generation) | {"index_table": generation.table}


def _size(generation: Generation) -> str:
    return f"{generation.images:,} photographs in {generation.shards:,} shards, {generation.bytes:,} bytes"


class _messages:
    """Our progress and warnings on standard error; what libraries say about themselves nowhere."""

    def __enter__(self):
        self._handler = logging.StreamHandler(sys.stderr)
        self._handler.setFormatter(logging.Formatter("%(message)s"))
        self._logger = logging.getLogger("pipeline")
        self._before = self._logger.level, self._logger.propagate
        self._logger.addHandler(self._handler)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        logging.getLogger().addHandler(logging.NullHandler())
        # TensorFlow greets with a dozen lines that sound like errors and are none.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("PYTHONWARNINGS", "ignore")  # of Beam's worker processes, where there are some
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        return self

    def __exit__(self, *error):
        self._logger.removeHandler(self._handler)
        self._logger.level, self._logger.propagate = self._before
