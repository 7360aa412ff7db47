"""Certificates of an authority of its own, and the key of a service account that exists nowhere."""

import datetime
import ipaddress
import json
import pathlib

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID


def certificates(folder: pathlib.Path, hosts: list[str]) -> tuple[str, str]:
    """Makes an authority and a certificate for `hosts`; returns the path of each, the second with its key."""
    now = datetime.datetime.now(datetime.timezone.utc)

    def certificate(name, key, issuer, issuer_key, *extensions):
        builder = x509.CertificateBuilder()
        builder = builder.subject_name(_name(name)).issuer_name(_name(issuer)).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - datetime.timedelta(days=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=7))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    identity = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = certificate(
        "an authority for tests", authority_key, "an authority for tests", authority_key,
        (x509.BasicConstraints(ca=True, path_length=0), True), (usage, True), (identity, False),
    )  # fmt: skip
    names = [*map(x509.DNSName, hosts), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    own = certificate(
        hosts[0], key, "an authority for tests", authority_key,
        (x509.SubjectAlternativeName(names), False), (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), False),
    )  # fmt: skip
    (folder / "authority.pem").write_bytes(authority)
    (folder / "hosts.pem").write_bytes(_pem(key) + own)
    return str(folder / "authority.pem"), str(folder / "hosts.pem")


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def service_account(folder: pathlib.Path, project: str, tokens: str) -> str:
    """Makes a service account of a project, with the host that gives it tokens; returns the path of its key file."""
    account = {
        "type": "service_account",
        "project_id": project,
        "private_key_id": "made-for-tests",
        "private_key": _pem(rsa.generate_private_key(65537, 2048)).decode(),
        "client_email": f"retrain@{project}.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"https://{tokens}/token",
    }
    path = folder / "service_account.json"
    path.write_text(json.dumps(account))
    return str(path)
