"""Trains the model of a run again, from what the run recorded, and says whether the same weights come of it.

    python -m pipeline replay RUN_ID

Data, settings and hyperparameters are those that the lineage names; code, packages and machine are those of now, and where
they are not the run's, the verdict says so. The lineage is read and never written to, and the store's lock is not taken: a
run may go on beside it.

DIR, which --to names, ends up with

    replay.json    whose replay it is, and what came of it
    replay.log     everything that was logged
    model/         the SavedModel of the new training
    model_run/     its record, training.json, as the run has one

A new replay takes the place of a former one of the same run when it has trained, not before. Anything else is left alone.
"""

import argparse
import contextlib
import dataclasses
import difflib
import errno
import fcntl
import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from models.code import code_digest
from models.config import TrainingConfig
from models.errors import TrainingError
from pipeline import console, files, origin, storage, typed, workers
from pipeline.errors import PipelineError, SettingsError
from pipeline.lineage.base import Execution, LineageStore, Run
from pipeline.lineage.mlmd import MLMDLineage
from pipeline.places import Places
from pipeline.store import interruptible

# Where TFX's Trainer puts the SavedModel in its artifact (tfx/utils/path_utils.py).
_SERVING_MODEL = "Format-Serving"

_VERDICT, _LOG, _UNFINISHED = "replay.json", "replay.log", "unfinished"

_SHOWN = 3

_BEFORE = ("commit", "tree", "image", "lock_sha256", "python", "platform")
"""What RunManifest recorded of code, packages and machine, and can be compared before anything is trained."""

_AFTER = (
    "tensorflow", "processor", "code_sha256", "backbone_sha256", "splits_sha256", "classes", "short_side", "network", "training",
    "hyperparameters", "workers", "replicas",
)  # fmt: skip
"""What training.json has of that on which the weights depend."""


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A training as its run recorded it.

    Attributes:
        run_id: The run.
        record_uri: Where its training.json is.
        record: What is in it.
        manifest: What RunManifest recorded; empty when there is none.
        models: Where its SavedModel was put: by the Trainer, and, if it was released, to be served.
        fn_args: What `models.training.run_fn` gets, but for where it writes.
        workers: Processes that trained.
    """

    run_id: str
    record_uri: str
    record: Mapping[str, Any]
    manifest: Mapping[str, Any]
    models: tuple[str, ...]
    fn_args: Mapping[str, Any]
    workers: int


@dataclasses.dataclass(frozen=True)
class Conditions:
    """What the weights depend on, then and now.

    Attributes:
        differing: Name -> (value then, value now).
        unknown: Names of what was not recorded then, or cannot be found out now.
    """

    differing: Mapping[str, tuple[Any, Any]]
    unknown: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Tensors:
    """How the weights of two models differ.

    Attributes:
        count: Tensors of both together.
        differing: Names of those that are not equal bit for bit, or that one of the two lacks, in the order of the names.
        largest: The largest absolute difference of two values, and the tensor that has it; None when no two values were
            compared.
    """

    count: int
    differing: tuple[str, ...]
    largest: tuple[float, str] | None


def replay(options: argparse.Namespace) -> int:
    """Answers the command.

    Args:
        options: `run_id`, `store` and `to`, as `pipeline.__main__` reads them.

    Returns:
        The exit status: 0 for the same weights, 1 for others.

    Raises:
        PipelineError: The training cannot be repeated; the text says why.
    """
    places = Places(store=os.path.abspath(options.store))
    recorded = read(MLMDLineage(places.metadata), options.run_id, places)
    to = _destination(options.to or os.path.join(places.store, "replays", recorded.run_id))
    now = origin.discover()
    before = before_training(recorded, now)
    progress = console.Progress()
    with interruptible(), _claimed(to, recorded.run_id) as work, _quiet(to / _LOG, progress):
        print(f"Replay of run {recorded.run_id}\n  record {recorded.record_uri}\n  to     {to}\n  log    {to / _LOG}", flush=True)
        _say("differs", _differences(before))
        fn_args = recorded.fn_args | {"serving_model_dir": str(work / "model"), "model_run_dir": str(work / "model_run")}
        progress.begin("training again")
        try:
            workers.train(fn_args, recorded.workers)
        except TrainingError as error:
            raise PipelineError(
                f"run {recorded.run_id} was not repeated: {error}. A replay needs all that the run was trained on where it was "
                f"then, as it was, and always begins anew; the log is {to / _LOG}"
            ) from error
        finally:
            progress.close_line()
        progress.end()
        record = _json(str(work / "model_run" / "training.json"))
        after = after_training(before, recorded.record, record)
        then_sha256, now_sha256 = recorded.record["weights_sha256"], record["weights_sha256"]
        identical = then_sha256 == now_sha256
        epoch = first_difference(recorded.record["phases"], record["phases"])
        tensors, told = (None, []) if identical else _tensors(recorded, str(work / "model"))
        _publish(work, to, {
            "run_id": recorded.run_id,
            "identical": identical,
            "weights_sha256": {"then": then_sha256, "now": now_sha256},
            "epochs": epoch,
            "tensors": tensors and dataclasses.asdict(tensors),
            "conditions": dataclasses.asdict(after),
            "origin": dataclasses.asdict(now),
        })  # fmt: skip
    print()
    print(f"trained    {to}")
    if not identical:
        _say("losses", [epoch or "every epoch has the same loss and val_loss, bit for bit"])
        _say("weights", told)
    _say("differs", _differences(after) or ([] if identical else ["nothing that was compared: the machine itself, or a defect"]))
    if tensors and tensors.differing and any(name.startswith("tensorflow.") for name in after.differing):
        # Not to be taken for tampering: docs/tfx-lines.md.
        _say("expected", ["another TensorFlow gives other weights: replay with the packages that the run was trained with"])
    if not identical and after.unknown:
        _say("unknown", [", ".join(after.unknown)])
    print(f"identical  {now_sha256}" if identical else f"different  {then_sha256} then, {now_sha256} now")
    return 0 if identical else 1


def read(lineage: LineageStore, run_id: str, places: Places) -> Recorded:
    """Finds a training in the lineage, and all that it was made from.

    Args:
        lineage: The lineage.
        run_id: The run.
        places: The store, for what errors say.

    Returns:
        The training.

    Raises:
        PipelineError: There is no such run, it has not trained, it cannot be repeated exactly, or something that it was made
            from is not there any more.
    """
    run = _run(lineage, run_id, places)
    trainer = _trainer(lineage, run, places)
    record_uri = storage.join(trainer.outputs["model_run"][0].uri, "training.json")
    wanted = [("the record of its training", record_uri)]
    examples = trainer.inputs["examples"][0].uri
    # As TFX makes them (tfx/components/trainer/fn_args_utils.py).
    folders = {
        name: [storage.join(examples, f"Split-{split}") for split in json.loads(trainer.parameters[name])["splits"]]
        for name in ("train_args", "eval_args")
    }
    wanted += [("its label records", folder) for split in folders.values() for folder in split]
    schema = trainer.inputs["schema"][0].uri
    wanted.append(("its schema", schema))
    tuned = [artifact.uri for artifact in trainer.inputs.get("hyperparameters", ())]
    wanted += [("its hyperparameters", uri) for uri in tuned]
    shards = run.output("pipeline.ImageShards")
    if shards:
        wanted.append(("its image shards", shards.facts["folder"].rsplit("/", 1)[0]))
    custom = json.loads(trainer.parameters["custom_config"])
    backbone = custom["training"].get("backbone")
    if backbone:
        wanted.append(("the backbone that it began with", backbone))
    _require(run_id, wanted, examples, places)

    record = _json(record_uri)
    if not {"weights_sha256", "phases"} <= set(record):
        raise PipelineError(f"{record_uri} is no record of a training: restore it from a backup")
    manifest = run.output("pipeline.RunManifest")
    manifest = dict(manifest.facts) if manifest else {}
    # A checkpoint would go on with something else, that window is over, and this machine is not Vertex.
    custom = {name: value for name, value in custom.items() if name not in ("checkpoints", "window_end", "vertex")}
    if record.get("stopped_by_window"):
        custom["stop_after"] = _steps(run_id, record, record_uri)
    release = run.output("pipeline.ServingRelease")
    served = (release.facts["path"],) if release and release.facts.get("path") else ()
    return Recorded(
        run_id=run_id,
        record_uri=record_uri,
        record=record,
        manifest=manifest,
        models=(storage.join(trainer.outputs["model"][0].uri, _SERVING_MODEL), *served),
        fn_args={
            "train_files": [storage.join(folder, "*") for folder in folders["train_args"]],
            "eval_files": [storage.join(folder, "*") for folder in folders["eval_args"]],
            "schema_path": _only_file(schema),
            "custom_config": custom,
            "hyperparameters": _json(_only_file(tuned[0])) if tuned else None,
        },
        workers=_workers(run_id, custom, manifest),
    )


def _run(lineage, run_id, places) -> Run:
    known = lineage.run_ids()
    if run_id in known:
        return lineage.run(run_id)
    if not known:
        raise PipelineError(
            f"the lineage store {places.metadata} holds no run yet: run the pipeline first, or name another store by --store"
        )
    near = [name for name in known if run_id and name.startswith(run_id)] or difflib.get_close_matches(run_id, known)
    hint = f"the closest: {', '.join(near[-_SHOWN:])}" if near else f"the newest: {known[-1]}"
    raise PipelineError(f"there is no run {run_id!r} in the lineage store {places.metadata}; {hint}")


def _trainer(lineage, run, places) -> Execution:
    """The execution that trained; of several, those that were cut off or failed do not count."""
    done = _trainings(run)
    if done:
        return done[-1]
    ended = next((step for step in run.executions if step.state in ("FAILED", "CANCELED")), None)
    if ended:
        how = f"it ended at {ended.step} ({ended.state}), and {places.log(run.run_id)} says why"
    else:
        how = f"it is at {run.executions[-1].step}: wait until it has trained" if run.executions else "it has not begun a step"
    others = (name for name in reversed(lineage.run_ids()) if name != run.run_id and _trainings(lineage.run(name)))
    newest = next(others, None)
    raise PipelineError(
        f"run {run.run_id} has trained no model that could be repeated: {how}. "
        + (f"The newest run that has trained is {newest}" if newest else "No other run has trained either")
    )


def _trainings(run: Run) -> list[Execution]:
    return [step for step in run.executions if step.step == "Trainer" and step.state in ("COMPLETE", "CACHED")]


def _require(run_id, wanted, examples, places) -> None:
    missing = [f"{what}, {uri}" for what, uri in wanted if not (storage.names(uri) or storage.exists(uri))]
    if not missing:
        return
    store = examples.rpartition("/artifacts/")[0]
    moved = f"; the store was {store} then: bring it back there, or link it there" if store not in ("", places.store) else ""
    raise PipelineError(
        f"run {run_id} cannot be repeated, because not everything is where it was then: " + "; ".join(missing)
        + f". Bring back what was moved, and what was deleted from a backup{moved}"
    )  # fmt: skip


def _steps(run_id, record, record_uri) -> int:
    if "steps" not in record:
        raise PipelineError(
            f"run {run_id} cannot be repeated exactly: the window's end stopped its training in epoch "
            f"{record.get('epochs_run')}, and {record_uri}, written by older code, does not say after how many steps. Repeat a "
            "run that the window did not stop"
        )
    return record["steps"]


def _workers(run_id, custom, manifest) -> int:
    try:
        return typed.from_dict(TrainingConfig, custom["training"], f"the training settings of run {run_id}").workers
    except SettingsError as error:
        raise PipelineError(
            f"this code cannot use {' '.join(str(error).split())}. Check out the commit of that run, "
            f"{manifest.get('commit') or 'which was not recorded'}, and repeat it there"
        ) from error


def _only_file(folder: str) -> str:
    names = [name for name in storage.names(folder) if not name.startswith(".")]
    if len(names) != 1:
        raise PipelineError(f"{folder} must hold one file and holds {names}: restore it from a backup")
    return storage.join(folder, names[0])


def _json(uri: str):
    try:
        return json.loads(storage.read(uri))
    except (OSError, ValueError) as error:
        raise PipelineError(f"{uri} cannot be read ({error}): restore it from a backup") from error


def before_training(recorded: Recorded, now: origin.Origin) -> Conditions:
    """Compares what is known without TensorFlow, so that a person can think again before hours of training."""
    then = {name: recorded.manifest.get(name) for name in _BEFORE}
    then |= {"code_sha256": recorded.record.get("code_sha256")}
    then |= {"tensorflow.version": recorded.record.get("tensorflow", {}).get("version")}
    found = {name: getattr(now, name) for name in _BEFORE}
    found |= {"code_sha256": code_digest(), "tensorflow.version": importlib.metadata.version("tensorflow")}
    if not recorded.manifest.get("image"):
        # No container then: another answer now says enough, and none is no gap in the record.
        then["image"], found["image"] = "none", now.image or "none"
    conditions = _compared(then, found)
    if then["tree"] == found["tree"] == "changed":
        # Two states that nobody recorded; the digest of the code tells those of them that count.
        conditions = dataclasses.replace(conditions, unknown=(*conditions.unknown, "uncommitted changes"))
    return conditions


def after_training(before: Conditions, then: Mapping[str, Any], now: Mapping[str, Any]) -> Conditions:
    """Compares two records of trainings too; adds to what was known before."""
    compared = _compared(_flat({name: then.get(name) for name in _AFTER}), _flat({name: now.get(name) for name in _AFTER}))
    return Conditions(
        {**before.differing, **compared.differing},
        tuple(dict.fromkeys([*before.unknown, *compared.unknown])),
    )


def _compared(then: Mapping[str, Any], now: Mapping[str, Any]) -> Conditions:
    """None, "" and `unknown` mean that nobody knows.

    >>> _compared({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "c": 4})
    Conditions(differing={'b': (2, 3)}, unknown=('c',))
    """
    names = list(dict.fromkeys([*then, *now]))
    unknown = tuple(name for name in names if any(side.get(name) in (None, "", "unknown") for side in (then, now)))
    return Conditions({name: (then[name], now[name]) for name in names if name not in unknown and then[name] != now[name]}, unknown)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def first_difference(then: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> str:
    """Says where two trainings part.

    >>> one = [{"name": "frozen", "epochs": [{"epoch": 1, "loss": 0.5, "val_loss": 0.5}]}]
    >>> first_difference(one, [{"name": "frozen", "epochs": [{"epoch": 1, "loss": 0.5, "val_loss": 0.75}]}])
    'part in epoch 1 (frozen): val_loss 0.5 then, 0.75 now'

    Args:
        then: The phases of one record, as `models.loop.Result` has them.
        now: Those of the other.

    Returns:
        The first epoch whose loss or val_loss is not the same, bit for bit; "" when there is none.
    """
    one, other = ([(phase["name"], epoch) for phase in phases for epoch in phase["epochs"]] for phases in (then, now))
    for number, ((phase, before), (_, after)) in enumerate(zip(one, other), start=1):
        told = [f"{key} {before[key]!r} then, {after[key]!r} now" for key in ("loss", "val_loss") if before[key] != after[key]]
        if told:
            return f"part in epoch {number} ({phase}): " + "; ".join(told)
    if len(one) != len(other):
        return f"are the same, bit for bit, as long as both trained: {len(one)} epochs then, {len(other)} now"
    return ""


def compare(then: str, now: str) -> Tensors:
    """Compares the weights of two SavedModels, bit for bit. Loads TensorFlow.

    Args:
        then: Folder of the one.
        now: Folder of the other.

    Raises:
        PipelineError: One of them cannot be read.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what packages say of the Python they run on
        import numpy as np
        import tensorflow as tf

        from models import saved_weights
    try:
        one, other = ({saved_weights.name(key): value for key, value in saved_weights.read(uri)} for uri in (then, now))
    except tf.errors.OpError as error:
        raise PipelineError(f"the weights of {then} and {now} cannot be compared: {error.message}") from error
    differing, largest = [], None
    for name in sorted({*one, *other}):
        before, after = one.get(name), other.get(name)
        if before is None or after is None or (before.dtype, before.shape) != (after.dtype, after.shape):
            differing.append(name)
        elif before.tobytes() != after.tobytes():
            differing.append(name)
            apart = float(np.max(np.abs(after.astype(np.float64) - before.astype(np.float64))))
            largest = max(largest or (apart, name), (apart, name), key=lambda each: each[0])
    return Tensors(len({*one, *other}), tuple(differing), largest)


def _tensors(recorded: Recorded, now: str) -> tuple[Tensors | None, list[str]]:
    """How the tensors differ from the recorded model's, if it is still there, and that in words."""
    then = next((uri for uri in recorded.models if storage.names(uri)), None)
    if then is None:
        return None, [f"the recorded model is not there any more ({', '.join(recorded.models)}): its tensors cannot be compared"]
    try:
        tensors = compare(then, now)
    except PipelineError as error:
        return None, [str(error)]
    if not tensors.differing:
        return tensors, [
            f"none of {tensors.count} tensors differs from the recorded model, {then}:",
            f"the digest in {recorded.record_uri} is not that model's, so the record was altered",
        ]
    lines = [f"{len(tensors.differing)} of {tensors.count} tensors differ: " + ", ".join(tensors.differing[:_SHOWN])]
    if len(tensors.differing) > _SHOWN:
        lines[0] += f" and {len(tensors.differing) - _SHOWN} more"
    if tensors.largest:
        lines.append(f"by {tensors.largest[0]:.3g} at most, in {tensors.largest[1]}")
    return tensors, lines


def _differences(conditions: Conditions) -> list[str]:
    return [f"{name}: {then} then, {now} now" for name, (then, now) in conditions.differing.items()]


def _say(title: str, lines: Sequence[str]) -> None:
    for number, line in enumerate(lines):
        print(f"{'' if number else title:<10} {line}", flush=True)


def _destination(to: str) -> pathlib.Path:
    if storage.is_cloud(to) or re.search(r"[*?[\]]", to):
        raise PipelineError(
            f"--to {to} must be a folder of this machine, with none of * ? [ ] in its path, which TensorFlow takes for a pattern"
        )
    return pathlib.Path(to).absolute()


@contextlib.contextmanager
def _claimed(to: pathlib.Path, run_id: str) -> Iterator[pathlib.Path]:
    """Holds the folder of a replay, and gives an empty one in it to work in, which is gone in the end."""
    try:
        to.mkdir(parents=True, exist_ok=True)
        held = os.open(to, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise _unusable(to, error) from error
    try:
        work = _emptied(to, held, run_id)
        try:
            yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
    finally:
        os.close(held)


def _emptied(to, held, run_id) -> pathlib.Path:
    try:
        # The kernel lets go of it when this process ends, however it ends.
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise PipelineError(f"another replay writes to {to}: wait for it to end, or name another folder by --to") from error
    if os.listdir(to) and _replayed(to) != run_id:
        raise PipelineError(
            f"{to} is neither empty nor a former replay of run {run_id}: nothing was touched. Name another folder by --to"
        )
    work = to / _UNFINISHED
    try:
        if not (to / _VERDICT).exists():
            files.write_atomically(to / _VERDICT, files.to_json({"run_id": run_id}))
        shutil.rmtree(work, ignore_errors=True)  # of one that was killed
        work.mkdir()
    except OSError as error:
        raise _unusable(to, error) from error
    return work


def _unusable(to, error: OSError) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return error  # `pipeline.errors` has the words for it
    return PipelineError(f"cannot use {to}: {error.strerror}. Name another folder by --to")


def _replayed(to: pathlib.Path) -> str | None:
    """The run whose replay a folder holds; None when it holds something else."""
    try:
        return json.loads((to / _VERDICT).read_text(encoding="utf-8"))["run_id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _publish(work: pathlib.Path, to: pathlib.Path, verdict: Mapping[str, Any]) -> None:
    """Puts what was trained, and then the verdict, in the place of a former replay."""
    files.write_atomically(to / _VERDICT, files.to_json({"run_id": verdict["run_id"]}))
    for name in ("model", "model_run"):
        shutil.rmtree(to / name, ignore_errors=True)
        os.rename(work / name, to / name)
    files.write_atomically(to / _VERDICT, files.to_json(verdict))


@contextlib.contextmanager
def _quiet(log: pathlib.Path, progress: console.Progress) -> Iterator[None]:
    log.unlink(missing_ok=True)
    with console.quiet_logs(str(log), progress), console.stderr_in_log(str(log)):
        yield
