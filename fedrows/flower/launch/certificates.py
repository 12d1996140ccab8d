"""Certificates and node keys: what a SuperLink and its nodes prove themselves with.

    DIR/ca.pem, ca.key            the authority; its key can stay on a machine without a network
    DIR/server.pem, server.key    the SuperLink's certificate, for its names and for this machine
    DIR/nodes/NAME.key, NAME.pub  a node's key pair, on the curve P-384

Private keys are written with mode 0600. Nothing is ever overwritten: a key that others already
trust would be lost. A node needs ca.pem and its own key; the SuperLink needs ca.pem and its pair.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedrows.errors import FedrowsError
from fedrows.files.whole import reason

CA, CA_KEY, SERVER, SERVER_KEY, NODES = "ca.pem", "ca.key", "server.pem", "server.key", "nodes"
CA_DAYS, SERVER_DAYS = 3650, 825
HERE = ("localhost", "127.0.0.1", "::1")  # the executor and `fedrows deploy run` come from here
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


class CertificateError(FedrowsError):
    """A certificate or key that is missing, in the way, or of the wrong kind."""


@dataclass(frozen=True)
class Certificates:
    """The files of a federation with TLS and node keys; node_keys: private key by node name."""

    ca: Path
    certificate: Path
    key: Path
    node_keys: Mapping[str, Path] = field(default_factory=dict)


def check_names(hosts: Iterable[str], nodes: Iterable[str]) -> None:
    """Raises a CertificateError if a host or a node cannot be called so."""
    for host in hosts:
        _general_name(host)
    for name in nodes:
        if not NAME.fullmatch(name):
            raise CertificateError(
                f"{name!r} cannot be a node's name: use up to 63 letters, digits, dots, dashes and "
                "underscores, a letter or digit first."
            )


def make_authority(folder: Path) -> Path:
    """The certificate of a new authority in `folder`."""
    certificate, key = folder / CA, folder / CA_KEY
    _check_free(certificate, key)
    private = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedrows authority")
    usage = _usage(key_cert_sign=True, crl_sign=True)
    built = (
        _builder(name, name, private.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(private, hashes.SHA384())
    )
    _write_pair(certificate, built, key, private)
    return certificate


def make_server(folder: Path, hosts: Sequence[str], into: Path | None = None) -> Path:
    """The SuperLink's certificate for its host names and addresses, signed by the authority.

    into: another folder to write it to.
    """
    certificate, key = (into or folder) / SERVER, (into or folder) / SERVER_KEY
    _check_free(certificate, key)
    authority, signer = read_certificate(folder / CA), _read_key(folder / CA_KEY)
    if authority.public_key() != signer.public_key():
        raise CertificateError(
            f"{folder / CA_KEY} is not the key of {folder / CA}, so nobody would trust what it "
            "signs: bring both from one place, or make a new authority with `deploy rotate "
            "--authority`."
        )
    private = ec.generate_private_key(ec.SECP384R1())
    names = [_general_name(host) for host in dict.fromkeys([*hosts, *HERE])]
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    server = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    built = (
        _builder(_name("fedrows SuperLink"), authority.subject, private.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(server, critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(issuer, critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write_pair(certificate, built, key, private)
    return certificate


def make_node_key(folder: Path, name: str) -> Path:
    """A node's new private key; its public half lies beside it, named .pub, to be admitted."""
    check_names([], [name])
    key = folder / NODES / f"{name}.key"
    public = key.with_suffix(".pub") if "." not in name else key.with_name(f"{name}.pub")
    _check_free(key, public)
    private = ec.generate_private_key(ec.SECP384R1())
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    shown = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(key, secret, 0o600)
    _write(public, shown + f" {name}\n".encode(), 0o644)
    return key


def open_certificates(folder: Path, nodes: Iterable[str] = ()) -> Certificates:
    """The files of a folder that `fedrows deploy keys` has written, checked to be there."""
    keys = {name: folder / NODES / f"{name}.key" for name in nodes}
    certificates = Certificates(folder / CA, folder / SERVER, folder / SERVER_KEY, keys)
    for path in (certificates.ca, certificates.certificate, certificates.key, *keys.values()):
        check_file(path, "Make it with `fedrows deploy keys`, or name the folder that has it")
    return certificates


def check_file(path: Path, advice: str) -> None:
    """Raises a CertificateError unless `path` is a file that can be read."""
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        raise CertificateError(f"{path} cannot be read ({reason(error)}). {advice}.") from None


def check_node_key(path: Path) -> None:
    """Raises a CertificateError unless `path` is the private key of a node."""
    check_file(path, "Make it with `fedrows deploy keys`, or name the right file")
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(
            f"{path} is not a node's private key: make one with `fedrows deploy keys`."
        )


def hosts_of(certificate: Path) -> list[str]:
    """The names and addresses that a certificate is for."""
    kind = x509.SubjectAlternativeName
    try:
        names = read_certificate(certificate).extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, ValueError):
        raise CertificateError(
            f"{certificate} names no host: name those of the SuperLink with --host."
        ) from None
    return [str(name.value) for name in names]


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate, or a CertificateError that names its file."""
    check_file(path, "Make it with `fedrows deploy keys`")
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise CertificateError(f"{path} is not a certificate in PEM form.") from None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    check_file(path, "It is needed to sign: bring it here, or make the certificate where it lies")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CertificateError(
            f"{path} is not a private key that `fedrows deploy keys` has written."
        )
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(hours=1))  # clocks differ
        .not_valid_after(today + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _usage(**used: bool) -> x509.KeyUsage:
    every = (
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement "
        "key_cert_sign crl_sign encipher_only decipher_only"
    )
    return x509.KeyUsage(**{name: used.get(name, False) for name in every.split()})


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*", host):
        raise CertificateError(
            f"{host!r} is neither a host name nor an address: name what nodes will connect to, "
            "without a port."
        )
    return x509.DNSName(host)


def _check_free(*paths: Path) -> None:
    for path in paths:
        if path.exists():
            raise CertificateError(
                f"{path} exists already and is not overwritten: move it away first, or leave it."
            )


def _write_pair(
    path: Path, certificate: x509.Certificate, key: Path, private: ec.EllipticCurvePrivateKey
) -> None:
    secret = private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(key, secret, 0o600)
    _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _write(path: Path, data: bytes, mode: int) -> None:
    """A new file, never readable by others for even a moment if `mode` says so."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
    except FileExistsError:
        _check_free(path)
        raise
    except OSError as error:
        raise CertificateError(f"{path} cannot be written ({reason(error)}).") from None
