"""New certificates and keys: the old are put aside, and a SuperLink that runs takes them up."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")
from fedrows import cli
from fedrows.flower.launch import certificates
from fedrows.flower.launch.certificate_reload import CertificateReload


@pytest.fixture
def link(keys: Path) -> Iterator[Link]:
    with Link(keys) as link:
        yield link


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    assert cli.main(["deploy", "keys", str(folder), "--host", "link.org", "--nodes", "north"]) == 0
    return folder


def rotate(folder: Path, *words: str) -> int:
    return cli.main(["deploy", "rotate", str(folder), *words])


def files(folder: Path) -> dict[str, bytes]:
    here = (path for path in folder.rglob("*") if path.is_file() and "old" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in here}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


class Link:
    """A TLS server with the SuperLink's certificate, which shows it to whoever connects."""

    def __init__(self, folder: Path) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.pair = folder / certificates.SERVER, folder / certificates.SERVER_KEY
        self.context.load_cert_chain(*self.pair)
        self.reload = CertificateReload(self.context, *self.pair, folder / certificates.CA)
        self.listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.listener.close()

    def serial(self, ca: Path) -> str:
        """The number of the certificate that a client sees which trusts `ca`."""
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            client = ssl.create_default_context(cafile=str(ca))
            address = self.listener.getsockname()
            with (
                socket.create_connection(address, 10) as plain,
                client.wrap_socket(plain, server_hostname="link.org") as secure,
            ):
                return str((secure.getpeercert() or {})["serialNumber"])
        finally:
            thread.join(10)

    def _serve(self) -> None:
        plain, _ = self.listener.accept()
        with plain, contextlib.suppress(OSError):
            self.context.wrap_socket(plain, server_side=True).close()


def test_a_server_certificate_is_replaced_while_it_is_in_use(
    keys: Path, link: Link, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(keys)
    first = link.serial(keys / "ca.pem")
    assert rotate(keys, "--server") == 0
    assert "nothing is restarted" in capsys.readouterr().out
    assert changed(before, files(keys)) == {"server.pem", "server.key"}
    assert set(certificates.hosts_of(keys / "server.pem")) >= {"link.org", "localhost"}
    assert link.serial(keys / "ca.pem") == first  # it has not looked yet
    assert link.reload()
    assert link.serial(keys / "ca.pem") != first
    assert not link.reload()  # nothing is new
    (old,) = (keys / "old").iterdir()
    assert (old / "server.key").read_bytes() == before["server.key"]
    assert stat.S_IMODE(old.stat().st_mode) == 0o700
    assert stat.S_IMODE((keys / "server.key").stat().st_mode) == 0o600
    assert not list(keys.glob(".new-*"))


def test_half_a_pair_is_not_taken_up(keys: Path, link: Link) -> None:
    first, old_key = link.serial(keys / "ca.pem"), (keys / "server.key").read_bytes()
    assert rotate(keys, "--server") == 0
    new_key = (keys / "server.key").read_bytes()
    (keys / "server.key").write_bytes(old_key)
    assert not link.reload()
    assert link.serial(keys / "ca.pem") == first
    (keys / "server.key").write_bytes(new_key)
    os.utime(keys / "server.key", ns=(1, 1))
    assert link.reload()


def test_an_authority_is_replaced_in_three_steps(
    keys: Path, link: Link, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(keys)
    old_ca = tmp_path / "ca.old.pem"
    old_ca.write_bytes(before["ca.pem"])
    assert rotate(keys, "--finish") == 2
    assert "nothing is to finish" in capsys.readouterr().err
    assert rotate(keys, "--authority") == 0
    assert changed(before, files(keys)) == {"ca.pem", "ca.key"}
    link.serial(keys / "ca.pem")  # who has both trusts the old certificate still
    assert rotate(keys, "--authority") == 2
    assert "--finish" in capsys.readouterr().err
    assert rotate(keys, "--finish") == 2
    assert "still signed by the old authority" in capsys.readouterr().err
    assert rotate(keys, "--server") == 0
    assert not link.reload()  # its own ServerApps do not trust the new authority yet
    with Link(keys) as again:
        with pytest.raises(ssl.SSLCertVerificationError):
            again.serial(old_ca)
        serial = again.serial(keys / "ca.pem")
        assert rotate(keys, "--finish") == 0
        assert again.serial(keys / "ca.pem") == serial
    assert (keys / "ca.pem").read_bytes().count(b"BEGIN CERTIFICATE") == 1


def test_a_node_gets_a_new_key(keys: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(keys)
    assert rotate(keys, "--node", "north") == 0
    said = capsys.readouterr().out
    assert "deploy admit" in said
    assert "deploy revoke" in said
    assert changed(before, files(keys)) == {"nodes/north.key", "nodes/north.pub"}
    certificates.check_node_key(keys / "nodes" / "north.key")
    assert stat.S_IMODE((keys / "nodes" / "north.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), "Choose what to replace"),
        (("--server", "--authority"), "Choose what to replace"),
        (("--node", "east"), "east.key cannot be read"),
        (("--node", "north", "--host", "x.org"), "--host is for --server"),
        (("--server", "--host", "x org"), "neither a host name nor an address"),
    ],
)
def test_bad_input_changes_nothing(
    keys: Path, words: tuple[str, ...], wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(keys)
    assert rotate(keys, *words) == 2
    assert wanted in capsys.readouterr().err
    assert changed(before, files(keys)) == set()
    assert not (keys / "old").exists()


def test_without_the_authoritys_key_nothing_is_signed(
    keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (keys / "ca.key").rename(tmp_path / "offline.key")
    before = files(keys)
    for what in ("--server", "--authority"):
        assert rotate(keys, what) == 2
        assert "ca.key cannot be read" in capsys.readouterr().err
    assert changed(before, files(keys)) == set()


def test_a_key_that_is_not_the_authoritys_signs_nothing(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rotation that was killed between its two files leaves a new key beside an old ca.pem."""
    old = (keys / "ca.pem").read_bytes()
    assert rotate(keys, "--authority") == 0
    (keys / "ca.pem").write_bytes(old)
    before = files(keys)
    assert rotate(keys, "--server") == 2
    assert "is not the key of" in capsys.readouterr().err
    assert changed(before, files(keys)) == set()
    assert rotate(keys, "--authority") == 0  # mends it
    assert rotate(keys, "--server") == 0


def test_a_certificate_that_is_not_valid_now_is_not_taken_up(
    keys: Path, link: Link, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = link.serial(keys / "ca.pem")
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "SERVER_DAYS", 0)  # it has ended before anybody sees it
        assert rotate(keys, "--server") == 0
    assert not link.reload()
    assert "is valid from" in caplog.text
    assert link.serial(keys / "ca.pem") == first


def test_a_certificate_without_a_host_is_named(
    keys: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (keys / "server.pem").write_bytes((keys / "ca.pem").read_bytes())  # an authority names none
    assert rotate(keys, "--server") == 2
    assert "names no host: name those of the SuperLink with --host" in capsys.readouterr().err
