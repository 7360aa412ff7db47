"""The store of whole weeks that the tests of the audit have, and keys to sign with."""

import pathlib
import subprocess

import pytest

from pipeline.lineage import facts as audit_facts
from pipeline.lineage.mlmd import MLMDLineage
from tests.pipeline.lineage.conftest import store, weeks  # noqa: F401


@pytest.fixture(scope="session")
def told(weeks):  # noqa: F811
    """Gives the run of a name, and its facts, as the lineage has them."""
    written, runs = weeks

    def read(name: str):
        run = MLMDLineage(written.places.metadata).run(runs[name])
        return run, audit_facts.of_run(run)

    return read


@pytest.fixture(scope="session")
def keys(tmp_path_factory) -> pathlib.Path:
    """Folder of a pair of keys that openssl made as docs/audit.md says, of another pair, and of keys that cannot be used."""
    folder = tmp_path_factory.mktemp("keys")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    for name in ("key", "other"):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.pem")
        openssl("ec", "-in", f"{name}.pem", "-pubout", "-out", f"{name}.pub.pem")
    openssl("genrsa", "-out", "rsa.pem", "1024")
    openssl("ecparam", "-name", "secp256k1", "-genkey", "-noout", "-out", "bitcoin.pem")
    openssl("ec", "-in", "key.pem", "-aes256", "-passout", "pass:secret", "-out", "locked.pem")
    (folder / "text.pem").write_text("no key")
    return folder
