"""Signatures: of a model and its statement, with a key, offline; what breaks one is named."""

import json
import pathlib

import pytest

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.lineage.verify import ALTERED, INTACT, LOST
from pipeline.provenance import beside, signing
from tests.pipeline.conftest import answers


def commands(store, *lines):
    """What `audit` answers to each command line, asked in one interpreter."""
    return answers("pipeline.__main__", [["audit", *map(str, words), "--store", str(store[0].places.store)] for words in lines])


@pytest.fixture
def signed(store, told, keys):
    """The second week's model, signed: the store, and the model's folder."""
    signing.sign_model(*told("second"), None, str(keys / "key.pem"))
    return store, pathlib.Path(store[0].places.versions, "2")


def verdicts(model, key) -> list[str]:
    return [check.status for check in signing.checks(str(model), str(key), stated=True)]


def test_sign_and_verify_as_a_person_does(store, keys, tmp_path):
    written, runs = store
    second, model = runs["second"], pathlib.Path(written.places.versions, "2")
    sign, unsigned, verify, by_folder, other, exported = commands(
        store,
        ["sign", second, "--key", keys / "key.pem"],
        ["verify", runs["first"], "--public-key", keys / "key.pub.pem"],
        ["verify", second, "--public-key", keys / "key.pub.pem"],
        ["verify", model, "--public-key", keys / "key.pub.pem", "--json"],
        ["verify", second, "--public-key", keys / "other.pub.pem"],
        ["export", second, "--to", tmp_path / "to", "--json"],
    )
    assert (sign.status, sign.err) == (0, "")
    assert sign.out == f"written {model}.sig\nwritten {model}.intoto.json.sig\n"
    assert unsigned.status == 1 and "2 of 17 things" in unsigned.out
    assert "nobody signed it, or somebody removed it" in unsigned.out
    assert verify.status == 0 and "nothing that was checked was altered or lost" in verify.out
    assert by_folder.status == 0
    assert [each["what"] for each in json.loads(by_folder.out)["checks"] if each["part"] == "signature"] == [
        f"signature {model}.sig", f"signature {model}.intoto.json.sig",
    ]  # fmt: skip
    assert other.status == 1 and "it was made with another key than this one" in other.out
    # Whoever gets the export can verify the model that it is about.
    assert exported.status == 0 and {"model.sig", "provenance.intoto.json.sig"} < set(json.loads(exported.out)["sha256"])
    assert [answer.loaded for answer in (sign, verify, exported)] == [[], [], []]
    # The model's own digest is as before, and so is all else that was recorded.
    assert "ALTERED" not in verify.out


def altered(path: pathlib.Path) -> None:
    path.write_bytes(path.read_bytes() + b" ")


def statement_of(model: pathlib.Path) -> pathlib.Path:
    return pathlib.Path(beside.statement(str(model)))


DAMAGE = {
    "a file of the model": (
        lambda model: altered(model / "saved_model.pb"), [ALTERED, INTACT], "Hash mismatch for 'saved_model.pb'",
    ),
    "a file more": (lambda model: (model / ".gitignore").write_text("x"), [ALTERED, INTACT], "Extra files found"),
    "a file less": (lambda model: (model / "saved_model.pb").unlink(), [ALTERED, INTACT], "Missing files"),
    "the statement": (lambda model: altered(statement_of(model)), [INTACT, ALTERED], "Hash mismatch"),
    "no statement": (lambda model: statement_of(model).unlink(), [INTACT, LOST], "which it is of, is not there"),
    "no signature": (lambda model: pathlib.Path(f"{model}.sig").unlink(), [LOST, INTACT], "nobody signed it"),
    "no JSON": (lambda model: pathlib.Path(f"{model}.sig").write_text("{"), [ALTERED, INTACT], "it is damaged"),
    "no bundle": (lambda model: pathlib.Path(f"{model}.sig").write_text("{}"), [ALTERED, INTACT], "damaged"),
    "the signature of the other": (
        lambda model: pathlib.Path(f"{model}.sig").write_bytes(pathlib.Path(f"{model}.intoto.json.sig").read_bytes()),
        [ALTERED, INTACT],
        "Extra files found",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_what_was_altered_is_named(signed, keys, name):
    _, model = signed
    damage, expected, words = DAMAGE[name]
    damage(model)
    found = signing.checks(str(model), str(keys / "key.pub.pem"), stated=True)
    assert [check.status for check in found] == expected
    assert any(words in check.detail for check in found) and all("\n" not in check.detail for check in found)


def test_a_payload_that_was_altered_is_noticed(signed, keys):
    _, model = signed
    path = pathlib.Path(f"{model}.sig")
    bundle = json.loads(path.read_text())
    payload = bundle["dsseEnvelope"]["payload"]
    bundle["dsseEnvelope"]["payload"] = payload[:40] + ("A" if payload[40] != "A" else "B") + payload[41:]
    path.write_text(json.dumps(bundle))
    (check, _) = signing.checks(str(model), str(keys / "key.pub.pem"), stated=True)
    assert (check.status, check.detail) == (ALTERED, "the signature is not of this key, or it was altered")


@pytest.mark.parametrize("name", ["none.pem", "text.pem", "rsa.pem", "bitcoin.pem", "locked.pem", "key.pub.pem"])
def test_a_key_that_cannot_be_used_is_one_sentence_and_nothing_is_signed(store, told, keys, name):
    with pytest.raises(PipelineError) as told_off:
        signing.sign_model(*told("second"), None, str(keys / name))
    assert str(keys / name) in str(told_off.value) and "\n" not in str(told_off.value)
    assert "private key" in str(told_off.value)
    assert not list(pathlib.Path(store[0].places.versions).glob("*.sig"))


@pytest.mark.parametrize("name", ["none.pem", "text.pem", "key.pem"])
def test_a_public_key_that_cannot_be_used_is_one_sentence(keys, name):
    with pytest.raises(PipelineError, match=f"public key.*{name}|{name}.*public key"):
        signing.verifier(str(keys / name))


@pytest.mark.parametrize("place", ["2/saved_model.pb", "2.intoto.json"])
def test_what_is_not_as_recorded_is_not_signed(store, told, keys, place):
    altered(pathlib.Path(store[0].places.versions, place))
    with pytest.raises(PipelineError, match="nothing was signed: .* is ALTERED"):
        signing.sign_model(*told("second"), None, str(keys / "key.pem"))
    assert not list(pathlib.Path(store[0].places.versions).glob("*.sig"))


def test_a_run_that_pushed_nothing_has_nothing_to_sign_or_to_verify(store, keys):
    bad = store[1]["bad"]
    lines = ["sign", bad, "--key", keys / "key.pem"], ["verify", bad, "--public-key", keys / "key.pub.pem"]
    for answer in commands(store, *lines):
        assert (answer.status, answer.out) == (1, "") and answer.err.count("\n") == 1 and "pushed no model" in answer.err


def test_a_folder_of_links_is_refused(tmp_path, keys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "saved_model.pb").symlink_to(keys / "key.pem")
    with pytest.raises(PipelineError, match="cannot be signed: .*symlink"):
        signing.sign(str(tmp_path / "model"), str(keys / "key.pem"))


def test_what_lies_beside_a_model_goes_with_it(signed):
    _, model = signed
    beside.remove(str(model))
    assert sorted(path.name for path in model.parent.iterdir()) == ["1", "1.intoto.json", "2"]
    beside.remove(str(model))
    assert storage.exists(str(model / "saved_model.pb"))
