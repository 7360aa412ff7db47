"""The page of a training: whole for every length, safe, the same for the same record, and what it says."""

import copy
import datetime
import doctest
import html.parser
import json
import re

import pytest

from models import profile_page
from tests.models.conftest import record_of

ENDED = datetime.datetime(2026, 3, 2, 17, 5, tzinfo=datetime.UTC)


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


@pytest.mark.parametrize(("frozen", "unfrozen"), [(0, 1), (1, 0), (1, 1), (2, 3), (20, 40), (1, 59), (59, 1), (0, 1000)])
def test_the_page_is_whole_however_long_the_training(frozen, unfrozen):
    text = profile_page.page(record_of(frozen, unfrozen), ENDED)
    page = Page(text)
    assert text.startswith("<!doctype html>") and text.endswith("</html>\n")
    assert not re.search(r"\bnan\b|\binf\b|None", text)
    # A row for each epoch, one for the titles, and five of facts.
    assert page.tags.count("tr") == frozen + unfrozen + 1 + 5
    assert page.tags.count("svg") == 6 and page.tags.count("circle") >= 2
    coordinates = [float(x) for x in re.findall(r' (?:cx|x1|x2|x)="(-?[\d.]+)"', text)]
    assert min(coordinates) >= 0 and max(coordinates) <= profile_page._WIDTH


def test_the_page_needs_nothing_from_elsewhere():
    text = profile_page.page(record_of(), ENDED)
    page = Page(text)
    assert not page.addresses and not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(" not in text and "@import" not in text


def test_each_drawing_has_a_name_and_a_description():
    page = Page(profile_page.page(record_of(), ENDED))
    assert len(page.labels) == 2 * page.tags.count("svg") and set(page.labels) <= set(page.ids)
    assert len(set(page.ids)) == len(page.ids)
    assert page.tags.count("title") == page.tags.count("svg") + 1 and page.tags.count("desc") == page.tags.count("svg")


def test_the_page_says_what_happened():
    text = Page(profile_page.page(record_of(), ENDED)).text
    assert "Ended 2026-03-02 17:05 UTC · 36,000 photographs, 600 for validation, 3 classes · 5 epochs of 5" in text
    assert "all epochs took 1 min 50 s; after the first, which also warms up, 1 min 50 s were predicted." in text
    assert "a photograph takes 2.00 ms of one processor. If nothing overlapped, that would be 40 % of an epoch" in text
    assert "Dotted: after epoch 2 the backbone is trained too." in text
    assert "Ended" not in profile_page.page(record_of())


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
    assert expected in profile_page.verdict(record)
    assert profile_page.verdict(record) in Page(profile_page.page(record)).text


def test_waiting_for_more_than_decoding_is_said():
    assert "It waited for more than that" in profile_page.page(record_of(input_wait_share=0.5, decode_share=0.1))
    assert "It waited for more than that" not in profile_page.page(record_of(input_wait_share=0.03, decode_share=0.01))
    assert "It waited for more than that" not in profile_page.page(record_of(input_wait_share=0.3, decode_share=0.4))


def test_the_page_says_why_it_ended_early():
    record = record_of(2, 3)
    record["training"] |= {"frozen_epochs": 4, "unfrozen_epochs": 9}
    early = Page(profile_page.page(record)).text
    assert "The frozen phase ended after 2 of 4 epochs: validation loss fell no more." in early
    assert "The unfrozen phase ended after 3 of 9 epochs: validation loss fell no more." in early
    assert "but for 13 epochs" in early
    stopped = Page(profile_page.page(record | {"stopped_by_window": True})).text
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
    text = profile_page.page(record, ENDED)
    assert "<script" not in text and "<b>&lt;" not in text and "\u202e" not in text
    assert Page(text).text.count("</svg><script>alert") == 5
    assert len(text) < 40_000 and "and 982 more" in text


def test_the_page_is_a_function_of_the_record():
    record = record_of()
    before = copy.deepcopy(record)
    assert profile_page.page(record, ENDED) == profile_page.page(json.loads(json.dumps(record)), ENDED)
    assert record == before


def test_write_replaces_the_page_as_a_whole(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    profile_page.write(record_of(), str(folder))
    profile_page.write(record_of(seed=8, weights_sha256="f" * 64), str(folder))
    assert [path.name for path in folder.iterdir()] == ["profile.html"]
    text = (folder / "profile.html").read_text(encoding="utf-8")
    assert "f" * 64 in text and f"Ended {datetime.datetime.now(datetime.UTC):%Y}" in text


def test_the_doctests_hold():
    found = doctest.testmod(profile_page)
    assert found.attempted and not found.failed
