"""A small week of synthetic photographs: shards, label records, labelled examples and a schema."""

import dataclasses
import hashlib
import io
import pathlib
import types

import numpy as np
import pytest
from PIL import Image

# Before any test uses TensorFlow: later, the counts are fixed.
THREADS = 2
from models import training  # noqa: E402

training.set_threads(THREADS, THREADS)

from models import records  # noqa: E402
import tensorflow as tf  # noqa: E402

CLASSES = ("amber", "blue", "chalk")
_COLOURS = {"amber": (220, 150, 30), "blue": (30, 60, 200), "chalk": (230, 230, 225)}
SHORT_SIDE, IMAGE_SIZE = 48, 32


def jpeg(width=48, height=48, colour=(90, 120, 150), mode="RGB", seed=0, **options) -> bytes:
    """A JPEG of soft noise around a colour."""
    noise = np.random.default_rng(seed).normal(0, 20, (6, 6, 3)) + np.array(colour)
    image = Image.fromarray(np.clip(noise, 0, 255).astype(np.uint8)).resize((width, height), Image.BICUBIC)
    content = io.BytesIO()
    # Full chroma, as the sharder stores: with less, the edges of a decoded crop differ from a crop of the decoded.
    image.convert(mode).save(content, "JPEG", quality=90, **{"subsampling": 0, **options})
    return content.getvalue()


@dataclasses.dataclass
class Week:
    """Paths of what `make_week` wrote, and what is in it."""

    root: pathlib.Path
    shards: list[pathlib.Path]
    train_ids: list[str]

    @property
    def schema(self):
        return str(self.root / "schema.pbtxt")

    def labels(self, split):
        return [str(self.root / f"Split-{split}" / "labels*")]

    def labelled(self, split):
        return [str(self.root / f"Split-{split}" / "examples*")]

    def fn_args(self, out, *, network=None, training=None, tuning=None, labelled=False, hyperparameters=None):
        """What TFX hands to run_fn or tuner_fn."""
        pattern = self.labelled if labelled else self.labels
        return types.SimpleNamespace(
            train_files=pattern("train"),
            eval_files=pattern("val"),
            schema_path=self.schema,
            custom_config={
                "network": {"blocks": [1, 1], "width": 8, "bottleneck": False, "image_size": IMAGE_SIZE, **(network or {})},
                "training": {
                    "batch_size": 8,
                    "unfrozen_epochs": 2,
                    "intra_op_threads": THREADS,
                    "inter_op_threads": THREADS,
                    **(training or {}),
                },
                "short_side": SHORT_SIDE,
                "tuning": tuning or {},
            },
            hyperparameters=hyperparameters,
            serving_model_dir=str(out / "serving"),
            model_run_dir=str(out / "run"),
            working_dir=str(out / "working"),
        )


def make_week(root: pathlib.Path, shards=4, each=12) -> Week:
    """Writes `shards` shards of `each` photographs: 3/4 train, 1/8 val, 1/8 in no split."""
    week = Week(root, [], [])
    for split in ("train", "val"):
        (root / f"Split-{split}").mkdir(parents=True)
    label_files = {s: tf.io.TFRecordWriter(str(root / f"Split-{s}" / "labels")) for s in ("train", "val")}
    example_files = {s: tf.io.TFRecordWriter(str(root / f"Split-{s}" / "examples")) for s in ("train", "val")}
    for shard in range(shards):
        path = root / f"shard-{shard}.tfrecord"
        labels = {"train": [], "val": []}
        with tf.io.TFRecordWriter(str(path)) as writer:
            for position in range(each):
                number = shard * each + position
                label = number % len(CLASSES)
                split = ("train", "train", "train", "train", "train", "train", "val", None)[number % 8]
                size = {"width": SHORT_SIDE + number % 5 * 4, "height": SHORT_SIDE}
                content = jpeg(colour=_COLOURS[CLASSES[label]], seed=number, **size)
                digest = hashlib.sha256(content).hexdigest()
                image_id = f"p{number:03d}"
                writer.write(
                    records.encode_image(
                        image_id=image_id, encoded=content, source_sha256=digest, sha256=digest, **size
                    )
                )
                for name in labels:
                    labels[name].append(label if split == name else records.NOT_IN_SPLIT)
                if split == "train":
                    week.train_ids.append(image_id)
                if split:
                    example_files[split].write(
                        records.encode_labelled(
                            image_id=image_id,
                            product_id=image_id,
                            source="test",
                            label=CLASSES[label],
                            label_index=label,
                            encoded=content,
                            **size,
                        )
                    )
        week.shards.append(path)
        for name, file in label_files.items():
            file.write(
                records.encode_labels(
                    shard_uri=str(path),
                    shard_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
                    shard_bytes=path.stat().st_size,
                    labels=labels[name],
                )
            )
    for file in (*label_files.values(), *example_files.values()):
        file.close()
    values = "\n".join(f'    value: "{name}"' for name in CLASSES)
    pathlib.Path(week.schema).write_text(
        f'feature {{\n  name: "label"\n  type: BYTES\n  string_domain {{\n    name: "label"\n{values}\n  }}\n}}\n'
    )
    return week


@pytest.fixture(scope="session")
def week(tmp_path_factory) -> Week:
    """One week that no test changes."""
    return make_week(tmp_path_factory.mktemp("week") / "data")


@pytest.fixture
def new_week(tmp_path):
    """Makes a week that the test may break."""
    return lambda **sizes: make_week(tmp_path / "data", **sizes)


@pytest.fixture(scope="session")
def unstable_backbone(tmp_path_factory) -> tuple[dict, str]:
    """Settings of a network and a checkpoint for it, which a learning rate of 0.2 or more drives to infinity at once."""
    from models import network
    from models.config import NetworkConfig

    settings = {"blocks": [1, 1, 1], "width": 4}
    backbone = network.resnet(NetworkConfig(**settings, bottleneck=False, image_size=IMAGE_SIZE), seed=0)
    # Small kernels under large scales: validation still has the small ones' statistics when a step has made them large.
    for variable in backbone.weights:
        if variable.name.endswith("kernel:0"):
            variable.assign(variable * 1e-3)
        elif variable.name.endswith("gamma:0"):
            variable.assign(tf.fill(variable.shape, 1e17))
    path = str(tmp_path_factory.mktemp("unstable") / "backbone.npz")
    network.save_backbone(backbone, path, {"made": "for a test"}, dtype=np.float32)
    return settings, path


def measured(number, seconds=10.0, **changes):
    """What is measured after an epoch."""
    return {
        "epoch": number,
        "loss": 2.0 / number,
        "val_loss": 1.5 / number,
        "val_accuracy": 1 - 0.7 / number,
        "images_per_second": 100.0,
        "input_wait_share": 0.2,
        "learning_rate": 0.001 / number,
        "seconds": seconds,
        "seconds_left": 0.0,
        **changes,
    }


def phases_of(frozen, unfrozen):
    """Phases with epochs of so many seconds."""
    numbers = iter(range(1, 10_000))
    return [
        {"name": name, "epochs": [measured(next(numbers), seconds) for seconds in each]}
        for name, each in (("frozen", frozen), ("unfrozen", unfrozen))
        if each
    ]


def record_of(frozen=2, unfrozen=3, **changes):
    """The record of a training that took as long as predicted."""
    phases = phases_of([10.0] * frozen, [30.0] * unfrozen)
    epochs = [epoch for phase in phases for epoch in phase["epochs"]]
    total = sum(epoch["seconds"] for epoch in epochs)
    for number, epoch in enumerate(epochs, start=1):
        epoch["seconds_left"] = total - sum(each["seconds"] for each in epochs[:number])
    return {
        "weights_sha256": "0123456789abcdef" * 4,
        "seed": 7,
        "network": {"blocks": [1, 1], "width": 8, "bottleneck": False, "image_size": 32},
        "training": {"backbone": "", "batch_size": 8, "frozen_epochs": frozen, "unfrozen_epochs": unfrozen},
        "classes": ["amber", "blue", "chalk"],
        "examples": {"train": 36_000, "val": 600},
        "val_loss": epochs[-1]["val_loss"],
        "val_accuracy": epochs[-1]["val_accuracy"],
        "best_epoch": len(epochs),
        "epochs_run": len(epochs),
        "images_per_second": 100.0,
        "input_wait_share": 0.03,
        "decode_share": 0.4,
        "decode_seconds_per_image": 0.002,
        "seconds": total + 5,
        "stopped_by_window": False,
        "workers": 1,
        "replicas": 1,
        "phases": phases,
        **changes,
    }
