"""What a training costs: its input, its steps, its workers, its repeatability and its checkpoints.

    .venv/bin/python bench/training.py              # all parts, in turn
    .venv/bin/python bench/training.py input share  # some

Each part runs in a process of its own, prints its figures and writes them under its own name into bench/training.json,
with the cores that other work took meanwhile (`cores_of_others`): above a half, measure again. What is compared takes
turns; a figure is the median of the turns, with the least and the most. Ratios travel, absolute figures do not. How long a
part took is in the result (`seconds`).

    input        training's input against the prototype's: bench/shards.py measures it once, this part several times, and
                 what of it is decoding
    share        a step of ResNet-50 at 224 pixels, full and frozen, against decoding the prototype's way and ours: the share
                 of decoding, measured here, and computed from the case's figures
    workers      two workers on this machine against one, each on a core of its own; what their all-reduce takes
    determinism  a training that repeats bit for bit against one that does not care
    checkpoints  saving and loading ResNet-50 with AdamW's state and the best weights
    gpu          images a second with and without mixed precision, on a machine that has a GPU
"""

import argparse
import contextlib
import datetime
import functools
import json
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # run as a file, so that the command is short
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

import numpy as np  # noqa: E402

from bench import shards  # noqa: E402
from models.config import NetworkConfig, TrainingConfig  # noqa: E402
from pipeline import window  # noqa: E402

CLASSES = 10  # of bench/shards.py's label records

# About as many operations a photograph as the sample's network, at production's image size. Four shards hold its photographs.
SMALL = NetworkConfig(blocks=(1, 1, 1, 1), width=16, bottleneck=False)

# Production's, on as many threads as there are cores.
PRODUCTION = TrainingConfig(intra_op_threads=os.cpu_count(), inter_op_threads=os.cpu_count())


def main() -> int:
    """Runs the parts that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--output", default=str(ROOT / "bench" / "training.json"))
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(_CHILDREN[options.child[0]](*options.child[1:])))
        return 0
    unknown = [part for part in options.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: name some of {', '.join(PARTS)}")
    parts = options.parts or list(PARTS)
    if len(parts) > 1:
        for part in parts:
            subprocess.run([sys.executable, __file__, part, "--output", options.output], check=True)
        return 0
    (part,) = parts
    others = _Others()
    started = time.perf_counter()
    figures = PARTS[part]()
    output = pathlib.Path(options.output)
    result = json.loads(output.read_text()) if output.exists() else {}
    result[part] = {
        "command": f".venv/bin/python bench/training.py {part}",
        "date": datetime.date.today().isoformat(),
        "machine": shards.machine(),
        "versions": shards._versions(),
        "seconds": round(time.perf_counter() - started),
        "cores_of_others": others.cores(),
        **figures,
    }
    output.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({part: result[part]}, indent=2))
    return 0


class _Others:
    """Counts the cores that other processes keep busy, from now on."""

    def __init__(self):
        self._started, self._busy = time.perf_counter(), self._of_others()

    def cores(self) -> float:
        return round((self._of_others() - self._busy) / (time.perf_counter() - self._started), 2)

    @staticmethod
    def _of_others():
        user, nice, system, _, _, interrupts, soft, *_ = map(int, pathlib.Path("/proc/stat").read_text().split()[1:9])
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        own = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK") - own


def _summary(values, digits: int = 2) -> dict:
    values = list(values)
    return {name: round(of(values), digits) for name, of in (("median", statistics.median), ("least", min), ("most", max))}


def _ratio(over, under, digits: int = 2) -> dict:
    """Of each turn the ratio, then the median: what slows a turn down slows both."""
    return _summary([one / other for one, other in zip(over, under, strict=True)], digits)


def _inputs(turns: int):
    """Yields, for each turn, what `bench/shards.py input` measures in one round: photographs a second of processor time."""
    for _ in range(turns):
        with contextlib.redirect_stdout(sys.stderr):
            yield shards.input_(rounds=1)["photographs_a_cpu_second"]


def input_() -> dict:
    """Reading for training, as in `bench/shards.py input`, with its spread; and decoding alone."""
    from models import input_pipeline, profile, records, training

    import tensorflow as tf

    training.set_threads(PRODUCTION.intra_op_threads, PRODUCTION.inter_op_threads)
    turns, alone = [], {0.0: [], PRODUCTION.augmentation: []}
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        *_, labels = shards._written(pathlib.Path(folder), shards.square_photographs(), tf, records)
        split = input_pipeline.read_split("train", [str(labels)], CLASSES)
        for rates in _inputs(turns=3):
            turns.append(rates)
            for augmentation, seconds in alone.items():
                seconds.append(
                    profile.decode_seconds(
                        split, image_size=shards.IMAGE_SIZE, short_side=shards.SHORT_SIDE, augmentation=augmentation, seed=0
                    )
                )
    files = [rates["files_decoded_in_full"] for rates in turns]
    whole = [1 / rates["shards_augmented"] for rates in turns]
    return {
        "turns": len(turns),
        "augmentation": PRODUCTION.augmentation,
        "photographs_a_cpu_second": {name: _summary([rates[name] for rates in turns], 0) for name in turns[0]},
        "ratio_to_files": {name: _ratio([rates[name] for rates in turns], files) for name in turns[0]},
        "ms_of_decoding_cropped": _summary([1000 * seconds for seconds in alone[0.0]], 3),
        "ms_of_decoding_augmented": _summary([1000 * seconds for seconds in alone[PRODUCTION.augmentation]], 3),
        "share_of_decoding_in_shards_augmented": _ratio(alone[PRODUCTION.augmentation], whole),
    }


def share() -> dict:
    """The share of decoding in a step, before and after; what both cost, in processor time."""
    import tensorflow as tf

    from models import training

    training.prepare_tensorflow(PRODUCTION)
    batch, steps = 8, 3
    full, frozen = (_stepper(PRODUCTION, batch, backbone) for backbone in (True, False))
    turns = []
    for rates in _inputs(turns=3):
        turn = {"prototype": 1 / rates["files_decoded_in_full"], "ours": 1 / rates["shards_augmented"]}
        turn["ours, not augmented"] = 1 / rates["shards_cropped"]
        for name, step in (("full", full), ("frozen", frozen)):
            processor, clock = time.process_time(), time.perf_counter()
            for _ in range(steps):
                step()
            turn[name] = (time.process_time() - processor) / (steps * batch)
            turn[f"{name} by the clock"] = (time.perf_counter() - clock) / (steps * batch)
        turns.append(turn)
    assert not tf.config.list_physical_devices("GPU"), "processor time says nothing of a step on a GPU: see the part gpu"

    def column(name):
        return [turn[name] for turn in turns]

    shares = {
        f"{source}, {phase}": _summary([d / (d + c) for d, c in zip(column(source), column(phase))], 4)
        for source in ("prototype", "ours")
        for phase in ("full", "frozen")
    }
    speedup = _ratio(column("prototype"), column("ours"))
    cropped = _ratio(column("prototype"), column("ours, not augmented"))
    return {
        "turns": len(turns), "network": "ResNet-50, 224 pixels, 1,000 classes", "batch": batch, "steps_a_turn": steps,
        "ms_of_processor_a_photograph": {name: _summary([1000 * value for value in column(name)], 2) for name in turns[0]},
        "share_of_decoding": shares,
        "frozen_step_to_full": _ratio(column("frozen"), column("full")),
        "decode_speedup": speedup,
        "decode_speedup_not_augmented": cropped,
        "computed_for_the_case_not_measured": {
            "augmented": _case(speedup["median"]), "not augmented": _case(cropped["median"]),
            "as the plan assumes": _case(window.Figures().decode_speedup),
        },
    }  # fmt: skip


def _stepper(config: TrainingConfig, batch: int, backbone: bool):
    """A function that makes one training step of ResNet-50 and waits for its end; traced and warm."""
    import tensorflow as tf

    from models import loop
    from models.network import Classifier
    from models.workers import alone

    network = Classifier(NetworkConfig(), 1000, config.seed)
    step, _ = loop._trainer(network, config, alone(), backbone)
    side = network.backbone.input_shape[1]
    images = tf.cast(tf.random.stateless_uniform([batch, side, side, 3], [0, 0], 0, 255), tf.uint8)
    colours, labels = tf.random.stateless_uniform([batch, 3], [0, 1], 0.8, 1.2), tf.range(batch, dtype=tf.int64)
    arguments = images, colours, labels, tf.constant(1e-3), tf.constant([0, 0]), tf.constant(0.0)

    def run():
        return float(step(*arguments)[0])

    run()
    return run


def _case(speedup: float) -> dict:
    """The case by `pipeline.window`'s model: shares of decoding in turns, and epochs where it overlaps."""
    figures = window.Figures()
    decode = figures.decode_share * figures.epoch_hours
    compute = figures.epoch_hours - decode
    result = {"decode_speedup": speedup, "frozen_step_to_full": figures.frozen_cost, "share_of_decoding": {}}
    for gpu, ratio in (("V100", 1.0), ("A100", figures.gpu_ratio)):
        for source, faster in (("prototype", 1.0), ("ours", speedup)):
            for phase, cost in (("full", 1.0), ("frozen", figures.frozen_cost)):
                decoding = window.epoch_hours(0, decode, speedup=faster)
                computing = window.epoch_hours(compute, 0, gpu_ratio=ratio, cost=cost)
                result["share_of_decoding"][f"{gpu}, {source}, {phase}"] = round(decoding / (decoding + computing), 3)
    four = functools.partial(
        window.epoch_hours, compute, decode, speedup=speedup, gpu_ratio=figures.gpu_ratio, workers=4, efficiency=0.75,
        overlap=True,
    )  # fmt: skip
    full, frozen = four(), four(cost=figures.frozen_cost)
    result["hours_on_four_a100"] = {
        "full epoch": round(full, 2), "frozen epoch": round(frozen, 2),
        f"{figures.frozen_epochs} frozen + {figures.unfrozen_epochs} full": round(
            figures.frozen_epochs * frozen + figures.unfrozen_epochs * full, 1
        ),
        "the window leaves": figures.hours_to_train,
    }  # fmt: skip
    return result


def _week(folder: pathlib.Path, photographs: int, validation: int) -> dict:
    """Packs photographs into four shards; returns what `models.training.run_fn` reads of FnArgs, but for where it writes.

    All of them train, and the first of each shard validate too: how well they are learnt is not measured here.
    """
    import tensorflow as tf

    from models import records

    _, paths, labels = shards._written(folder, shards.square_photographs(photographs), tf, records)
    val = folder / "val.tfrecord"
    with tf.io.TFRecordWriter(str(val)) as writer:
        for record in tf.data.TFRecordDataset(str(labels)):
            shard = records.decode_labels(record.numpy())
            kept = np.where(np.arange(len(shard.labels)) < validation // len(paths), shard.labels, records.NOT_IN_SPLIT)
            writer.write(
                records.encode_labels(
                    shard_uri=shard.uri, shard_sha256=shard.sha256, shard_bytes=shard.bytes, labels=kept.tolist()
                )
            )
    schema = folder / "schema.pbtxt"
    values = " ".join(f'value: "{number}"' for number in range(CLASSES))
    schema.write_text(f'feature {{ name: "label" type: BYTES string_domain {{ name: "label" {values} }} }}\n')
    return {
        "train_files": [str(labels)], "eval_files": [str(val)], "schema_path": str(schema), "hyperparameters": None,
        "custom_config": {"network": json.loads(json.dumps(vars_of(SMALL))), "short_side": shards.SHORT_SIDE},
    }  # fmt: skip


def vars_of(config) -> dict:
    """The fields of a settings class that JSON can hold."""
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


# A worker's interpreter: takes the core that the arguments name for it, then is Python.
_ON_A_CORE = """#!{python}
import json, os, sys
task = json.loads(os.environ.get("TF_CONFIG") or "{{}}").get("task", {{}})
with open(sys.argv[-1]) as file:
    cores = json.load(file)["custom_config"]["cores"]
os.sched_setaffinity(0, {{cores[task.get("type") == "worker"]}})
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


def workers() -> dict:
    """Two workers against one. Each has one thread of either kind and is bound to a core, so two have twice the means of one.

    `two_alone` is two trainings of one worker at the same time, which share memory and cache as two workers do and have
    nothing to tell each other: the most that two workers could reach here.
    """
    if os.cpu_count() < 2:
        raise SystemExit("two workers need two cores")
    turns = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        folder = pathlib.Path(folder)
        week = _week(folder, photographs=200, validation=40)
        python = folder / "python"
        python.write_text(_ON_A_CORE.format(python=sys.executable))
        python.chmod(0o700)
        with mock.patch.object(sys, "executable", str(python)):
            for number in range(3):
                core = number % 2
                turns.append(
                    {
                        "one": _speed(week, folder / f"one-{number}", 1, [core]),
                        "two": _speed(week, folder / f"two-{number}", 2, [0, 1]),
                        "two_alone": sum(_at_once(week, folder / f"alone-{number}")),
                    }
                )
                print(turns[-1], file=sys.stderr, flush=True)
    one, two, alone = ([turn[name] for turn in turns] for name in ("one", "two", "two_alone"))
    return {
        "turns": len(turns),
        "what": (
            f"{_parameters(SMALL)} million parameters, 224 pixels, batch 32 in all; intra_op_threads and inter_op_threads 1, "
            "each process bound to one core; both cores share memory and cache, and the two speak through loopback"
        ),
        "images_per_second": {"one": _summary(one, 1), "two": _summary(two, 1), "two_alone": _summary(alone, 1)},
        "efficiency": _summary([second / (2 * first) for first, second in zip(one, two)]),
        "efficiency_of_two_alone": _summary([second / (2 * first) for first, second in zip(one, alone)]),
        "two_to_two_alone": _ratio(two, alone),
        "all_reduce": _all_reduce(),
    }


_EPOCHS = 4


def _speed(week: dict, out: pathlib.Path, count: int, cores: list[int]) -> float:
    """Images a second of the epochs after the first, over all workers."""
    from pipeline import workers

    settings = vars_of(TrainingConfig(unfrozen_epochs=_EPOCHS, batch_size=32, workers=count, intra_op_threads=1, inter_op_threads=1))
    custom = week["custom_config"] | {"training": settings, "cores": cores}
    workers.train(
        week | {"custom_config": custom, "serving_model_dir": str(out / "serving"), "model_run_dir": str(out / "run")}, count
    )
    record = json.loads((out / "run" / "training.json").read_text())
    (phase,) = record["phases"]
    return statistics.median(epoch["images_per_second"] for epoch in phase["epochs"][1:])


def _at_once(week, out):
    speeds = {}

    def run(core):
        speeds[core] = _speed(week, out / str(core), 1, [core])

    threads = [threading.Thread(target=run, args=(core,)) for core in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [speeds[core] for core in (0, 1)]


def _parameters(config: NetworkConfig) -> float:
    from models.network import Classifier

    return round(Classifier(config, CLASSES, 0).parameters / 1e6, 2)


def _all_reduce() -> dict:
    """Milliseconds of one all-reduce between two processes on loopback, of gradients as large as a network's."""
    from pipeline.workers import loopback

    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--child", "all_reduce", str(core)],
            env=os.environ | {"TF_CONFIG": json.dumps(task)}, stdout=subprocess.PIPE, text=True,
        )
        for core, task in enumerate(loopback(2))
    ]  # fmt: skip
    chief, _ = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("the all-reduce failed")
    return json.loads(chief.splitlines()[-1])


def _all_reduce_child(core: str) -> dict:
    os.sched_setaffinity(0, {int(core)})
    import tensorflow as tf

    from models import loop, training
    from models import workers as teams
    from models.network import Classifier

    config = TrainingConfig(batch_size=32, workers=2, intra_op_threads=1, inter_op_threads=1)
    training.set_threads(config.intra_op_threads, config.inter_op_threads)
    team = teams.join(2)
    training.prepare_tensorflow(config)
    with team.strategy.scope():
        small = Classifier(SMALL, CLASSES, 0)
        step, _ = loop._trainer(small, config, team, backbone=True)
    scalar = tf.TensorSpec([], tf.float32)
    traced = step.get_concrete_function(
        tf.TensorSpec([16, 224, 224, 3], tf.uint8), tf.TensorSpec([16, 3]), tf.TensorSpec([16], tf.int64), scalar,
        tf.TensorSpec([2], tf.int32), scalar,
    )
    graph = traced.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    result = {"collectives_a_step_of_the_small_network": sum(node.op.startswith("CollectiveReduce") for node in nodes)}

    networks = {"one number": None, "the small network": small, "ResNet-50": Classifier(NetworkConfig(), 1000, 0)}
    for name, network in networks.items():
        shapes = [[]] if network is None else [v.shape for v in (*network.backbone.trainable_variables, *network.head.trainable_variables)]
        gradients = [tf.ones(shape) for shape in shapes]

        @tf.function
        def reduce():
            def replica():
                return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradients)

            return team.strategy.experimental_local_results(team.strategy.run(replica)[0])[0]

        reduce()
        times = []
        for _ in range(12):
            team.wait()
            started = time.perf_counter()
            np.asarray(reduce())
            times.append(1000 * (time.perf_counter() - started))
        megabytes = sum(math.prod(shape) for shape in shapes) * 4 / 1e6
        result[name] = {"megabytes": round(megabytes, 1), "ms": _summary(times, 1)}
    team.wait()
    return result


def determinism() -> dict:
    """What TensorFlow's op determinism costs; without it the data come in the same order, and sums in any."""
    modes = ("repeatable", "not_repeatable")
    turns = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        week = pathlib.Path(folder, "week.json")
        week.write_text(json.dumps(_week(pathlib.Path(folder), photographs=400, validation=40)))
        for _ in range(3):
            turns.append({})
            for mode in modes:
                done = subprocess.run(
                    [sys.executable, __file__, "--child", "determinism", mode, str(week)],
                    check=True, stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                turns[-1][mode] = json.loads(done.stdout.splitlines()[-1])
            print(turns[-1], file=sys.stderr, flush=True)
    seconds = {mode: [turn[mode]["seconds"] for turn in turns] for mode in modes}
    return {
        "turns": len(turns),
        "what": f"{_parameters(SMALL)} million parameters, 224 pixels, batch 32, {os.cpu_count()} threads of either kind",
        "seconds_an_epoch": {mode: _summary(seconds[mode]) for mode in modes},
        "repeatable_to_not": _ratio(seconds["repeatable"], seconds["not_repeatable"]),
        "different_weights": {mode: len({turn[mode]["val_loss"] for turn in turns}) for mode in modes},
    }


def _determinism_child(mode: str, week: str) -> dict:
    import tf_keras

    from models import input_pipeline, loop, training

    week = json.loads(pathlib.Path(week).read_text())
    config = TrainingConfig(
        unfrozen_epochs=_EPOCHS, batch_size=32, intra_op_threads=os.cpu_count(), inter_op_threads=os.cpu_count()
    )
    if mode == "not_repeatable":
        # `training.prepare_tensorflow` without its last line.
        training.set_threads(config.intra_op_threads, config.inter_op_threads)
        tf_keras.backend.clear_session()
        tf_keras.utils.set_random_seed(config.seed + 1)
    else:
        training.prepare_tensorflow(config)
    train, val = (
        input_pipeline.read_split(name, week[files], CLASSES) for name, files in (("train", "train_files"), ("val", "eval_files"))
    )
    network, _ = training.make_network(SMALL, config, CLASSES)
    result = loop.fit(network, train, val, SMALL.image_size, shards.SHORT_SIDE, config)
    (phase,) = result.phases
    images = result.steps // _EPOCHS * config.batch_size
    return {
        "seconds": images / statistics.median(epoch["images_per_second"] for epoch in phase["epochs"][1:]),
        "val_loss": result.val_loss,
    }


def checkpoints() -> dict:
    """Saving and loading ResNet-50 in its unfrozen phase, on this machine's disk; what that is of an epoch of the case."""
    import tensorflow as tf

    from models import loop, training
    from models.checkpoints import Checkpoint
    from models.network import Classifier
    from models.workers import alone

    training.prepare_tensorflow(PRODUCTION)
    team = alone()
    network = Classifier(NetworkConfig(), 1000, 0)
    _, optimizer = loop._trainer(network, PRODUCTION, team, backbone=True)
    for number, variable in enumerate(optimizer.variables):
        # Noise, as after a step: zeros would be no fair test of a disk.
        if variable.dtype == tf.float32:
            variable.assign(tf.random.stateless_uniform(variable.shape, [number, 0]))
    best = team.values(network.weights)
    saving, loading, before = [], [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for _ in range(5):
            checkpoint = Checkpoint(folder, {}, PRODUCTION.checkpoint_minutes)
            started = time.perf_counter()
            arrays = {"network": team.values(network.weights), "optimizer": team.values(optimizer.variables), "best": best}
            checkpoint.save({"step": 1}, arrays)
            saving.append(time.perf_counter() - started)
            (file,) = pathlib.Path(folder).glob("*/checkpoint.npz")
            megabytes = file.stat().st_size / 1e6
            started = time.perf_counter()
            _, arrays = checkpoint.load()
            team.assign(network.weights, arrays["network"])
            team.assign(optimizer.variables, arrays["optimizer"])
            loading.append(time.perf_counter() - started)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = statistics.median(saving)
    return {
        "turns": len(saving), "network": "ResNet-50, 1,000 classes", "megabytes": round(megabytes),
        "seconds_to_save": _summary(saving), "seconds_to_load": _summary(loading),
        "more_peak_memory_mib": round((after - before) / 1024),
        "checkpoint_minutes": PRODUCTION.checkpoint_minutes,
        "of_an_epoch_of_the_case": {name: _of_an_epoch(seconds, hours) for name, hours in _case_epochs().items()},
    }  # fmt: skip


def _case_epochs() -> dict[str, float]:
    """Hours of a full epoch of the case with the input fixed, by `pipeline.window`."""
    figures = window.Figures()
    decode = figures.decode_share * figures.epoch_hours
    hours = functools.partial(
        window.epoch_hours, figures.epoch_hours - decode, decode, speedup=figures.decode_speedup, gpu_ratio=figures.gpu_ratio,
        overlap=True,
    )  # fmt: skip
    return {"one A100": hours(), "four A100, 75 % efficient": hours(workers=4, efficiency=0.75)}


def _of_an_epoch(seconds: float, hours: float) -> dict:
    count = math.floor(60 * hours / PRODUCTION.checkpoint_minutes) + 1  # and one at its end
    return {"hours": round(hours, 2), "checkpoints": count, "share": round(count * seconds / (3600 * hours), 5)}


def gpu() -> dict:
    """ResNet-50 on this machine's GPU with and without mixed precision, and the share of decoding there."""
    import tensorflow as tf

    from models import training

    devices = tf.config.list_physical_devices("GPU")
    if not devices:
        print("not measured: no GPU here")
        return {"result": "not measured: no GPU here"}
    # Before anything runs, because the counts are then fixed.
    training.set_threads(os.cpu_count(), os.cpu_count())
    rates = [turn["shards_augmented"] for turn in _inputs(turns=3)]
    # Every core decodes.
    decode = 1 / (statistics.median(rates) * os.cpu_count())
    result = {"devices": [tf.config.experimental.get_device_details(device).get("device_name") for device in devices]}
    return result | {"result": "measured", "ms_of_decoding_a_photograph": round(1000 * decode, 3), **_precisions(decode, 64, 20)}


def _precisions(decode: float, batch: int, steps: int) -> dict:
    from models import training

    result = {}
    for mixed in (False, True):
        config = TrainingConfig(
            intra_op_threads=os.cpu_count(), inter_op_threads=os.cpu_count(), mixed_precision=mixed
        )
        training.prepare_tensorflow(config)
        figures = result["mixed precision" if mixed else "32 bits"] = {}
        for phase, backbone in (("full", True), ("frozen", False)):
            step = _stepper(config, batch, backbone)
            times = []
            for _ in range(5):
                started = time.perf_counter()
                for _ in range(steps):
                    step()
                times.append((time.perf_counter() - started) / (steps * batch))
            figures[phase] = {
                "images_per_second": _summary([1 / seconds for seconds in times], 0),
                "share_of_decoding": _summary([decode / (decode + seconds) for seconds in times], 3),
            }
    return result


PARTS = {
    "input": input_,
    "share": share,
    "workers": workers,
    "determinism": determinism,
    "checkpoints": checkpoints,
    "gpu": gpu,
}

_CHILDREN = {"all_reduce": _all_reduce_child, "determinism": _determinism_child}


if __name__ == "__main__":
    sys.exit(main())
