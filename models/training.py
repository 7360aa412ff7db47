"""Trains the classifier and exports it: the `run_fn` of TFX's Trainer.

Read `run_fn` first, then `models.loop.fit`. With the same data, settings and versions, each run gives the same weights, bit for
bit, in another process or after other work in the same one.
"""

import dataclasses
import json
import logging
import os
import pathlib
import platform
import posixpath
from collections.abc import Mapping

import pydantic
import tensorflow as tf
import tf_keras

from models import files, input_pipeline, loop, profile, profile_page, serving, smoke, workers
from models.checkpoints import Checkpoint
from models.classes import parse_classes
from models.code import code_digest
from models.config import NetworkConfig, TrainingConfig, with_hyperparameters
from models.errors import TrainingError
from models.network import Classifier, load_backbone
from models.workers import alone

_log = logging.getLogger(__name__)

def run_fn(fn_args) -> None:
    """Trains on the label records of this week and writes the SavedModel.

    Every worker of the training calls it (`models.workers`); the chief writes, and all return when it has.

    Args:
        fn_args: TFX's FnArgs. Read are
            train_files, eval_files: glob patterns of the label records of train and val;
            schema_path: a schema whose feature `label` has a string domain, the classes in the order of the logits;
            custom_config: `network`, `training` (the fields of their dataclasses), `short_side`, pixels, and if wanted
                `checkpoints`, the folder where a training that is killed leaves what the next one goes on from;
                `window_end`, a Unix time: training stops `reserve_minutes` before it; `stop_after`, a number of steps after
                which it stops as if the window ended, to repeat one that did;
            hyperparameters: None, or the config of KerasTuner's HyperParameters, which overrides `training`;
            serving_model_dir: where the SavedModel goes, and with it the smoke set (`models.smoke`);
            model_run_dir: where `training.json`, the record of this training, goes, its profile (`profile.html`) and the
                scalars for TensorBoard (`tensorboard/`).

    Raises:
        TrainingError: Settings or data cannot be used, or another worker is missing or was lost; the text says which and
            why.
    """
    network_config, config, short_side = settings_of(fn_args)
    set_threads(config.intra_op_threads, config.inter_op_threads)
    team = workers.join(config.workers)
    try:
        _train(fn_args, network_config, config, short_side, team)
        # TFX wants to see the model on every worker; should the chief end before it is there, this fails.
        team.wait()
    except tf.errors.OpError as error:
        if team.count == 1 or not workers.is_lost(error):
            raise
        raise TrainingError(
            f"worker {team.index} lost another of the {team.count} workers, whose own log says why "
            f"({input_pipeline.plain(error)}). Start the training again: it goes on from its checkpoint"
        ) from error


def _train(fn_args, network_config, config, short_side, team):
    classes = read_classes(fn_args.schema_path)
    prepare_tensorflow(config)
    train = input_pipeline.read_split("train", fn_args.train_files, len(classes))
    input_pipeline.require_every_class(train, classes)
    val = input_pipeline.read_split("val", fn_args.eval_files, len(classes))
    with team.strategy.scope():
        network, backbone_digest = make_network(network_config, config, len(classes))
    _log.info(
        "training on %d photographs, %d for validation, %d classes, %.2f million parameters%s",
        train.examples, val.examples, len(classes), network.parameters / 1e6,
        f", {team.count} workers" if team.count > 1 else "",
    )  # fmt: skip
    custom = fn_args.custom_config
    code = code_digest()
    checkpoint = None
    if custom.get("checkpoints"):
        identity = {
            "network": dataclasses.asdict(network_config),
            "training": {
                **dataclasses.asdict(config),
                "backbone": backbone_digest,
                # No weight depends on them.
                "checkpoint_minutes": None,
                "reserve_minutes": None,
            },
            "short_side": short_side,
            "classes": classes,
            "splits": [input_pipeline.digest(train), input_pipeline.digest(val)],
            "tensorflow": _tensorflow_facts(),
            "replicas": team.replicas,
            "code": code,
        }
        checkpoint = Checkpoint(custom["checkpoints"], identity, config.checkpoint_minutes)
    threads = min(config.inter_op_threads, os.cpu_count() or 1)
    board = decode_seconds = None
    if team.is_chief:
        board = profile.TensorBoard(posixpath.join(fn_args.model_run_dir, "tensorboard"))
        decode_seconds = profile.decode_seconds(
            train, image_size=network_config.image_size, short_side=short_side, augmentation=config.augmentation,
            seed=config.seed,
        )  # fmt: skip
        _log.info("decoding can keep up with %.0f images/s on %d threads of a worker", threads / decode_seconds, threads)
    window_end = custom.get("window_end")
    result = loop.fit(
        network, train, val, network_config.image_size, short_side, config,
        on_epoch=board.epoch if board else lambda phase, measured: None,
        checkpoint=checkpoint,
        deadline=window_end and window_end - 60 * config.reserve_minutes,
        stop_after=custom.get("stop_after"),
        workers=team,
    )  # fmt: skip
    if not team.is_chief:
        return
    board.close()
    # A network of its own to serve: outside the strategy, where its statistics are nobody else's, and in 32 bits, which
    # every processor computes fast.
    tf_keras.mixed_precision.set_global_policy("float32")
    served = Classifier(network_config, len(classes), config.seed)
    alone().assign(served.weights, team.values(network.weights))
    serving.export(served, classes, network_config.image_size, short_side, fn_args.serving_model_dir)
    smoke.write(served, val, classes, network_config.image_size, short_side, fn_args.serving_model_dir)
    record = {
        "weights_sha256": serving.weights_digest(fn_args.serving_model_dir),
        "backbone_sha256": backbone_digest,
        "seed": config.seed,
        "network": dataclasses.asdict(network_config),
        "training": dataclasses.asdict(config),
        "hyperparameters": _hyperparameter_values(fn_args.hyperparameters),
        "short_side": short_side,
        "classes": list(classes),
        "examples": {"train": train.examples, "val": val.examples},
        "splits_sha256": {"train": input_pipeline.digest(train), "val": input_pipeline.digest(val)},
        "parameters": network.parameters,
        "tensorflow": _tensorflow_facts(),
        "processor": _processor(),
        "code_sha256": code,
        "workers": team.count,
        "replicas": team.replicas,
        "decode_seconds_per_image": decode_seconds,
        "decode_share": profile.decode_share(
            decode_seconds, threads=threads, images=1,
            busy_seconds=(1 - result.input_wait_share) * team.count / result.images_per_second,
        ),
        **dataclasses.asdict(result),
    }  # fmt: skip
    tf.io.gfile.makedirs(fn_args.model_run_dir)
    text = json.dumps(record, indent=2, sort_keys=True) + "\n"
    files.write(posixpath.join(fn_args.model_run_dir, "training.json"), text)
    profile_page.write(record, fn_args.model_run_dir)
    if checkpoint:
        checkpoint.remove()


def settings_of(fn_args) -> tuple[NetworkConfig, TrainingConfig, int]:
    """Reads network, training (hyperparameters put in) and short side from TFX's FnArgs. Raises TrainingError."""
    custom = fn_args.custom_config or {}
    for name in ("network", "training", "short_side"):
        if name not in custom:
            raise TrainingError(f"the Trainer's custom_config lacks {name!r}; it has {sorted(custom)}")
    try:
        network = NetworkConfig(**custom["network"])
        training = with_hyperparameters(TrainingConfig(**custom["training"]), fn_args.hyperparameters)
    except (pydantic.ValidationError, ValueError, TypeError) as error:
        raise TrainingError(f"the settings of the training cannot be used: {error}") from error
    short_side = custom["short_side"]
    if not isinstance(short_side, int) or short_side < network.image_size:
        raise TrainingError(f"short_side {short_side!r} must be a whole number, at least image_size {network.image_size}")
    return network, training, short_side


def read_classes(schema_path: str) -> tuple[str, ...]:
    """Reads the classes, in the order of the logits, from a schema file. Raises TrainingError."""
    try:
        with tf.io.gfile.GFile(schema_path) as file:
            text = file.read()
    except tf.errors.OpError as error:
        raise TrainingError(f"cannot read the schema {schema_path}: {input_pipeline.plain(error)}") from error
    return parse_classes(text, schema_path)


def set_threads(intra_op: int, inter_op: int) -> None:
    """Fixes TensorFlow's thread counts, on which the last bits of a sum depend.

    Only works before TensorFlow has run anything; a process that does other TensorFlow work first calls it at its start.

    Args:
        intra_op: Threads inside one operation.
        inter_op: Operations that run at once.

    Raises:
        TrainingError: TensorFlow is already running with other counts.
    """
    threading = tf.config.threading
    found = threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads()
    if found == (intra_op, inter_op):
        return
    try:
        threading.set_intra_op_parallelism_threads(intra_op)
        threading.set_inter_op_parallelism_threads(inter_op)
    except RuntimeError as error:
        raise TrainingError(
            f"TensorFlow already runs with {found[0]} intra-op and {found[1]} inter-op threads (0: as many as there are "
            f"cores), the training wants {intra_op} and {inter_op}: call models.training.set_threads({intra_op}, "
            f"{inter_op}) before anything else uses TensorFlow"
        ) from error


def prepare_tensorflow(config: TrainingConfig) -> None:
    """Makes what follows a function of its inputs: threads, determinism, seeds, and no trace of earlier models."""
    set_threads(config.intra_op_threads, config.inter_op_threads)
    tf_keras.backend.clear_session()
    tf_keras.mixed_precision.set_global_policy("mixed_bfloat16" if config.mixed_precision else "float32")
    # Not 0: TensorFlow then compares the seed of each shuffle with 0 too, and ours are tensors, which have no truth.
    tf_keras.utils.set_random_seed(config.seed + 1)
    tf.config.experimental.enable_op_determinism()


def make_network(network: NetworkConfig, training: TrainingConfig, classes: int) -> tuple[Classifier, str]:
    """Makes the network, its backbone from a checkpoint or a model if there is one; also its digest, or ""."""
    model = Classifier(network, classes, training.seed)
    if not training.backbone:
        return model, ""
    return model, load_backbone(model.backbone, training.backbone)


def _hyperparameter_values(hyperparameters: Mapping | None) -> dict:
    hyperparameters = hyperparameters or {}
    return dict(hyperparameters.get("values", hyperparameters))


def _processor() -> str:
    """The processor's model, on which the last bits depend: TensorFlow chooses instructions by it."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


# What in the environment may change the last bits.
_FLAGS = ("NVIDIA_TF32_OVERRIDE", "TF_ENABLE_ONEDNN_OPTS", "TF_XLA_FLAGS", "XLA_FLAGS")


def _tensorflow_facts() -> dict:
    build = tf.sysconfig.get_build_info()
    return {
        "version": tf.__version__,
        "git_version": tf.version.GIT_VERSION,
        "compiler": tf.version.COMPILER_VERSION,
        "cuda": bool(build.get("is_cuda_build")),
        "devices": sorted(device.device_type for device in tf.config.list_logical_devices()),
        "flags": {name: os.environ.get(name, "unset") for name in _FLAGS},
    }
