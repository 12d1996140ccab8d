"""A TCP connection before a gateway on which a test can break answers off, or kill a device."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

END = b"\r\n\r\n"  # of an answer's header
Before = Callable[[str], int | None]


class Swallowed(Exception):
    """A request that is not passed on."""


@contextlib.contextmanager
def meddled(url: str, before: Before, pause: float = 0.0) -> Iterator[str]:
    """Passes everything on; gives its own address.

    before: called with the first line of every request. It returns how many bytes of the answer's
    body pass before the connection breaks (None: all), or raises Swallowed. pause: seconds between
    the last byte and the break.
    """
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    where = urlsplit(url)
    held: list[socket.socket] = [listening]

    def accept() -> None:
        while True:
            try:
                client, _ = listening.accept()
                behind = socket.create_connection((where.hostname, where.port))
            except OSError:
                return
            held.extend((client, behind))
            left: list[int | None] = [None]
            for one in (up, down):
                threading.Thread(target=one, args=[client, behind, left], daemon=True).start()

    def up(client: socket.socket, behind: socket.socket, left: list[int | None]) -> None:
        with contextlib.suppress(OSError, Swallowed):
            while data := client.recv(2**16):
                if data.startswith((b"GET /", b"PUT /", b"POST /")):
                    left[0] = before(data.split(b"\r\n", 1)[0].decode())
                behind.sendall(data)
        _end(client, behind)

    def down(client: socket.socket, behind: socket.socket, left: list[int | None]) -> None:
        with contextlib.suppress(OSError):
            while data := behind.recv(2**16):
                if left[0] is not None:
                    while END not in data:
                        data += behind.recv(2**16)
                    begin = data.index(END) + len(END)
                    while len(data) - begin < left[0]:
                        data += behind.recv(2**16)
                    client.sendall(data[: begin + left[0]])
                    time.sleep(pause)
                    break
                client.sendall(data)
        _end(client, behind)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        _end(*held)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
