"""Trains the classifier and exports it: the `run_fn` of TFX's Trainer.

Read `run_fn` first, then `fit`. With the same data, settings and versions, each run gives the same weights, bit for
bit, in another process or after other work in the same one.
"""

import dataclasses
import hashlib
import json
import logging
import math
import pathlib
import posixpath
import time
from collections.abc import Callable, Mapping

import numpy as np
import pydantic
import tensorflow as tf
import tf_keras

from models import input_pipeline, serving
from models.checkpoints import Checkpoint
from models.classes import parse_classes
from models.config import NetworkConfig, TrainingConfig, with_hyperparameters
from models.errors import TrainingError
from models.network import Classifier, load_backbone

_log = logging.getLogger(__name__)

FROZEN, UNFROZEN = "frozen", "unfrozen"

_SECONDS_BETWEEN_REPORTS = 30.0


def run_fn(fn_args) -> None:
    """Trains on the label records of this week and writes the SavedModel.

    Args:
        fn_args: TFX's FnArgs. Read are
            train_files, eval_files: glob patterns of the label records of train and val;
            schema_path: a schema whose feature `label` has a string domain, the classes in the order of the logits;
            custom_config: `network`, `training` (the fields of their dataclasses), `short_side`, pixels, and if wanted
                `checkpoints`, the folder where a training that is killed leaves what the next one goes on from, and
                `window_end`, a Unix time: training stops `reserve_minutes` before it;
            hyperparameters: None, or the config of KerasTuner's HyperParameters, which overrides `training`;
            serving_model_dir: where the SavedModel goes;
            model_run_dir: where `training.json`, the record of this training, goes.

    Raises:
        TrainingError: Settings or data cannot be used; the text says which and why.
    """
    network_config, config, short_side = settings_of(fn_args)
    classes = read_classes(fn_args.schema_path)
    prepare_tensorflow(config)

    train = input_pipeline.read_split("train", fn_args.train_files, len(classes))
    val = input_pipeline.read_split("val", fn_args.eval_files, len(classes))
    network, backbone_sha256 = make_network(network_config, config, len(classes))
    _log.info(
        "training on %d photographs, %d for validation, %d classes, %.2f million parameters",
        train.examples, val.examples, len(classes), network.parameters / 1e6,
    )  # fmt: skip
    checkpoint = None
    if root := fn_args.custom_config.get("checkpoints"):
        identity = {
            "network": dataclasses.asdict(network_config),
            "training": {
                **dataclasses.asdict(config),
                "backbone": backbone_sha256,
                # No weight depends on them.
                "checkpoint_minutes": None,
                "reserve_minutes": None,
            },
            "short_side": short_side,
            "classes": classes,
            "splits": [input_pipeline.digest(train), input_pipeline.digest(val)],
            "tensorflow": _tensorflow_facts(),
            "code": _code_digest(),
        }
        checkpoint = Checkpoint(root, identity, config.checkpoint_minutes)
    window_end = fn_args.custom_config.get("window_end")
    result = fit(
        network, train, val, network_config.image_size, short_side, config,
        checkpoint=checkpoint, deadline=window_end and window_end - 60 * config.reserve_minutes,
    )  # fmt: skip

    serving.export(network, classes, network_config.image_size, short_side, fn_args.serving_model_dir)
    record = {
        "weights_sha256": serving.weights_digest(fn_args.serving_model_dir),
        "backbone_sha256": backbone_sha256,
        "seed": config.seed,
        "network": dataclasses.asdict(network_config),
        "training": dataclasses.asdict(config),
        "hyperparameters": _hyperparameter_values(fn_args.hyperparameters),
        "short_side": short_side,
        "classes": list(classes),
        "examples": {"train": train.examples, "val": val.examples},
        "parameters": network.parameters,
        "tensorflow": _tensorflow_facts(),
        **dataclasses.asdict(result),
    }
    tf.io.gfile.makedirs(fn_args.model_run_dir)
    with tf.io.gfile.GFile(posixpath.join(fn_args.model_run_dir, "training.json"), "w") as file:
        file.write(json.dumps(record, indent=2, sort_keys=True) + "\n")
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
    # Not 0: TensorFlow then compares the seed of each shuffle with 0 too, and ours are tensors, which have no truth.
    tf_keras.utils.set_random_seed(config.seed + 1)
    tf.config.experimental.enable_op_determinism()


def make_network(network: NetworkConfig, training: TrainingConfig, classes: int) -> tuple[Classifier, str]:
    """Makes the network, its backbone from the checkpoint if there is one; also the checkpoint's SHA-256, or ""."""
    model = Classifier(network, classes, training.seed)
    if not training.backbone:
        return model, ""
    return model, hashlib.sha256(load_backbone(model.backbone, training.backbone)).hexdigest()


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a training.

    Attributes:
        phases: One for each phase that ran: `name`, `epochs` (a list of what was measured after each: `epoch`, from 1
            over both phases; `loss`, mean over the epoch with label smoothing; `val_loss`, `val_accuracy`;
            `images_per_second`; `seconds` with validation).
        val_loss: Mean cross-entropy on val of the weights that were kept, in nats.
        val_accuracy: Share of val that they classify rightly.
        best_epoch: The epoch that they come from.
        epochs_run: Epochs over both phases.
        images_per_second: Mean over training, without validation.
        input_wait_share: Share of the training time, 0 to 1, in which the step waited for its batch.
        seconds: The whole training, without the export, what came before it was killed included.
        stopped_by_window: Whether the window's end stopped it; its last epoch is then shorter than the others, and other
            weights may come of the same settings.
    """

    phases: list[dict]
    val_loss: float
    val_accuracy: float
    best_epoch: int
    epochs_run: int
    images_per_second: float
    input_wait_share: float
    seconds: float
    stopped_by_window: bool


def fit(
    network: Classifier,
    train: input_pipeline.Split,
    val: input_pipeline.Split,
    image_size: int,
    short_side: int,
    config: TrainingConfig,
    on_epoch: Callable[[int, dict], None] = lambda epoch, measured: None,
    checkpoint: Checkpoint | None = None,
    deadline: float | None = None,
) -> Result:
    """Trains the network in its phases and leaves the best weights in it.

    Best is the least validation loss: on a small val split accuracy moves in coarse steps and the loss does not.

    Args:
        network: The network; trained in place.
        train: What it learns from.
        val: What decides when to stop and which weights to keep.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        config: Everything else.
        on_epoch: Called after each epoch with its number, from 1, and what was measured; may raise to end the training.
        checkpoint: Where the training was left, if it was, and where it is saved: after each epoch, and in longer epochs
            every `config.checkpoint_minutes`. It ends with the same weights, wherever it was left and how often.
        deadline: Unix time at which training must be over, its last validation included; what it has learnt by then is
            judged as an epoch is.

    Returns:
        What was measured.

    Raises:
        TrainingError: The data cannot be read, the loss is no longer a number, or the deadline leaves no time for a step.
    """
    started = time.perf_counter()
    batch_size = min(config.batch_size, train.examples)
    steps = input_pipeline.steps_per_epoch(train, batch_size)
    sizes = {"image_size": image_size, "short_side": short_side}
    val_data = input_pipeline.validation_dataset(val, batch_size=config.batch_size, **sizes)
    evaluate = _evaluator(network, val_data.element_spec)
    best, best_weights = None, None
    phases, wait, work, trained, validation, before = [], 0.0, 0.0, 0, 0.0, 0.0
    stopped = False
    left = _Left.off(checkpoint)
    if left:
        best, phases, wait, work, trained = (left.state[key] for key in ("best", "phases", "wait", "work", "trained"))
        before = left.state["elapsed"]
        best_weights = left.arrays.get("best")
        _assign(network.weights, left.arrays["network"])

    for name, epochs in ((FROZEN, config.frozen_epochs), (UNFROZEN, config.unfrozen_epochs)):
        if not epochs or stopped or left and left.state["phase"] != name and name == FROZEN:
            continue
        train_step, optimizer = _trainer(network, config, backbone=name == UNFROZEN)
        resumed = left if left and left.state["phase"] == name else None
        left = None
        if resumed:
            _assign(optimizer.variables, resumed.arrays["optimizer"])
            first, next_epoch, done = (resumed.state[key] for key in ("first", "next_epoch", "step"))
            losses, since_best, so_far = resumed.state["losses"], resumed.state["since_best"], resumed.state["seconds"]
            _log.info(
                "going on where a training was left: epoch %d/%d, step %d/%d", next_epoch, config.epochs, done, steps
            )
        else:
            first = sum(len(phase["epochs"]) for phase in phases)
            phases.append({"name": name, "epochs": []})
            next_epoch, done, losses, since_best, so_far = first + 1, 0, [], 0, 0.0
        data = input_pipeline.training_dataset(
            train,
            batch_size=batch_size,
            epochs=range(next_epoch - 1, first + epochs),
            skip_steps=done,
            augmentation=config.augmentation,
            seed=config.seed,
            **sizes,
        )
        # Traced before the clock starts, as the evaluation is: the first epoch's rate is then training's own.
        train_step.get_concrete_function(*data.element_spec, tf.TensorSpec([], tf.float32), tf.TensorSpec([2], tf.int32))
        peak = config.frozen_learning_rate if name == FROZEN else config.learning_rate
        warmup = 0 if name == FROZEN else round(config.warmup_epochs * steps)
        batches = _Timed(_readable(data, train))

        def save(next_epoch, step):
            state = {
                "phase": name, "first": first, "next_epoch": next_epoch, "step": step, "since_best": since_best,
                "losses": [float(value) for value in losses], "seconds": so_far, "best": best, "phases": phases,
                "wait": wait, "work": work, "trained": trained, "elapsed": before + time.perf_counter() - started,
            }  # fmt: skip
            arrays = {"network": _values(network.weights), "optimizer": _values(optimizer.variables)}
            checkpoint.save(state, arrays | ({"best": best_weights} if best_weights else {}))

        for epoch in range(next_epoch, first + epochs + 1):
            epoch_started, told = time.perf_counter(), time.perf_counter()
            for step in range(done, steps):
                if deadline is not None and time.time() + validation > deadline:
                    stopped = True
                    break
                waited = batches.seconds
                images, labels = next(batches)
                wait += batches.seconds - waited
                in_phase = (epoch - 1 - first) * steps + step
                rate = learning_rate(in_phase, total=epochs * steps, warmup=warmup, peak=peak)
                key = tf.constant([config.seed, first * steps + in_phase], tf.int32)
                losses.append(train_step(images, labels, tf.constant(rate, tf.float32), key))
                now = time.perf_counter()
                if now - told >= _SECONDS_BETWEEN_REPORTS:
                    told, speed = now, (step + 1) * batch_size / (so_far + now - epoch_started)
                    _log.info(
                        "epoch %d/%d %s: step %d/%d, %.0f images/s", epoch, config.epochs, name, step + 1, steps, speed
                    )
                if checkpoint and step + 1 < steps and checkpoint.due():
                    so_far += time.perf_counter() - epoch_started
                    save(epoch, step + 1)
                    epoch_started = time.perf_counter()
            if not losses:
                break
            loss = float(np.mean([float(value) for value in losses]))
            trained += len(losses) * batch_size
            seconds = so_far + time.perf_counter() - epoch_started
            work += seconds

            validation_started = time.perf_counter()
            val_loss, val_accuracy = evaluate(_readable(val_data, val))
            validation = time.perf_counter() - validation_started
            measured = {
                "epoch": epoch,
                "loss": loss,
                "val_loss": val_loss,
                "val_accuracy": val_accuracy,
                "images_per_second": len(losses) * batch_size / seconds,
                "seconds": seconds + validation,
            }
            phases[-1]["epochs"].append(measured)
            _log_epoch(config, name, measured, epochs_left=config.epochs - epoch)
            if not (math.isfinite(loss) and math.isfinite(val_loss)):
                bad = next((number for number, value in enumerate(losses, 1) if not math.isfinite(float(value))), None)
                raise Diverged(
                    f"the loss is no number any more in epoch {epoch} ({name}), "
                    + (f"from step {bad} of {steps} on" if bad else "in validation")
                    + f": lower the learning rate, now {peak:g}"
                )
            on_epoch(epoch, measured)
            if best is None or val_loss < best["val_loss"]:
                best, since_best = measured, 0
                best_weights = _values(network.weights)
            else:
                since_best += 1
            done, losses, so_far = 0, [], 0.0
            if stopped:
                break
            ends_early = since_best >= config.early_stopping_patience
            if checkpoint:
                save(first + epochs + 1 if ends_early else epoch + 1, 0)
            if ends_early:
                _log.info("no better validation loss for %d epochs: the %s phase ends early", since_best, name)
                break
        if best_weights is None:
            raise TrainingError(
                "the window leaves no time to train: not one step fits before its end less training.reserve_minutes "
                f"({config.reserve_minutes:g}). Start earlier, or give a later end"
            )
        _assign(network.weights, best_weights)

    if stopped:
        _log.info("the window ends: training stops in epoch %d of %d", sum(len(phase["epochs"]) for phase in phases), config.epochs)
    epochs_run = sum(len(phase["epochs"]) for phase in phases)
    return Result(
        phases=[phase for phase in phases if phase["epochs"]],  # the window may end before the first step of one
        val_loss=best["val_loss"],
        val_accuracy=best["val_accuracy"],
        best_epoch=best["epoch"],
        epochs_run=epochs_run,
        images_per_second=trained / work,
        input_wait_share=wait / work,
        seconds=before + time.perf_counter() - started,
        stopped_by_window=stopped,
    )


@dataclasses.dataclass(frozen=True)
class _Left:
    """Where a training was left."""

    state: dict
    arrays: dict[str, list[np.ndarray]]

    @classmethod
    def off(cls, checkpoint: Checkpoint | None) -> "_Left | None":
        found = checkpoint.load() if checkpoint else None
        return found and cls(*found)


def _values(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def _assign(variables, values) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class Diverged(TrainingError):
    """The loss is infinite or not a number."""


def learning_rate(step: int, *, total: int, warmup: int, peak: float) -> float:
    """Linear warm-up, then half a cosine to 0 (Loshchilov & Hutter, https://arxiv.org/abs/1608.03983).

    >>> [round(learning_rate(step, total=6, warmup=2, peak=1.0), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]

    Args:
        step: The step, from 0.
        total: Steps of the phase.
        warmup: Steps of warm-up; 0 for none.
        peak: The highest rate.

    Returns:
        The learning rate of that step.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def _trainer(network: Classifier, config: TrainingConfig, backbone: bool):
    """A function of one step, and its optimiser; what it trains is fixed, so each phase has its own."""
    variables = [*(network.backbone.trainable_variables if backbone else ()), *network.head.trainable_variables]
    optimizer = tf_keras.optimizers.AdamW(weight_decay=config.weight_decay)
    # Decay belongs to kernels; on scales and shifts it only fights the batch norm.
    optimizer.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
    optimizer.build(variables)

    @tf.function(reduce_retracing=True)
    def step(images, labels, rate, key):
        optimizer.learning_rate.assign(rate)
        with tf.GradientTape() as tape:
            logits = network(images, train_backbone=backbone, dropout=config.dropout, seed=key)
            loss = tf.reduce_mean(smoothed_cross_entropy(logits, labels, config.label_smoothing))
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return step, optimizer


def _evaluator(network: Classifier, spec):
    @tf.function(reduce_retracing=True)
    def sums(images, labels):
        logits = network(images)
        right = tf.argmax(logits, axis=1) == labels
        return tf.reduce_sum(smoothed_cross_entropy(logits, labels, 0.0)), tf.reduce_sum(tf.cast(right, tf.int64))

    sums.get_concrete_function(*spec)

    def evaluate(batches) -> tuple[float, float]:
        loss, right, examples = 0.0, 0, 0
        for images, labels in batches:
            batch_loss, batch_right = sums(images, labels)
            loss, right, examples = loss + float(batch_loss), right + int(batch_right), examples + len(labels)
        return loss / examples, right / examples

    return evaluate


def smoothed_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, smoothing: float) -> tf.Tensor:
    """Cross-entropy against targets of 1 - s + s/K for the label and s/K elsewhere.

    Args:
        logits: float [batch, K].
        labels: int [batch].
        smoothing: s, 0 to 1.

    Returns:
        float [batch], in nats.
    """
    classes = logits.shape[-1]
    targets = tf.one_hot(labels, classes, on_value=1 - smoothing + smoothing / classes, off_value=smoothing / classes)
    return tf.nn.softmax_cross_entropy_with_logits(targets, logits)


class _Timed:
    """An iterator that measures how long its caller waits."""

    def __init__(self, iterable):
        self._iterator = iter(iterable)
        self.seconds = 0.0

    def __next__(self):
        started = time.perf_counter()
        item = next(self._iterator)
        self.seconds += time.perf_counter() - started
        return item


def _readable(dataset, split):
    """Yields the batches; a failure to read them is looked into and named."""
    try:
        yield from dataset
    except tf.errors.OpError as error:
        found = input_pipeline.explain(split)
        raise TrainingError(found or f"the {split.name} split cannot be read: {input_pipeline.plain(error)}") from error


def _log_epoch(config, phase, measured, epochs_left):
    _log.info(
        "epoch %d/%d %s: loss %.3f, val accuracy %.3f, %.0f images/s, %.0f s left",
        measured["epoch"], config.epochs, phase, measured["loss"], measured["val_accuracy"],
        measured["images_per_second"], measured["seconds"] * epochs_left,
    )  # fmt: skip


def _hyperparameter_values(hyperparameters: Mapping | None) -> dict:
    hyperparameters = hyperparameters or {}
    return dict(hyperparameters.get("values", hyperparameters))


def _code_digest() -> str:
    """SHA-256 of the modules beside this one: a training does not go on with other code than it began with."""
    content = hashlib.sha256()
    for path in sorted(pathlib.Path(__file__).parent.glob("*.py")):
        content.update(path.name.encode() + b"\0" + path.read_bytes())
    return content.hexdigest()


def _tensorflow_facts() -> dict:
    build = tf.sysconfig.get_build_info()
    return {
        "version": tf.__version__,
        "git_version": tf.version.GIT_VERSION,
        "compiler": tf.version.COMPILER_VERSION,
        "cuda": bool(build.get("is_cuda_build")),
        "devices": sorted(device.device_type for device in tf.config.list_logical_devices()),
    }
