"""The SuperLink's listening socket: how many may connect, and how long a request may take to come.

uvicorn accepts whoever comes, keeps a TLS handshake open for a minute and a half-sent header for
ever. A few hundred such connections use up a process's files, and nobody else gets in. Here a
connection is *waiting* until the gate has seen a proof in the header of a request:

    accepted    counted, per address and in all, before the TLS handshake
    waiting     HEADER_SECONDS for handshake and header; the oldest makes room for a newer one
    proved      kept for uvicorn's own 5 s between two requests; each new header has its time too

A websocket upgrade is answered as an ordinary request, for flwr has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fedrows.flower.launch.certificate_reload import CertificateReload
from fedrows.flower.launch.connections import (
    PROOF,
    Connection,
    ConnectionLimits,
    Connections,
    source_of,
)
from fedrows.flower.launch.notices import Notices

HEADER_SECONDS = 10.0  # for the TLS handshake, and for a header
SHUTDOWN_SECONDS = 3.0  # for the end of TLS, while what still comes is thrown away
HEADER_BYTES = 65536
BROKE_OFF = "{n} connections to the SuperLink broke off within 10 s: the network is unreliable."
AT_A_TIME = 64  # connections that are accepted before anything else is done


class TimedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a limit on the time and the size of a header."""

    connection: Connection
    connections_open: Connections
    broke_off: Callable[[], None] = staticmethod(lambda: None)
    _timer: asyncio.TimerHandle | None = None
    _header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.connection.end = transport.abort
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        unanswered = self.cycle is not None and not self.cycle.response_started
        if unanswered or (self._timer is not None and self._header_bytes):
            self.broke_off()  # others end in order, between two requests
        self._stop_timer()
        self.connections_open.forget(self.connection)
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Says nothing: the gate answers, and a stranger could fill the log."""

    def data_received(self, data: bytes) -> None:
        self._header_bytes += len(data)
        super().data_received(data)
        if self._timer is not None and self._header_bytes > HEADER_BYTES:
            self._give_up()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes = 0
        if self._timer is None:
            self._start_timer()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        note = partial(self.connections_open.note, self.connection)
        self.scope[PROOF] = note  # type: ignore[literal-required]
        super().on_headers_complete()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._stop_timer()
        self.transport.abort()


class Listener:
    """Accepts connections of a socket; what uvicorn's server expects of an asyncio server."""

    def __init__(
        self,
        sock: socket.socket,
        protocol: Callable[[], TimedProtocol],
        connections: Connections,
        context: ssl.SSLContext | None,
    ) -> None:
        self._socket, self._protocol = sock, protocol
        self._connections, self._context = connections, context
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop.add_reader(sock.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_A_TIME):
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no files left: those who wait outside keep waiting
                logging.getLogger("uvicorn.error").warning("Not accepted: %s.", error)
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(1.0, self._resume)
                return
            connection = Connection(source_of(address[0]), sock.close)
            if not self._connections.admit(connection):
                sock.close()
                continue
            task = self._loop.create_task(self._serve(sock, connection))
            connection.end = partial(_break_off, sock, task)  # until its protocol has taken over
            self._tasks.add(task)
            task.add_done_callback(partial(self._begun, sock, connection))

    async def _serve(self, sock: socket.socket, connection: Connection) -> None:
        protocol = self._protocol()
        protocol.connection, protocol.connections_open = connection, self._connections
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await self._loop.connect_accepted_socket(
            lambda: protocol,
            sock,
            ssl=self._context,
            ssl_handshake_timeout=HEADER_SECONDS if self._context else None,
            ssl_shutdown_timeout=SHUTDOWN_SECONDS if self._context else None,
        )

    def _begun(self, sock: socket.socket, connection: Connection, task: asyncio.Task[None]) -> None:
        """Cleans up after a handshake that failed, took too long or was broken off."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is None and not task.cancelled():
            return
        self._connections.forget(connection)
        sock.close()
        if isinstance(error, ConnectionError):
            self._protocol().broke_off()
        if error is not None and not isinstance(error, OSError):
            logging.getLogger("uvicorn.error").error("Not served: %r.", error)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def close(self) -> None:
        """Accepts nobody any more."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Waits for handshakes that were broken off."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _break_off(sock: socket.socket, task: asyncio.Task[None]) -> None:
    """Ends a connection whose handshake is not done."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    task.cancel()


class LimitedServer(uvicorn.Server):
    """uvicorn's server behind a `Listener`."""

    notices = Notices()
    ca = ""  # the file of the authority; with it, a new certificate is taken up
    limits = ConnectionLimits()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        if self.should_exit:
            return
        config, connections = self.config, Connections(self.limits.within(raise_files(4096)))

        def protocol() -> TimedProtocol:
            made = TimedProtocol(config, self.server_state, self.lifespan.state)
            made.broke_off = self._broke_off
            return made

        sock = config.bind_socket()
        sock.set_inheritable(False)
        sock.listen(config.backlog)
        sock.setblocking(False)
        listener = Listener(sock, protocol, connections, config.ssl)
        self.servers = [listener]  # type: ignore[list-item]
        if config.ssl is not None and self.ca and config.ssl_keyfile:
            files = (config.ssl_certfile, config.ssl_keyfile, self.ca)
            reload = CertificateReload(config.ssl, *(Path(str(name)) for name in files))
            self._reload = asyncio.get_running_loop().create_task(reload.watch())

    def _broke_off(self) -> None:
        self.notices.count("breaks", BROKE_OFF)


def serve(
    app: Any,
    notices: Notices | None = None,
    ca: str = "",
    limits: ConnectionLimits | None = None,
    **options: Any,
) -> None:
    """Takes the place of `uvicorn.run`. notices: get how many connections broke off.

    ca: the file of the authority that signs the certificate.
    """
    fixed = {"http": TimedProtocol, "ws": "none", "proxy_headers": False}
    config = uvicorn.Config(app, **{**options, **fixed})
    config.load_app()
    server = LimitedServer(config)
    server.notices, server.ca = notices or server.notices, ca
    server.limits = limits or server.limits
    server.run()


def raise_files(wanted: int) -> int:
    """How many files this process may open, after raising that as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < best:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
            soft = best
    return wanted if soft == resource.RLIM_INFINITY else soft
