"""Signatures of models and of their provenance statements, by model-signing with a key, offline.

A signature lies beside what it signs (`beside.signature`). It is a Sigstore bundle, so that

    model_signing verify key MODEL_DIR --signature MODEL_DIR.sig --public_key FILE

verifies it without any code of ours.
"""

import ast
import contextlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Iterator

from pipeline import storage
from pipeline.errors import PipelineError
from pipeline.lineage import verify as verify_module
from pipeline.lineage.base import Run
from pipeline.lineage.facts import RunFacts
from pipeline.lineage.verify import ALTERED, INTACT, LOST, UNKNOWN, Check
from pipeline.provenance import beside

_KINDS = "an elliptic-curve key (P-256, P-384 or P-521) in PEM, without a password; docs/audit.md says how one is made"


def sign(uri: str, key: str) -> str:
    """Signs a model's folder, or a file.

    Args:
        uri: What is signed, on a disk or in Cloud Storage.
        key: File of the private key.

    Returns:
        Where the signature is; one that was there is replaced.

    Raises:
        PipelineError: The key cannot be used, or what is to be signed holds links.
        OSError: Something cannot be read or written.
    """
    from model_signing import signing

    config = signing.Config().set_hashing_config(_hashing())
    _with_key(config.use_elliptic_key_signer, "private_key", key)
    with _on_disk(uri) as path, tempfile.TemporaryDirectory() as folder:
        bundle = os.path.join(folder, "bundle")
        try:
            config.sign(path, bundle)
        except ValueError as error:
            raise PipelineError(f"{uri} cannot be signed: {_line(error)}") from error
        storage.write(beside.signature(uri), pathlib.Path(bundle).read_bytes())
    return beside.signature(uri)


def sign_model(run: Run, facts: RunFacts, model: str | None, key: str) -> list[str]:
    """Signs the model of a run, and the statement beside it, when both are what the lineage recorded.

    Args:
        run: The run.
        facts: Its facts.
        model: Folder of the SavedModel; None for where the run pushed it.
        key: File of the private key.

    Returns:
        Where the signatures are.

    Raises:
        PipelineError: There is no model, it or its statement is not what was recorded, or the key cannot be used.
        OSError: Something cannot be read or written.
    """
    push = beside.pushed(run)
    if model is None and push is None:
        raise PipelineError(f"run {run.run_id} pushed no model: name the folder of a SavedModel that it made, or another run")
    folder = model or push.model
    found = [verify_module.model(facts, folder)]
    place = beside.statement(folder)
    if push and push.statement_sha256 and (folder == push.model or storage.exists(place)):
        found.append(verify_module.file("provenance", f"provenance statement {place}", push.statement_sha256, place))
    for check in found:
        if check.status != INTACT:
            raise PipelineError(f"nothing was signed: {check.what} is {check.status}: {check.detail}")
    return [sign(each, key) for each in [folder, place][: len(found)]]


def verifier(public_key: str):
    """What verifies with a key.

    Args:
        public_key: File of the public key.

    Raises:
        PipelineError: The key cannot be used.
    """
    from model_signing import verifying

    config = verifying.Config().set_hashing_config(_hashing())
    return _with_key(config.use_elliptic_key_verifier, "public_key", public_key)


def verify(uri: str, public_key: str) -> Check:
    """Holds a model's folder, or a file, against its signature.

    Args:
        uri: What was signed.
        public_key: File of the public key.

    Raises:
        PipelineError: The key cannot be used.
    """
    config, place = verifier(public_key), beside.signature(uri)
    what = f"signature {place}"
    try:
        with _on_disk(uri) as path, tempfile.TemporaryDirectory() as folder:
            bundle = os.path.join(folder, "bundle")
            try:
                pathlib.Path(bundle).write_bytes(storage.read(place))
            except FileNotFoundError:
                return Check("signature", what, LOST, "it is not there: nobody signed it, or somebody removed it")
            return Check("signature", what, *_verdict(config, path, bundle))
    except FileNotFoundError:
        return Check("signature", what, LOST, f"{uri}, which it is of, is not there")
    except OSError as error:
        return Check("signature", what, UNKNOWN, f"it cannot be read: {error.strerror or error}")


def checks(model: str, public_key: str, stated: bool) -> list[Check]:
    """Holds a model, and the statement beside it, against their signatures.

    Args:
        model: Folder of the SavedModel.
        public_key: File of the public key.
        stated: Whether a statement belongs beside it, be it there or not.

    Raises:
        PipelineError: The key cannot be used.
    """
    place = beside.statement(model)
    return [verify(each, public_key) for each in ([model, place] if stated or storage.exists(place) else [model])]


def _verdict(config, path: str, bundle: str) -> tuple[str, str]:
    from cryptography.exceptions import InvalidSignature

    try:
        # It warns by printing, and what is printed may be JSON that a machine reads.
        with contextlib.redirect_stdout(sys.stderr):
            config.verify(path, bundle)
    except InvalidSignature:
        return ALTERED, "the signature is not of this key, or it was altered"
    except ValueError as error:
        if "Key mismatch" in str(error):
            return ALTERED, "it was made with another key than this one"
        return ALTERED, _mismatch(error)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return ALTERED, f"it is damaged: {_line(error)}"
    return INTACT, ""


def _mismatch(error: ValueError) -> str:
    """What the library found, without digests as Python writes bytes."""
    head, _, found = str(error).partition("Signature mismatch: ")
    if head or not found:
        return f"it is damaged: {_line(error)}"
    # Of a single file the library says '.'.
    return "; ".join(each.partition(": Expected ")[0].removesuffix(" for '.'") for each in ast.literal_eval(found))


def _hashing():
    """Every file of the folder counts, those of git too."""
    from model_signing import hashing

    return hashing.Config().use_file_serialization(hashing_algorithm="sha256").set_ignored_paths(paths=(), ignore_git_paths=False)


def _with_key(use, kind: str, path: str):
    named = kind.replace("_", " ")
    try:
        return use(**{kind: path})
    except OSError as error:
        raise PipelineError(f"the {named} {path} cannot be read: {error.strerror or error}") from error
    except Exception as error:
        # Whatever the libraries below think of it (ValueError, TypeError, AttributeError, their own), the file is at fault.
        raise PipelineError(f"{path} is no {named} that can be used ({_line(error)}): it takes {_KINDS}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextlib.contextmanager
def _on_disk(uri: str) -> Iterator[str]:
    """A folder or a file as one of this machine, under its own name."""
    if not storage.is_cloud(uri):
        if not os.path.exists(uri):
            raise FileNotFoundError(2, "it is not there", uri)
        yield storage.absolute(uri)
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, storage.name_of(storage.absolute(uri)))
        if storage.exists(uri):
            pathlib.Path(copy).write_bytes(storage.read(uri))
        else:
            storage.copy_folder(uri, copy)
        yield copy
