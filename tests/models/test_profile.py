"""The profile: what decoding costs, how long is left, what TensorBoard and the page say."""

import copy
import datetime
import doctest
import html.parser
import json
import math
import pathlib
import random
import re
import time

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from models import input_pipeline, profile
from models.errors import TrainingError

SIZES = {"image_size": 32, "short_side": 48}
ENDED = datetime.datetime(2026, 3, 2, 17, 5, tzinfo=datetime.UTC)


def split_of(week):
    return input_pipeline.read_split("train", week.labels("train"), classes=3)


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


class Page(html.parser.HTMLParser):
    """What a reader, or a screen reader, has of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.labels, self.addresses, self._words = [], [], [], [], []
        self.feed(text)
        self.text = " ".join(" ".join(self._words).split())

    def handle_starttag(self, tag, attrs):
        """Notes it."""
        self.tags.append(tag)
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.labels += found.get("aria-labelledby", "").split()
        self.addresses += [found[name] for name in ("href", "src", "xlink:href") if name in found]

    def handle_data(self, data):
        """Notes it."""
        if self.tags[-1:] != ["style"]:
            self._words.append(data)


def test_the_doctests_hold():
    found = doctest.testmod(profile)
    assert found.failed == 0 and found.attempted >= 7


# Decoding


@pytest.mark.parametrize("augmentation", [0.0, 0.5])
def test_decoding_is_measured_on_what_training_decodes(week, augmentation):
    split = split_of(week)
    found = profile.decode_seconds(split, augmentation=augmentation, seed=1, **SIZES)
    # A 48-pixel photograph takes some hundredths of a millisecond on most processors.
    assert 1e-6 < found < 1e-2
    larger = profile.decode_seconds(split, augmentation=augmentation, seed=1, image_size=512, short_side=768)
    assert larger > 2 * found


def test_labelled_examples_are_measured_too(week):
    split = input_pipeline.read_labelled_split("train", week.labelled("train"), classes=3)
    assert 1e-6 < profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES) < 1e-2


def test_no_more_photographs_are_read_than_are_measured(new_week, monkeypatch):
    split = split_of(new_week(shards=3, each=64))
    lengths = []
    stateless_uniform = tf.random.stateless_uniform

    def noted(shape, *arguments, **named):
        lengths.append(int(shape[0]))
        return stateless_uniform(shape, *arguments, **named)

    monkeypatch.setattr(tf.random, "stateless_uniform", noted)
    profile.decode_seconds(split, augmentation=0.5, seed=1, photographs=20, **SIZES)
    profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES)
    assert lengths == [20, split.examples]


def test_measuring_is_cheap(new_week):
    split = split_of(new_week(shards=6, each=64))
    profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES)
    started = time.process_time()
    profile.decode_seconds(split, augmentation=0.5, seed=1, **SIZES)
    # 0.25 s when nothing else runs.
    assert time.process_time() - started < 2


def test_a_damaged_shard_is_named_as_training_names_it(new_week):
    week = new_week()
    path = pathlib.Path(week.shards[0])
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(TrainingError, match=f"the train split cannot be read.*1 damaged.*{path}"):
        profile.decode_seconds(split_of(week), augmentation=0.5, seed=1, **SIZES)


def test_neither_measuring_nor_tensorboard_touches_what_is_random(week, tmp_path):
    def draw(act):
        tf_keras.utils.set_random_seed(3)
        act()
        return tf.random.uniform([4]).numpy().tolist(), np.random.random(4).tolist(), random.random()

    def act():
        profile.decode_seconds(split_of(week), augmentation=0.5, seed=1, **SIZES)
        board = profile.TensorBoard(str(tmp_path))
        board.epoch("frozen", measured(1))
        board.close()

    assert draw(act) == draw(lambda: None)


def test_the_share_of_decoding():
    # As much decoding as computing; none; and nothing but decoding.
    assert profile.decode_share(0.008, threads=8, images=1000, busy_seconds=1.0) == 0.5
    assert profile.decode_share(0.0, threads=8, images=1000, busy_seconds=1.0) == 0
    assert profile.decode_share(0.008, threads=8, images=1000, busy_seconds=0.0) == 1
    # The prototype's: 7.6 h of decoding in an epoch of 19 h.
    assert math.isclose(profile.decode_share(7.6, threads=1, images=1, busy_seconds=11.4), 0.4)


# Seconds left


@pytest.mark.parametrize(
    ("frozen", "unfrozen", "expected"),
    [
        # 8 of 10 s compute, which becomes 8 / 0.29.
        ([10.0], [], 2 * 10 + 4 * (8 / 0.29 + 2)),
        # One slow epoch does not spoil it: the median.
        ([90.0, 10.0, 10.0], [], 4 * (8 / 0.29 + 2)),
        # An unfrozen epoch was seen: no more guessing. The frozen phase is over, early or not.
        ([10.0, 10.0, 10.0], [33.0], 3 * 33),
        ([10.0], [33.0, 35.0], 2 * 34),
        ([10.0, 10.0, 10.0], [33.0] * 4, 0.0),
    ],
)
def test_seconds_left(frozen, unfrozen, expected):
    found = profile.seconds_left(phases_of(frozen, unfrozen), frozen_epochs=3, unfrozen_epochs=4)
    assert math.isclose(found, expected, abs_tol=1e-9)


def test_seconds_left_without_one_of_the_phases():
    assert profile.seconds_left(phases_of([], [5.0]), frozen_epochs=0, unfrozen_epochs=4) == 15
    assert profile.seconds_left(phases_of([5.0], []), frozen_epochs=4, unfrozen_epochs=0) == 15
    assert profile.seconds_left(phases_of([5.0], []), frozen_epochs=1, unfrozen_epochs=0) == 0


def test_seconds_left_when_the_unfrozen_phase_has_only_begun():
    begun = [*phases_of([10.0], []), {"name": "unfrozen", "epochs": []}]
    found = profile.seconds_left(begun, frozen_epochs=3, unfrozen_epochs=1)
    assert math.isclose(found, 8 / 0.29 + 2)


def test_validation_costs_the_same_in_both_phases():
    # Of 10 s, 500 images at 100 a second train for 5 s, and 4 of these compute.
    found = profile.seconds_left(phases_of([10.0], []), frozen_epochs=1, unfrozen_epochs=1, images=500)
    assert math.isclose(found, 4 / 0.29 + 1 + 5)


# TensorBoard


def scalars(folder):
    found, texts = {}, []
    (path,) = pathlib.Path(folder).glob("events*")
    for event in tf.compat.v1.train.summary_iterator(str(path)):
        for value in event.summary.value:
            array = tf.make_ndarray(value.tensor)
            if value.tag == "phase":
                texts.append((event.step, array.item().decode()))
            else:
                found[value.tag, event.step] = array.item()
    return found, texts


def test_tensorboard_has_each_epoch_at_once(tmp_path):
    folder = str(tmp_path / "board")
    board = profile.TensorBoard(folder)
    board.epoch("frozen", measured(1))
    # Before it is closed: somebody watches while it trains.
    found, _ = scalars(folder)
    assert found == {
        ("loss/train", 1): 2.0,
        ("loss/val", 1): 1.5,
        ("accuracy/val", 1): pytest.approx(0.3),
        ("speed/images_per_second", 1): 100.0,
        ("speed/input_wait_share", 1): pytest.approx(0.2),
        ("learning_rate", 1): pytest.approx(0.001),
    }
    board.epoch("unfrozen", measured(2, loss=0.25))
    board.epoch("unfrozen", measured(3))
    board.close()
    found, texts = scalars(folder)
    assert len(found) == 18 and found["loss/train", 2] == 0.25
    assert texts == [(1, "frozen"), (2, "unfrozen")]


def test_what_cannot_be_written_for_tensorboard_ends_no_training(tmp_path, monkeypatch, caplog):
    board = profile.TensorBoard(str(tmp_path / "board"))
    board.epoch("frozen", measured(1))

    def fail():
        raise tf.errors.UnavailableError(None, None, "503 from storage")

    for act in ("flush", "close"):
        monkeypatch.setattr(board._writer, act, fail)
    board.epoch("frozen", measured(2))
    board.close()
    assert caplog.text.count("503 from storage") == 2


def test_a_folder_that_cannot_be_written_to_ends_no_training_either(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    board = profile.TensorBoard(str(tmp_path / "file" / "board"))
    board.epoch("frozen", measured(1))
    board.close()
    assert "lack an epoch" in caplog.text


def test_a_training_that_is_refused_leaves_no_folder(tmp_path):
    profile.TensorBoard(str(tmp_path / "board")).close()
    assert not (tmp_path / "board").exists()


# The page


@pytest.mark.parametrize(("frozen", "unfrozen"), [(0, 1), (1, 0), (1, 1), (2, 3), (20, 40), (1, 59), (59, 1), (0, 1000)])
def test_the_page_is_whole_however_long_the_training(frozen, unfrozen):
    text = profile.page(record_of(frozen, unfrozen), ENDED)
    page = Page(text)
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    # A row for each epoch, one for the titles, and five of facts.
    assert page.tags.count("tr") == frozen + unfrozen + 1 + 5
    assert page.tags.count("svg") == 6 and page.tags.count("circle") >= 2
    coordinates = [float(x) for x in re.findall(r' (?:cx|x1|x2|x)="(-?[\d.]+)"', text)]
    assert min(coordinates) >= 0 and max(coordinates) <= profile._WIDTH


def test_the_page_needs_nothing_from_elsewhere():
    text = profile.page(record_of(), ENDED)
    page = Page(text)
    assert not page.addresses and not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(" not in text and "@import" not in text


def test_each_drawing_has_a_name_and_a_description():
    page = Page(profile.page(record_of(), ENDED))
    assert len(page.labels) == 2 * page.tags.count("svg") and set(page.labels) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert page.tags.count("title") == page.tags.count("svg") + 1 and page.tags.count("desc") == page.tags.count("svg")


def test_the_page_says_what_happened():
    text = Page(profile.page(record_of(), ENDED)).text
    assert "Ended 2026-03-02 17:05 UTC · 36,000 photographs, 600 for validation, 3 classes · 5 epochs of 5" in text
    assert "all epochs took 1 min 50 s; after the first, which also warms up, 1 min 50 s were predicted." in text
    assert "a photograph takes 2.00 ms of one processor. If nothing overlapped, that would be 40 % of an epoch" in text
    assert "Dotted: after epoch 2 the backbone is trained too." in text
    assert "Ended" not in profile.page(record_of())


@pytest.mark.parametrize(
    ("waited", "devices", "expected"),
    [
        (0.03, ["CPU", "GPU"], "The step waited for its input 3 % of the time: more GPUs are the right lever"),
        (0.03, None, "more GPUs are the right lever"),
        (0.03, ["CPU"], "There was no GPU; one computes faster, and may wait more"),
        (0.049, ["GPU"], "4.9 % of the time: more GPUs are the right lever"),
        (0.05, ["GPU"], "5 % of the time: the input is the bottleneck, mend it before adding GPUs"),
        (0.31, ["CPU"], "31 % of the time: the input is the bottleneck, mend it before adding GPUs"),
    ],
)
def test_the_page_says_what_to_mend_or_buy(waited, devices, expected):
    record = record_of(input_wait_share=waited)
    if devices:
        record["tensorflow"] = {"devices": devices}
    assert expected in profile.verdict(record)
    assert profile.verdict(record) in Page(profile.page(record)).text


def test_waiting_for_more_than_decoding_is_said():
    assert "It waited for more than that" in profile.page(record_of(input_wait_share=0.5, decode_share=0.1))
    assert "It waited for more than that" not in profile.page(record_of(input_wait_share=0.03, decode_share=0.01))
    assert "It waited for more than that" not in profile.page(record_of(input_wait_share=0.3, decode_share=0.4))


def test_the_page_says_why_it_ended_early():
    record = record_of(2, 3)
    record["training"] |= {"frozen_epochs": 4, "unfrozen_epochs": 9}
    early = Page(profile.page(record)).text
    assert "The frozen phase ended after 2 of 4 epochs: validation loss fell no more." in early
    assert "The unfrozen phase ended after 3 of 9 epochs: validation loss fell no more." in early
    assert "but for 13 epochs" in early
    stopped = Page(profile.page(record | {"stopped_by_window": True})).text
    assert "The frozen phase ended after 2 of 4" in stopped and "The unfrozen phase ended" not in stopped
    assert "The window's end stopped it" in stopped


def test_hostile_names_are_text():
    hostile = "</svg><script>alert('x')</script>\u202e\n&amp;"
    record = record_of(classes=[hostile, "b" * 10_000, *(f"class {number}" for number in range(1000))])
    record["network"] = {hostile: hostile}
    record["training"]["backbone"] = hostile
    record["weights_sha256"] = "<b>" + hostile
    for phase in record["phases"]:
        for epoch in phase["epochs"]:
            epoch["loss"] = 1e30
    text = profile.page(record, ENDED)
    assert "<script" not in text and "<b>&lt;" not in text and "\u202e" not in text
    assert Page(text).text.count("</svg><script>alert") == 5
    assert len(text) < 40_000 and "and 982 more" in text


def test_the_page_is_a_function_of_the_record():
    record = record_of()
    before = copy.deepcopy(record)
    assert profile.page(record, ENDED) == profile.page(json.loads(json.dumps(record)), ENDED)
    assert record == before


def test_write_replaces_the_page_as_a_whole(tmp_path):
    folder = tmp_path / "new" / "folder"
    profile.write(record_of(), str(folder))
    profile.write(record_of(seed=8, weights_sha256="f" * 64), str(folder))
    assert [path.name for path in folder.iterdir()] == ["profile.html"]
    text = (folder / "profile.html").read_text(encoding="utf-8")
    assert "f" * 64 in text and f"Ended {datetime.datetime.now(datetime.UTC):%Y}" in text
