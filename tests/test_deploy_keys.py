"""Keys and certificates: made once, for their owner alone, and asked for where they are needed."""

import contextlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from fedrows.flower.launch import certificates, control, federation
from fedrows.flower.launch.processes import LaunchError


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_authority(folder)
    certificates.make_server(folder, ["superlink.example.org", "192.0.2.7"])
    certificates.make_node_key(folder, "a")
    return folder


def test_private_keys_are_for_their_owner_alone(keys: Path) -> None:
    for path in (keys / "ca.key", keys / "server.key", keys / "nodes" / "a.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(certificates.hosts_of(keys / "server.pem")) == {
        "superlink.example.org",
        "192.0.2.7",
        "localhost",
        "127.0.0.1",
        "::1",
    }
    certificates.check_node_key(keys / "nodes" / "a.key")


def test_nothing_is_overwritten(keys: Path) -> None:
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    for make in (
        lambda: certificates.make_authority(keys),
        lambda: certificates.make_server(keys, ["x"]),
        lambda: certificates.make_node_key(keys, "a"),
    ):
        with pytest.raises(certificates.CertificateError, match="exists already"):
            make()
    assert before == {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 64])
def test_a_nodes_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(certificates.CertificateError, match="cannot be a node's name"):
        certificates.make_node_key(tmp_path, name)


def test_wrong_files_are_named(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "odd").write_text("odd")
    with pytest.raises(certificates.CertificateError, match="odd is not a node's private key"):
        certificates.check_node_key(tmp_path / "odd")
    with pytest.raises(certificates.CertificateError, match="not a certificate"):
        certificates.read_certificate(tmp_path / "odd")
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    with pytest.raises(certificates.CertificateError, match=r"server\.pem cannot be read"):
        certificates.open_certificates(tmp_path)
    with pytest.raises(certificates.CertificateError, match="neither a host name nor an address"):
        certificates.make_server(_authority(tmp_path / "new"), ["a:8000"])


def test_nodes_need_names_and_keys_of_their_own(tmp_path: Path, keys: Path) -> None:
    twice = [federation.NodeSpec("a"), federation.NodeSpec("a")]
    with pytest.raises(LaunchError, match="its own name"):
        federation.LocalFederation(tmp_path, twice)
    with pytest.raises(LaunchError, match="Node b has no key"):
        federation.LocalFederation(
            tmp_path, [federation.NodeSpec("b")], certificates.open_certificates(keys, ["a"])
        )


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, keys: Path) -> None:
    other = _authority(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                plain, _address = listener.accept()
                with contextlib.suppress(OSError), plain, context.wrap_socket(plain, True):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(control.ControlError, match="does not vouch for"):
            control.check_reachable(f"127.0.0.1:{port}", other / "ca.pem")
        control.check_reachable(f"127.0.0.1:{port}", keys / "ca.pem")
        thread.join()


def test_a_superlink_with_tls_is_not_asked_without() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for answer in (b"\x15\x03\x01\x00\x02", b"HTTP/1.0 200 OK\r\n\r\n"):
                plain, _ = listener.accept()
                with plain:
                    plain.recv(100)
                    plain.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(control.ControlError, match="does not speak plain HTTP"):
            control.check_reachable(f"127.0.0.1:{port}", None)
        control.check_reachable(f"127.0.0.1:{port}", None)
        thread.join()


def _authority(folder: Path) -> Path:
    certificates.make_authority(folder)
    return folder
