"""Certificates for one cluster: an authority of its own, and a certificate each for scheduler, workers and client."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ips2_dask.clusters.extras import need
from ips2_dask.clusters.tls import CA, ROLES
from ips2_dask.errors import BadInput

if TYPE_CHECKING:  # cryptography is the extra [tls]
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName, KeyUsage

DAYS = 365
"""Days for which a certificate is valid."""

README = """\
Certificates of one Dask cluster, made by `ips2 certs`. Whoever holds a certificate of this authority may run code on
the cluster: keep the *.key files readable by you alone (mode 600), and never put them under version control.

ca.pem                          to every machine: it vouches for the three others
ca.key                          stays here: it makes new certificates, and no process reads it
scheduler.pem, scheduler.key    to the machine where the scheduler runs
worker.pem, worker.key          to the machines of the workers
client.pem, client.key          to the machine where `ips2 run` runs

Where all machines share a home folder, leave this folder where it is and write `tls: {folder}` in the cluster's config,
or give `--tls {folder}`. By hand:

dask scheduler --protocol tls --tls-ca-file ca.pem --tls-cert scheduler.pem --tls-key scheduler.key
dask worker tls://HOST:8786 --tls-ca-file ca.pem --tls-cert worker.pem --tls-key worker.key --nthreads 1
ips2 run INPUT --out DIR --scheduler tls://HOST:8786 --tls {folder}

They hold until {until}; then make new ones in another folder.
"""


def make(directory: str | Path, hosts: Sequence[str] = ()) -> list[Path]:
    """Make a folder with an authority, three certificates with their keys, and a README of which goes where.

    Parameters
    ----------
    directory : path
        A new or an empty folder.
    hosts : names or addresses, optional
        Of machines that the scheduler's certificate shall name besides this one; Dask itself does not look at them.

    Returns
    -------
    list of Path
        The files; keys have mode 600.

    Raises
    ------
    BadInput
        If the folder is not empty, or can't be made.
    """
    need("cryptography", "tls", "making certificates")
    folder = Path(os.path.expanduser(directory)).absolute()
    _empty(folder)
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=DAYS)
    authority_key = _key()
    authority = _certificate("ips2_dask authority", authority_key, until)
    files = {CA: _pem(authority), "ca.key": _pem_key(authority_key)}
    for role in ROLES:
        key = _key()
        certificate = _certificate(f"ips2_dask {role}", key, until, (authority, authority_key), hosts)
        files |= {f"{role}.pem": _pem(certificate), f"{role}.key": _pem_key(key)}
    files["README.txt"] = README.format(folder=folder, until=until.date().isoformat()).encode()
    return [_put(folder / name, content) for name, content in files.items()]


def _empty(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise BadInput(
            "certs",
            f"{str(folder)!r}, which can't be made ({error.strerror})",
            "a place for a new folder",
            "there would be nowhere to put the keys",
            "give another folder",
        ) from error
    if names:
        raise BadInput(
            "certs",
            f"{str(folder)!r}, which holds {', '.join(names[:3])}",
            "a new or an empty folder",
            "keys that are in use would be lost",
            "give another folder",
        )


def _put(path: Path, content: bytes) -> Path:
    """Write a file; a key has mode 600 from the start, so that no other user can read it even for a moment."""
    mode = 0o600 if path.suffix == ".key" else 0o644
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)
    return path


def _key() -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415 - an extra

    return ec.generate_private_key(ec.SECP256R1())


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    until: datetime.datetime,
    by: tuple[Certificate, EllipticCurvePrivateKey] | None = None,
    hosts: Sequence[str] = (),
) -> Certificate:
    """A certificate of a key, signed by an authority (its certificate and its key), or with the key itself."""
    from cryptography import x509  # noqa: PLC0415 - an extra
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID  # noqa: PLC0415

    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signer = (by[0].subject, by[1]) if by else (subject, key)
    builder = (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=0 if by is None else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(_usage(by is None), critical=True)
    )
    if by:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        names = ["localhost", "127.0.0.1", socket.gethostname(), *hosts]
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
    return builder.sign(signer, hashes.SHA256())


def _usage(authority: bool) -> KeyUsage:
    from cryptography import x509  # noqa: PLC0415 - an extra

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(name: str) -> GeneralName:
    from cryptography import x509  # noqa: PLC0415 - an extra

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding  # noqa: PLC0415 - an extra

    return bytes(certificate.public_bytes(Encoding.PEM))


def _pem_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra

    plain = serialization.NoEncryption()  # processes without a terminal must read it; its mode protects it
    return bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
