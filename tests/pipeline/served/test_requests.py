"""The sample of requests: every form of log, the draw, and what cannot be read, which is named and stops nothing."""

import base64
import json
import os

import pytest

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.served import requests
from tests.cloud import storage_emulator


def instance(content: bytes) -> dict:
    return {"bytes_inputs": {"b64": base64.b64encode(content).decode()}}


def line(*contents: bytes) -> str:
    return json.dumps({"instances": [instance(content) for content in contents]}) + "\n"


def read(source, most=1000, seed=0):
    sample = requests.draw(str(source), most, seed)
    return sample, list(sample.read())


@pytest.fixture(params=["disk", "cloud"])
def root(request, tmp_path):
    """A place for files, on a disk and in Cloud Storage."""
    if request.param == "disk":
        yield str(tmp_path / "in")
    else:
        with storage_emulator.running("out"):
            yield "gs://out/in"


def test_logs_and_photographs_at_any_depth_in_one_folder(root):
    for name, content in {
        "b/log.jsonl": line(b"one", b"two") + "\n" + line(b"three"), "a.jpg": "four", "deep/er/c.JPEG": "five",
        "readme.txt": "no",
    }.items():  # fmt: skip
        storage.write(storage.join(root, *name.split("/")), content.encode())
    sample, found = read(root)
    assert (sample.found, sample.ignored) == (5, 1)
    assert [(photograph.name, photograph.content, photograph.problem) for photograph in found] == [
        ("a.jpg", b"four", ""), ("b/log.jsonl:1[0]", b"one", ""), ("b/log.jsonl:1[1]", b"two", ""),
        ("b/log.jsonl:3", b"three", ""), ("deep/er/c.JPEG", b"five", ""),
    ]  # fmt: skip
    _, (alone,) = read(storage.join(root, "a.jpg"))
    assert (alone.name, alone.content) == ("a.jpg", b"four")
    assert [photograph.name for photograph in read(storage.join(root, "b", "log.jsonl"))[1]] == [
        "log.jsonl:1[0]", "log.jsonl:1[1]", "log.jsonl:3",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["nowhere", "nowhere/log.jsonl", "empty"])
def test_what_is_not_there_is_named(root, name):
    storage.write(storage.join(root, "empty", "x.txt"), b"x")
    with pytest.raises(PipelineError, match=f"{root}/{name}"):
        read(storage.join(root, *name.split("/")))


def test_the_row_of_an_exported_log_is_a_request_too(tmp_path):
    rows = [
        {"request_payload": [json.dumps(instance(b"one")), json.dumps({"instances": [instance(b"two"), {"b64": "dGhyZWU="}]})]},
        {"request_payload": json.dumps({"instances": [instance(b"four")]}), "deployed_model_id": "7"},
    ]
    (tmp_path / "log.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [photograph.content for photograph in read(tmp_path)[1]] == [b"one", b"two", b"three", b"four"]


BAD = {
    "cut": ('{"instances": [', "it is no JSON"),
    "bytes": (b"\xff\xfe\x00", "it is no JSON"),
    "brackets": ("[" * 100_000, "it is no JSON"),
    "a list": ("[1]", "it is no request"),
    "a text": ('"x"', "it is no request"),
    "no instances": ('{"instances": []}', "it is no request"),
    "instances that are none": ('{"instances": {"a": 1}}', "it is no request"),
    "a payload that is none": ('{"request_payload": [1]}', "no list of texts"),
    "a payload that is no JSON": ('{"request_payload": "x"}', "it is no JSON"),
    "another input": ('{"instances": [{"image": "x"}]}', "it has no bytes_inputs.b64"),
    "an instance that is a number": ('{"instances": [7]}', "it has no bytes_inputs.b64"),
    "no base64": ('{"instances": [{"bytes_inputs": {"b64": "%%%%"}}]}', "its b64 is no base64"),
    "base64 of letters beyond ASCII": ('{"instances": [{"b64": "é"}]}', "its b64 is no base64"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_no_request_is_counted_and_named_and_stops_nothing(tmp_path, name):
    text, problem = BAD[name]
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "log.jsonl").write_bytes(line(b"one").encode() + content + b"\n" + line(b"two").encode())
    sample, (first, bad, last) = read(tmp_path)
    assert sample.found == 3 and (first.content, last.content) == (b"one", b"two")
    assert bad.name == "log.jsonl:2" and problem in bad.problem and bad.content == b""


def test_what_is_too_long_is_not_held_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(requests, "MAX_BYTES", 1000)
    (tmp_path / "a.jpg").write_bytes(bytes(1001))
    (tmp_path / "log.jsonl").write_text(line(b"one") + "x" * 5000 + "\n" + line(b"two") + "y" * 1001)
    _, found = read(tmp_path)
    assert [(photograph.name, photograph.problem) for photograph in found] == [
        ("a.jpg", "its 1,001 bytes are more than 1,000"), ("log.jsonl:1", ""),
        ("log.jsonl:2", "the line is longer than 1,000 bytes"), ("log.jsonl:3", ""),
        ("log.jsonl:4", "the line is longer than 1,000 bytes"),
    ]  # fmt: skip


def test_the_draw_depends_on_the_seed_alone(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for number in range(20):
            (tmp_path / folder / f"{number}.jpg").write_bytes(b"x")
        (tmp_path / folder / "log.jsonl").write_text("".join(line(b"y", b"z") for _ in range(40)))
    draws = {seed: [photograph.name for photograph in read(tmp_path / "one", 30, seed)[1]] for seed in range(40)}
    assert draws[7] == [photograph.name for photograph in read(tmp_path / "two", 30, 7)[1]]  # whatever the folder's name
    assert all(len(set(names)) == 30 for names in draws.values()) and len({tuple(names) for names in draws.values()}) == 40
    # Each of the 100 has the same chance: drawn 12 times of 40 in the mean, with a standard deviation of 2.9.
    times = {name: sum(name in names for names in draws.values()) for names in draws.values() for name in names}
    assert len(times) == 100 and 1 <= min(times.values()) and max(times.values()) <= 25
    assert requests.draw(str(tmp_path / "one"), 30, 0).found == 100


def test_what_goes_or_changes_between_draw_and_reading_is_named(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    (tmp_path / "b.jsonl").write_text(line(b"one", b"two") + line(b"three"))
    (tmp_path / "c.jsonl").write_text(line(b"four"))
    sample = requests.draw(str(tmp_path), 100, 0)
    (tmp_path / "a.jpg").unlink()
    (tmp_path / "b.jsonl").write_text(line(b"one"))
    (tmp_path / "c.jsonl").unlink()
    found = [(photograph.name, photograph.content, photograph.problem) for photograph in sample.read()]
    assert found == [
        ("a.jpg", b"", "it cannot be read: No such file or directory"), ("b.jsonl:1", b"one", ""),
        ("b.jsonl:1", b"", "it is not there any more"), ("b.jsonl:2", b"", "it is not there any more"),
        ("c.jsonl:1", b"", "it cannot be read: No such file or directory"),
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["<script>alert(1)</script".replace("/", "∕") + ">.jpg", "a b'\"%2F.jpg", b"\xff.jpg"])
def test_awkward_names_are_read(tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), name if isinstance(name, bytes) else name.encode())
    with open(path, "wb") as stream:
        stream.write(b"x")
    _, (found,) = read(tmp_path)
    assert found.content == b"x" and os.fsencode(found.name) == os.path.basename(path)
