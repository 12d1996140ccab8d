"""The SuperLink's socket: half-open connections keep nobody out, and a header has its limits."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from fedrows.flower.launch import certificates, gate, listener
from fedrows.flower.launch.connections import Connection, ConnectionLimits, Connections, source_of
from fedrows.flower.launch.control_token import HEADER
from fedrows.flower.launch.processes import free_port

TOKEN = "a" * 64
LIMIT = 60.0  # seconds, which only a failure takes
HEALTH = b"GET /health HTTP/1.1\r\n\r\n"
UNFINISHED = b"GET /health HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"  # its body never comes
PROVED = b"GET /v1/control/x HTTP/1.1\r\n%s: %s\r\n\r\n" % (HEADER, TOKEN.encode())


def test_the_oldest_that_waits_makes_room() -> None:
    connections = Connections(ConnectionLimits(total=6, per_address=4, waiting=2))
    ended: list[str] = []

    def come(name: str, source: str) -> tuple[Connection, bool]:
        connection = Connection(source, lambda: ended.append(name))
        return connection, connections.admit(connection)

    first, _ = come("a1", "a")
    come("a2", "a")
    come("a3", "a")
    assert ended == ["a1"]  # two may wait, and the oldest has waited the longest
    served = [come(f"b{i}", "b")[0] for i in range(2)]
    for one in served:
        connections.note(one, proof=True)
    for i in range(2, 4):
        one, _ = come(f"b{i}", "b")
        connections.note(one, proof=True)
    assert not come("b4", "b")[1]  # four of one address, and all are being served
    _, admitted = come("c1", "c")
    assert admitted  # six in all: one that waits at a makes room
    assert ended == ["a1", "a2"]
    connections.forget(first)  # it is gone already
    for one in served:
        connections.forget(one)
    assert come("b5", "b")[1]
    assert connections.refused == 3
    one, _ = come("d1", "d")
    connections.note(one, proof=True)
    connections.note(one, proof=False)  # its last request had none: it waits again
    come("d2", "d")
    come("d3", "d")
    assert "d1" in ended
    connections.note(one, proof=False)  # it is gone already
    assert one not in connections._waiting


def test_who_has_proved_a_name_has_so_many_connections() -> None:
    connections, ended = Connections(ConnectionLimits(per_name=2)), list[int]()
    own = [Connection("a", lambda i=i: ended.append(i)) for i in range(4)]  # type: ignore[misc]
    for one in own:
        assert connections.admit(one)
    for one in own[:2]:
        connections.note(one, True, "tablet")
        connections.note(one, True, "tablet")  # its next request
    connections.note(own[2], True, "phone")
    assert ended == []
    connections.note(own[3], True, "tablet")
    assert ended == [0]
    connections.forget(own[1])
    connections.note(own[2], True, "tablet")  # another device behind the same proxy
    assert ended == [0]


def test_limits_follow_from_the_files_of_the_process() -> None:
    limits = ConnectionLimits().within(256)
    assert limits == ConnectionLimits(192, 96, 32)
    assert ConnectionLimits().within(100_000) == ConnectionLimits()
    assert source_of("::ffff:192.0.2.1") == source_of("192.0.2.1") == "192.0.2.1"
    assert source_of("2001:db8::1") == source_of("2001:db8::2") != source_of("2001:db8:0:1::1")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make_authority(folder)
    certificates.make_server(folder, ["localhost"])
    return folder


class Server:
    """A server with the gate's listener, in a thread of this process."""

    def __init__(self, keys: Path) -> None:
        self.port = free_port()
        self.largest = 0
        self.context = ssl.create_default_context(cafile=str(keys / certificates.CA))
        config = listener.uvicorn.Config(
            gate.Gate(self.answer, gate.networks("127.0.0.1/32"), TOKEN),
            host="127.0.0.1",
            port=self.port,
            http=listener.TimedProtocol,
            ws="none",
            ssl_certfile=str(keys / certificates.SERVER),
            ssl_keyfile=str(keys / certificates.SERVER_KEY),
            lifespan="off",
            log_level="critical",
        )
        self.server = listener.LimitedServer(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})

    def connect(self, source: str = "127.0.0.1", tls: bool = True) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), LIMIT, (source, 0))
        return self.context.wrap_socket(plain, server_hostname="localhost") if tls else plain

    def status(self, request: bytes = HEALTH, source: str = "") -> int:
        with self.connect(source or "127.0.0.2") as sock:
            sock.sendall(request)
            return int(sock.recv(100).split()[1])


@contextlib.contextmanager
def serving(keys: Path, monkeypatch: pytest.MonkeyPatch, **limits: Any) -> Iterator[Server]:
    for name, value in limits.items():
        monkeypatch.setattr(listener, name, value)
    server = Server(keys)
    server.thread.start()
    until = time.monotonic() + LIMIT
    while not getattr(server.server, "servers", None):
        assert time.monotonic() < until
        time.sleep(0.01)
    try:
        yield server
    finally:
        server.server.should_exit = True
        server.thread.join(LIMIT)
        assert not server.thread.is_alive()


def is_answered(sock: socket.socket) -> bool:
    sock.sendall(PROVED)
    text = b""
    while not text.endswith(b"ok") and (part := sock.recv(1000)):
        text += part
    return b" 200 " in text


def is_open(sock: socket.socket) -> bool:
    sock.settimeout(0.02)
    try:
        return bool(sock.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


@pytest.mark.parametrize("tls", [False, True])
def test_half_open_connections_keep_nobody_out(
    keys: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """Connections with half a header, or not even a handshake, where 112 files are allowed."""
    with serving(keys, monkeypatch, raise_files=lambda wanted: 112) as server:
        held = [server.connect(tls=tls) for _ in range(60)]
        if tls:
            for sock in held[-12:]:
                sock.sendall(b"POST /v1/fleet/push-object HTTP/1.1\r\nX-A: ")
        assert server.status(source="127.0.0.2") == 200  # another address
        assert server.status(source="127.0.0.1") == 200  # and this one: it is newer
        assert sum(map(is_open, held)) <= 12
        for sock in held:
            sock.close()


@pytest.mark.parametrize("request_", [HEALTH, UNFINISHED])
def test_requests_without_a_proof_keep_nobody_out(
    keys: Path, monkeypatch: pytest.MonkeyPatch, request_: bytes
) -> None:
    """Four addresses ask for /health on as many connections as there may be, again and again."""
    with (
        serving(keys, monkeypatch, raise_files=lambda wanted: 112) as server,  # 48 connections
        contextlib.ExitStack() as held,
    ):
        known = held.enter_context(server.connect())
        for i in range(60):
            if i % 12 == 0:  # whoever has a proof is not closed for others
                assert is_answered(known)
            stranger = held.enter_context(server.connect(f"127.0.0.{3 + i % 4}"))
            stranger.sendall(request_)
        assert server.status(source="127.0.0.2") == 200
        assert is_answered(known)


def test_an_answer_to_health_ends_the_connection(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(keys, monkeypatch) as server, server.connect() as sock:
        sock.sendall(HEALTH)
        sock.settimeout(LIMIT)
        text = b""
        while part := sock.recv(1000):
            text += part
        assert b"connection: close" in text.lower()


@pytest.mark.parametrize("text", [b"", b"GET /health HTT", b"GET /health HTTP/1.1\r\nX-A: "])
def test_a_header_has_its_time(keys: Path, monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    with serving(keys, monkeypatch, HEADER_SECONDS=0.3) as server:
        with server.connect() as sock:
            since = time.monotonic()
            sock.sendall(text)
            sock.settimeout(LIMIT)
            with contextlib.suppress(ConnectionError):
                assert sock.recv(100) == b""
            assert time.monotonic() - since >= 0.2
        with server.connect() as sock:  # the second header of a connection, too
            sock.sendall(PROVED + b"G" + text[1:5])
            sock.settimeout(LIMIT)
            with contextlib.suppress(ConnectionError):
                while sock.recv(1000):
                    pass


def test_a_handshake_has_its_time(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(keys, monkeypatch, HEADER_SECONDS=0.3) as server,
        server.connect(tls=False) as sock,
    ):
        sock.settimeout(LIMIT)
        with contextlib.suppress(ConnectionError):
            assert sock.recv(1) == b""


def test_a_header_has_its_size_and_an_upgrade_its_answer(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(keys, monkeypatch) as server:
        with server.connect() as sock, pytest.raises((ConnectionError, ssl.SSLError)):
            sock.sendall(b"GET /health HTTP/1.1\r\nX-A: " + b"x" * 100_000_000)
        upgrade = b"GET /v1/fleet/x HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        assert server.status(upgrade) == 400
        assert server.status(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n") == 400
        body = b"POST /v1/fleet/x HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n" + b"x" * 1000
        assert server.status(body) == 401  # it was not read
        assert server.status() == 200
