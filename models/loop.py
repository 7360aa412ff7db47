"""The training loop: phases, steps, validation, early stopping, checkpoints and the deadline, for one worker or several.

Read `fit` first. Whatever decides over the weights is the same on every worker: the losses and validation figures are
sums over all of them, and so is the opinion that the window ends.
"""

import collections
import dataclasses
import logging
import math
import time
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tf_keras

from models import input_pipeline, pixels, profile
from models.checkpoints import Checkpoint
from models.config import TrainingConfig
from models.errors import TrainingError
from models.network import Classifier
from models.workers import Workers, alone

_log = logging.getLogger(__name__)

FROZEN, UNFROZEN = "frozen", "unfrozen"

# Steps after which all workers know what one of them thought of the window: so no step is waited for.
_OPINION_LAG = 2


@dataclasses.dataclass(frozen=True)
class Result:
    """What came of a training.

    Attributes:
        phases: One for each phase that ran: `name`, `epochs` (a list of what was measured after each: `epoch`, from 1
            over both phases; `loss`, mean over the epoch with label smoothing; `val_loss`, `val_accuracy`;
            `learning_rate` of its last step; `images_per_second`, of all workers; `input_wait_share`; `seconds` with
            validation; `seconds_left`, as predicted then).
        val_loss: Mean cross-entropy on val of the weights that were kept, in nats.
        val_accuracy: Share of val that they classify rightly.
        best_epoch: The epoch that they come from.
        epochs_run: Epochs over both phases.
        steps: Optimiser's steps over both phases.
        images_per_second: Mean over training, without validation, of all workers.
        input_wait_share: Share of the training time, 0 to 1, in which this worker's step waited for its batch.
        seconds: The whole training, without the export, what came before it was killed included.
        stopped_by_window: Whether the window's end stopped it; its last epoch is then shorter than the others, and other
            weights may come of the same settings.
    """

    phases: list[dict]
    val_loss: float
    val_accuracy: float
    best_epoch: int
    epochs_run: int
    steps: int
    images_per_second: float
    input_wait_share: float
    seconds: float
    stopped_by_window: bool


class Diverged(TrainingError):
    """The loss is infinite or not a number."""


class NoTime(TrainingError):
    """The deadline comes before the first step is done."""


def fit(
    network: Classifier,
    train: input_pipeline.Split,
    val: input_pipeline.Split,
    image_size: int,
    short_side: int,
    config: TrainingConfig,
    on_epoch: Callable[[str, dict], None] = lambda phase, measured: None,
    checkpoint: Checkpoint | None = None,
    deadline: float | None = None,
    stop_after: int | None = None,
    workers: Workers | None = None,
) -> Result:
    """Trains the network in its phases and leaves the best weights in it.

    Best is the least validation loss: on a small val split accuracy moves in coarse steps and the loss does not.

    Args:
        network: The network, made in the workers' strategy; trained in place.
        train: What it learns from, all of it; each worker takes its part.
        val: What decides when to stop and which weights to keep.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        config: Everything else.
        on_epoch: Called after each epoch with the phase's name and what was measured, of a training that goes on also for
            those before; may raise to end the training.
        checkpoint: Where the training was left, if it was, and where the chief saves it: after each epoch, and in longer
            epochs every `config.checkpoint_minutes`. It ends with the same weights, wherever it was left and how often.
        deadline: Unix time at which training must be over, its last validation included; what it has learnt by then is
            judged as an epoch is.
        stop_after: Steps after which it stops as it does at a deadline: to repeat a training that the window stopped.
        workers: Who trains; None for this process alone.

    Returns:
        What was measured.

    Raises:
        TrainingError: The data cannot be read or divided, the loss is no longer a number (`Diverged`), or the deadline leaves
            no time for a step (`NoTime`).
    """
    return _Loop(
        network, train, val, {"image_size": image_size, "short_side": short_side}, config, on_epoch, checkpoint, deadline,
        stop_after, workers or alone(),
    ).run()  # fmt: skip


@dataclasses.dataclass
class _State:
    """Where a training is: what a checkpoint keeps beside the weights.

    Attributes:
        phase: The phase it is in; "" before the first.
        first: Epochs before this phase.
        epoch: The epoch it is in, from 1 over both phases.
        step: Steps of that epoch that are done.
        losses: Their losses.
        epoch_seconds: Seconds of that epoch so far.
        epoch_wait: Seconds of them in which the step waited for input.
        since_best: Epochs of this phase since the best.
        best: What was measured after the best epoch.
        phases: As in `Result`.
        steps: Steps over both phases, those of this epoch left out.
        busy: Seconds of training before this epoch.
        wait: Seconds of them in which the step waited for input.
        trained: Photographs before this epoch, over all workers.
        elapsed: Seconds of earlier processes.
        validation_seconds: What the last validation took, and the next may take; 0 before the first.
    """

    phase: str = ""
    first: int = 0
    epoch: int = 1
    step: int = 0
    losses: list = dataclasses.field(default_factory=list)
    epoch_seconds: float = 0.0
    epoch_wait: float = 0.0
    since_best: int = 0
    best: dict | None = None
    phases: list[dict] = dataclasses.field(default_factory=list)
    steps: int = 0
    busy: float = 0.0
    wait: float = 0.0
    trained: int = 0
    elapsed: float = 0.0
    validation_seconds: float = 0.0


class _Loop:
    """One training, in this process."""

    def __init__(self, network, train, val, sizes, config, on_epoch, checkpoint, deadline, stop_after, workers):
        self._network, self._config, self._sizes, self._workers = network, config, sizes, workers
        self._on_epoch, self._checkpoint = on_epoch, checkpoint
        self._deadline, self._stop_after = deadline, stop_after
        self._started = time.perf_counter()
        self._batch_size, self._steps = _division(train, config, workers)
        self._train = train.part(workers.index, workers.count)
        self._val = val.part(workers.index, workers.count)
        self._val_data = input_pipeline.validation_dataset(
            self._val, batch_size=max(1, config.batch_size // workers.replicas), **sizes
        )
        self._evaluate = _evaluator(network, self._val_data.element_spec, workers)
        self._stopped = False
        self._best_weights = None
        self._state = _State()

    def run(self) -> Result:
        left = self._checkpoint.load() if self._checkpoint else None
        arrays = {}
        if left:
            state, arrays = left
            self._state = _State(**state)
            self._best_weights = arrays.get("best")
            self._workers.assign(self._network.weights, arrays["network"])
            for phase in self._state.phases:
                for measured in phase["epochs"]:
                    self._on_epoch(phase["name"], measured)
        for name, epochs in ((FROZEN, self._config.frozen_epochs), (UNFROZEN, self._config.unfrozen_epochs)):
            if not epochs or self._stopped or self._state.phase == UNFROZEN and name == FROZEN:
                continue
            self._run_phase(name, epochs, arrays.get("optimizer") if self._state.phase == name else None)
        return self._result()

    def _run_phase(self, name, epochs, optimizer_values):
        config, state, workers = self._config, self._state, self._workers
        step, optimizer = _trainer(self._network, config, workers, backbone=name == UNFROZEN)
        if optimizer_values is not None:
            workers.assign(optimizer.variables, optimizer_values)
            _log.info(
                "going on where a training was left: epoch %d/%d, step %d/%d",
                state.epoch, config.epochs, state.step, self._steps,
            )  # fmt: skip
        else:
            state.phase, state.since_best = name, 0
            state.first = sum(len(phase["epochs"]) for phase in state.phases)
            state.epoch, state.step, state.losses = state.first + 1, 0, []
            state.epoch_seconds = state.epoch_wait = 0.0
            state.phases.append({"name": name, "epochs": []})
        last = state.first + epochs
        dataset = input_pipeline.training_dataset(
            self._train,
            batch_size=self._batch_size // workers.replicas,
            steps=self._steps * workers.local_replicas,
            epochs=range(state.epoch - 1, last),
            skip_steps=state.step * workers.local_replicas,
            augmentation=config.augmentation,
            seed=config.seed,
            **self._sizes,
        )
        if workers.count > 1:
            # Of a data set that may end, workers would ask each other before every batch whether there is one.
            dataset = dataset.repeat()
        data = workers.strategy.distribute_datasets_from_function(lambda context: dataset)
        scalar = tf.TensorSpec([], tf.float32)
        # Traced before the clock starts, as the evaluation is: the first epoch's rate is then training's own.
        step.get_concrete_function(*data.element_spec, scalar, tf.TensorSpec([2], tf.int32), scalar)
        batches = _Timed(_readable(data, self._train))
        while state.epoch <= last:
            self._run_epoch(name, step, optimizer, batches)
            if not state.losses:
                break
            self._close_epoch(name)
            ends_early = state.since_best >= config.early_stopping_patience
            state.epoch = last + 1 if ends_early else state.epoch + 1
            if self._stopped:
                break
            self._save(optimizer)
            if ends_early:
                _log.info("no better validation loss for %d epochs: the %s phase ends early", state.since_best, name)
        if self._best_weights is None:
            raise NoTime(
                "the window leaves no time to train: not one step fits before its end less training.reserve_minutes "
                f"({config.reserve_minutes:g}). Start earlier, or give a later end"
            )
        workers.assign(self._network.weights, self._best_weights)

    def _run_epoch(self, name, train_step, optimizer, batches):
        config, state = self._config, self._state
        opinions = collections.deque(maxlen=_OPINION_LAG)
        began = told = time.perf_counter()
        for step in range(state.step, self._steps):
            if self._ends(state.steps + step, opinions):
                self._stopped = True
                break
            waited = batches.seconds
            batch = next(batches)
            state.epoch_wait += batches.seconds - waited
            rate = tf.constant(self._rate(name, step), tf.float32)
            # A number of its own for each step, whatever phases ended early.
            key = tf.constant([config.seed, (state.epoch - 1) * self._steps + step], tf.int32)
            loss, opinion = train_step(*batch, rate, key, self._opinion())
            state.losses.append(loss)
            opinions.append(opinion)
            state.step = step + 1
            now = time.perf_counter()
            if now - told >= input_pipeline.SECONDS_BETWEEN_REPORTS:
                told = now
                self._require_finite(name)
                self._tell(name, state.epoch_seconds + now - began)
            if self._checkpoint and self._workers.is_chief and state.step < self._steps and self._checkpoint.due():
                self._require_finite(name)
                state.epoch_seconds += time.perf_counter() - began
                self._save(optimizer)
                began = time.perf_counter()
        if state.losses:
            # A device may still be at it: the epoch ends when its last loss is there.
            float(state.losses[-1])
        state.epoch_seconds += time.perf_counter() - began

    def _peak(self, name):
        return self._config.frozen_learning_rate if name == FROZEN else self._config.learning_rate

    def _rate(self, name, step):
        """The learning rate of a step of this epoch."""
        frozen, config = name == FROZEN, self._config
        return learning_rate(
            (self._state.epoch - 1 - self._state.first) * self._steps + step,
            total=(config.frozen_epochs if frozen else config.unfrozen_epochs) * self._steps,
            warmup=0 if frozen else round(config.warmup_epochs * self._steps),
            peak=self._peak(name),
        )

    def _opinion(self):
        """1 if this worker thinks that the window ends, for all to know."""
        ends = self._deadline is not None and self._workers.count > 1 and self._over()
        return tf.constant(float(ends), tf.float32)

    def _over(self):
        return time.time() + self._state.validation_seconds > self._deadline

    def _ends(self, steps, opinions):
        """Whether training stops before this step; all workers come to the same answer."""
        if self._stop_after is not None and steps >= self._stop_after:
            return True
        if self._deadline is None:
            return False
        if self._workers.count == 1:
            return self._over()
        if not opinions:
            # The first step of an epoch, or since the training went on: not worth a step's lag.
            return bool(self._workers.total([self._over()])[0])
        return len(opinions) == _OPINION_LAG and float(opinions[0]) > 0

    def _close_epoch(self, name):
        """Measures the epoch, and keeps its weights if they are the best."""
        state, config = self._state, self._config
        photographs = len(state.losses) * self._batch_size
        loss = float(np.mean([float(value) for value in state.losses]))
        validation_started = time.perf_counter()
        val_loss, val_accuracy = self._evaluate(_readable(self._val_data, self._val))
        state.validation_seconds = time.perf_counter() - validation_started
        measured = {
            "epoch": state.epoch,
            "loss": loss,
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "learning_rate": self._rate(name, state.step - 1),
            "images_per_second": photographs / state.epoch_seconds,
            "input_wait_share": state.epoch_wait / state.epoch_seconds,
            "seconds": state.epoch_seconds + state.validation_seconds,
        }
        state.phases[-1]["epochs"].append(measured)
        measured["seconds_left"] = profile.seconds_left(
            state.phases,
            frozen_epochs=config.frozen_epochs,
            unfrozen_epochs=config.unfrozen_epochs,
            images=self._steps * self._batch_size,
        )
        _log.info(
            "epoch %d/%d %s: loss %.3f, val accuracy %.3f, %.0f images/s, %.0f %% waiting for input, %.0f s left",
            state.epoch, config.epochs, name, loss, val_accuracy, measured["images_per_second"],
            100 * measured["input_wait_share"], measured["seconds_left"],
        )  # fmt: skip
        self._require_finite(name, val_loss)
        self._on_epoch(name, measured)
        if state.best is None or val_loss < state.best["val_loss"]:
            state.best, state.since_best = measured, 0
            self._best_weights = self._workers.values(self._network.weights)
        else:
            state.since_best += 1
        state.steps += len(state.losses)
        state.trained += photographs
        state.busy += state.epoch_seconds
        state.wait += state.epoch_wait
        state.step, state.losses, state.epoch_seconds, state.epoch_wait = 0, [], 0.0, 0.0

    def _require_finite(self, name, val_loss=0.0):
        """Raises Diverged before anything is kept of what is no number: the checkpoint before stays the last."""
        state = self._state
        bad = next((number for number, value in enumerate(state.losses, 1) if not math.isfinite(float(value))), None)
        if bad is None and math.isfinite(val_loss):
            return
        raise Diverged(
            f"the loss is no number any more in epoch {state.epoch} ({name}), "
            + (f"from step {bad} of {self._steps} on" if bad else "in validation")
            + f": lower the learning rate, now {self._peak(name):g}"
        )

    def _tell(self, name, seconds):
        state, config = self._state, self._config
        speed = state.step * self._batch_size / seconds
        left = (self._steps - state.step) * self._batch_size / speed
        _log.info(
            "epoch %d/%d %s: step %d/%d, loss %.3f, %.0f images/s, %.0f %% waiting for input, %.0f s left of this epoch",
            state.epoch, config.epochs, name, state.step, self._steps, float(state.losses[-1]), speed,
            100 * state.epoch_wait / seconds, left,
        )  # fmt: skip

    def _save(self, optimizer):
        if not self._checkpoint or not self._workers.is_chief:
            return
        state = dataclasses.asdict(self._state) | {
            "losses": [float(value) for value in self._state.losses],
            "elapsed": self._elapsed(),
        }
        arrays = {
            "network": self._workers.values(self._network.weights),
            "optimizer": self._workers.values(optimizer.variables),
        }
        self._checkpoint.save(state, arrays | ({"best": self._best_weights} if self._best_weights else {}))

    def _elapsed(self):
        return self._state.elapsed + time.perf_counter() - self._started

    def _result(self):
        state = self._state
        epochs_run = sum(len(phase["epochs"]) for phase in state.phases)
        if self._stopped:
            why = "the window ends" if self._deadline is not None else f"{self._stop_after} steps are done"
            _log.info("%s: training stops in epoch %d of %d", why, epochs_run, self._config.epochs)
        return Result(
            phases=[phase for phase in state.phases if phase["epochs"]],  # the window may end before the first step of one
            val_loss=state.best["val_loss"],
            val_accuracy=state.best["val_accuracy"],
            best_epoch=state.best["epoch"],
            epochs_run=epochs_run,
            steps=state.steps,
            images_per_second=state.trained / state.busy,
            input_wait_share=state.wait / state.busy,
            seconds=self._elapsed(),
            stopped_by_window=self._stopped,
        )


def _division(train: input_pipeline.Split, config: TrainingConfig, workers: Workers) -> tuple[int, int]:
    """Photographs a step over all replicas, and steps an epoch; the smallest part decides for all workers."""
    replicas = workers.replicas
    if config.batch_size % replicas:
        raise TrainingError(
            f"training.batch_size {config.batch_size} does not divide over {replicas} replicas (one a GPU, or one a "
            f"worker): choose a multiple of {replicas}, such as {-(-config.batch_size // replicas) * replicas}"
        )
    smallest = min(train.part(index, workers.count).examples for index in range(workers.count))
    each = min(config.batch_size // replicas, smallest // workers.local_replicas)
    if not each:
        raise TrainingError(
            f"the train split has {train.examples} photographs in {len(train.shards)} image shards, whole shards go to "
            f"{workers.count} workers, and one of them has only {smallest}: train with fewer workers, or pack smaller "
            "shards (shards.target_bytes)"
        )
    return each * replicas, smallest // (each * workers.local_replicas)


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


def _trainer(network: Classifier, config: TrainingConfig, workers: Workers, backbone: bool):
    """A function of one step, and its optimiser; what it trains is fixed, so each phase has its own."""
    variables = [*(network.backbone.trainable_variables if backbone else ()), *network.head.trainable_variables]
    with workers.strategy.scope():
        optimizer = tf_keras.optimizers.AdamW(weight_decay=config.weight_decay)
        # Decay belongs to kernels; on scales and shifts it only fights the batch norm.
        optimizer.exclude_from_weight_decay(var_list=[variable for variable in variables if len(variable.shape) < 2])
        optimizer.build(variables)

    def replica_step(images, colours, labels, key, opinion):
        context = tf.distribute.get_replica_context()
        if workers.replicas > 1:
            # Each replica drops other features.
            key = tf.random.experimental.stateless_fold_in(key, context.replica_id_in_sync_group)
        images = pixels.recolour(images, colours) if config.augmentation else tf.cast(images, tf.float32)
        with tf.GradientTape() as tape:
            logits = network(images, train_backbone=backbone, dropout=config.dropout, seed=key)
            # Gradients are summed over replicas: their mean is that of the whole batch.
            loss = tf.reduce_mean(smoothed_cross_entropy(logits, labels, config.label_smoothing)) / workers.replicas
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        if workers.replicas == 1:
            return loss, opinion
        loss, opinion = tf.unstack(context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stack([loss, opinion])))
        return loss, opinion

    @tf.function(reduce_retracing=True)
    def step(images, colours, labels, rate, key, opinion):
        optimizer.learning_rate.assign(rate)
        results = workers.strategy.run(replica_step, args=(images, colours, labels, key, opinion))
        # The same in every replica.
        return tuple(workers.strategy.experimental_local_results(result)[0] for result in results)

    return step, optimizer


def _evaluator(network: Classifier, spec, workers: Workers):
    def replica_sums(images, labels):
        logits = network(images)
        right = tf.argmax(logits, axis=1) == labels
        return tf.reduce_sum(smoothed_cross_entropy(logits, labels, 0.0)), tf.reduce_sum(tf.cast(right, tf.int64))

    @tf.function(reduce_retracing=True)
    def sums(images, labels):
        results = workers.strategy.run(replica_sums, args=(images, labels))
        return tuple(workers.strategy.experimental_local_results(result) for result in results)

    if workers.local_replicas == 1:
        sums.get_concrete_function(*spec)

    def evaluate(batches) -> tuple[float, float]:
        """Loss and accuracy over all workers; each judges its own part, and none waits for another until the end."""
        loss, right, examples = 0.0, 0, 0
        for group in _groups(batches, workers.local_replicas):
            # A replica without a batch repeats one, which does not count.
            filled = [*group, *[group[0]] * (workers.local_replicas - len(group))]
            images, labels = zip(*filled)
            losses, rights = sums(workers.spread(images), workers.spread(labels))
            for (_, own), batch_loss, batch_right in zip(group, losses, rights):
                loss, right, examples = loss + float(batch_loss), right + int(batch_right), examples + len(own)
        loss, right, examples = workers.total([loss, right, examples])
        return float(loss / examples), float(right / examples)

    return evaluate


def _groups(items, size):
    group = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


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
    with input_pipeline.reading(split):
        yield from dataset
