"""The figures of a training: what decoding costs, when it will end, and scalars to watch it by."""

import contextlib
import logging
import statistics
import time
from collections.abc import Mapping, Sequence

import tensorflow as tf

from models import input_pipeline, pixels
from models.config import FROZEN_COST

_log = logging.getLogger(__name__)

# Of so many the least counts: whatever else the process does only adds to one.
_PASSES = 3


def decode_seconds(
    split: input_pipeline.Split, *, image_size: int, short_side: int, augmentation: float, seed: int, photographs: int = 256
) -> float:
    """Measures what one photograph costs from its JPEG in memory to the pixels of a batch, as training makes them.

    The processor's time, not the clock's, so what else the machine does makes no difference; what else this process does
    adds to it. Nothing random is touched. 256 photographs of 256 pixels take 0.5 s, reading and tracing half a second more.

    Args:
        split: The split, not empty.
        image_size: Pixels of the square that the network sees.
        short_side: Pixels of the shorter side of the stored photographs.
        augmentation: Strength, 0 to 1; see `pixels.random_crop`.
        seed: Seed of what is cut out and mirrored.
        photographs: How many are measured: the first of the split in the order of validation, over again if it has fewer.

    Returns:
        Processor seconds a photograph.

    Raises:
        TrainingError: They cannot be read or decoded; the text says which and why.
    """
    with input_pipeline.reading(split):
        blocks = input_pipeline.blocks(split, readers=4, order=None)
        stored = blocks.map(lambda start, encoded, shapes, labels: (encoded, shapes)).unbatch()
        encoded, shapes = stored.take(photographs).batch(photographs).get_single_element()
        draws = tf.random.stateless_uniform([len(encoded), pixels.DRAWS], [seed, 0])

        def one_pixel(jpeg, shape, drawn):
            return pixels.random_crop(jpeg, shape, image_size, short_side, augmentation, drawn)[0, 0, 0]

        options = tf.data.Options()
        # What is timed must not run ahead, nor idle threads look for work.
        options.autotune.enabled = options.experimental_optimization.apply_default_optimizations = False
        options.threading.private_threadpool_size = options.threading.max_intra_op_parallelism = 1
        in_memory = tf.data.Dataset.from_tensor_slices((encoded, shapes, draws)).repeat()
        passes = iter(in_memory.map(one_pixel).batch(photographs).with_options(options))
        next(passes)
        seconds = []
        for _ in range(_PASSES):
            started = time.process_time()
            next(passes)
            seconds.append(time.process_time() - started)
    return min(seconds) / photographs


def decode_share(decode_seconds_per_image: float, threads: int, images: int, busy_seconds: float) -> float:
    """Share of an epoch that would go to decoding if nothing overlapped: D / (D + C).

    D = d / n is what decoding takes for an image when all threads decode, C = b / i what the step computes for it. So it
    compares with a share that was measured where decoding and computing took turns (docs/plan.md). Without a GPU both share
    the processor, which makes C too large and the share too small. 2 ms on 4 threads, against 100 images in 0.075 s:

    >>> round(decode_share(0.002, threads=4, images=100, busy_seconds=0.075), 3)
    0.4

    Args:
        decode_seconds_per_image: d, of `decode_seconds`.
        threads: n, threads that can decode at once: no more than there are cores, 1 or more.
        images: i, images that this worker trained on, 1 or more.
        busy_seconds: b, seconds of training in which this worker's step did not wait for its batch.

    Returns:
        0 to 1.
    """
    decoding, computing = decode_seconds_per_image / threads, busy_seconds / images
    return decoding / (decoding + computing) if decoding else 0.0


def seconds_left(
    phases: Sequence[Mapping], *, frozen_epochs: int, unfrozen_epochs: int, images: int | None = None
) -> float:
    """Predicts how long the training still takes, if no phase ends early.

    An epoch takes the median of those of its phase so far. As long as no unfrozen epoch was seen, one takes the median of
    C / `FROZEN_COST` + W + V over the frozen ones: compute, wait for input, and validation, the same in both phases.
    After one of two frozen epochs of 10 s, of which 20 % waited, with three unfrozen ones to come:

    >>> epoch = {"seconds": 10.0, "input_wait_share": 0.2, "images_per_second": 100.0}
    >>> round(seconds_left([{"name": "frozen", "epochs": [epoch]}], frozen_epochs=2, unfrozen_epochs=3), 2)
    98.76

    Args:
        phases: As in the record of a training, the current one last; at least one epoch in all.
        frozen_epochs: Epochs of the frozen phase, by the settings.
        unfrozen_epochs: Of the unfrozen phase.
        images: Images of an epoch, over all workers: they tell training from validation. None: validation counts as
            training, and takes longer in the prediction than it will.

    Returns:
        Seconds, validation included.
    """
    epochs = {phase["name"]: phase["epochs"] for phase in phases}
    frozen, unfrozen = epochs.get("frozen", ()), epochs.get("unfrozen", ())
    total = 0.0
    if phases[-1]["name"] == "frozen" and frozen_epochs > len(frozen):
        total += (frozen_epochs - len(frozen)) * statistics.median(epoch["seconds"] for epoch in frozen)
    if unfrozen_epochs > len(unfrozen):
        seen = [epoch["seconds"] for epoch in unfrozen] or [_unfrozen_seconds(epoch, images) for epoch in frozen]
        total += (unfrozen_epochs - len(unfrozen)) * statistics.median(seen)
    return total


def _unfrozen_seconds(epoch, images):
    training = epoch["seconds"] if images is None else images / epoch["images_per_second"]
    waiting = training * epoch["input_wait_share"]
    return (training - waiting) / FROZEN_COST + waiting + epoch["seconds"] - training


class TensorBoard:
    """Scalars for TensorBoard, one of each an epoch, to be watched while it trains.

    What only watches ends no training: what cannot be written is a warning in the log.

    Args:
        folder: Where: a path, or a URI that TensorFlow writes to.
    """

    def __init__(self, folder: str):
        self._folder = folder
        # Made with the first epoch: a training that is refused leaves no folder.
        self._writer = None
        self._phase = None

    def epoch(self, phase: str, measured: Mapping) -> None:
        """Writes an epoch.

        Args:
            phase: Its phase; the first epoch of each says so as a text.
            measured: What the record of a training has for an epoch.
        """
        with self._forgiving():
            self._writer = self._writer or tf.summary.create_file_writer(self._folder)
            with self._writer.as_default(step=measured["epoch"]):
                if phase != self._phase:
                    tf.summary.text("phase", phase)
                    self._phase = phase
                for tag, name in _SCALARS.items():
                    tf.summary.scalar(tag, measured[name])
                self._writer.flush()

    def close(self) -> None:
        """Closes the file."""
        with self._forgiving():
            if self._writer:
                self._writer.close()

    @contextlib.contextmanager
    def _forgiving(self):
        try:
            yield
        except tf.errors.OpError as error:
            _log.warning("the scalars for TensorBoard in %s lack an epoch: %s", self._folder, input_pipeline.plain(error))


_SCALARS = {
    "loss/train": "loss",
    "loss/val": "val_loss",
    "accuracy/val": "val_accuracy",
    "speed/images_per_second": "images_per_second",
    "speed/input_wait_share": "input_wait_share",
    "learning_rate": "learning_rate",
}
