"""Protocols without I/O: two generators that talk in bytes, and a driver that runs both here.

The server half yields {client: request} and is sent {client: reply}; a missing key is a drop-out.
The client half yields a reply and is sent the next request. Its first reply answers a request whose
content it never sees, so a caller may use that one to tell a node what to take part in.

A client's secrets are fresh each time, so a client that is killed half-way is a drop-out and needs
no state of its own. Whoever carries the messages (`run` here, a network elsewhere) changes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fedrows.errors import FedrowsError

R = TypeVar("R")
C = TypeVar("C")
ClientHalf = Generator[bytes, bytes, C]
ServerHalf = Generator[dict[int, bytes], dict[int, bytes], R]


class LastRequests(dict[int, bytes]):
    """Requests that end a protocol: no reply changes its result, and nobody need wait for one."""


class ProtocolError(FedrowsError, RuntimeError):
    """A protocol that cannot go on; nothing was opened."""


class MessageError(ProtocolError):
    """A message that is not what its sender should have sent; `sender` is a client."""

    def __init__(self, sender: int, what: str) -> None:
        super().__init__(f"Client {sender}'s message {what}: it is refused.")
        self.sender = sender


@dataclass
class Phase:
    """What one request and its replies cost."""

    asked: int = 0
    answered: int = 0
    bytes_down: int = 0  # of all clients together
    bytes_up: int = 0
    most_up: int = 0  # of the client that sent most
    server_seconds: float = 0.0
    client_seconds: float = 0.0  # of all clients together


@dataclass
class Outcome(Generic[R, C]):
    """What a protocol came to in this process."""

    result: R
    clients: dict[int, C] = field(default_factory=dict)  # what each finished client returned
    refused: dict[int, FedrowsError] = field(default_factory=dict)  # why a client went silent
    phases: list[Phase] = field(default_factory=list)


def run(
    server: ServerHalf[R],
    clients: Mapping[int, ClientHalf[C]],
    drop: Mapping[int, int] | None = None,
) -> Outcome[R, C]:
    """Carries the messages between a server half and its client halves until the server is done.

    `drop[client]` is the first phase, from 0, in which that client no longer answers. A client that
    refuses to go on is a drop-out too, and its error is kept.
    """
    drop = drop or {}
    finished: dict[int, C] = {}
    refused: dict[int, FedrowsError] = {}
    phases: list[Phase] = []
    started: set[int] = set()
    replies: dict[int, bytes] = {}
    while True:
        begin = time.perf_counter()
        try:
            requests = next(server) if not phases else server.send(replies)
        except StopIteration as stop:
            if phases:
                phases[-1].server_seconds += time.perf_counter() - begin
            return Outcome(stop.value, finished, refused, phases)
        phase = Phase(asked=len(requests), server_seconds=time.perf_counter() - begin)
        phases.append(phase)
        begin, replies = time.perf_counter(), {}
        for name, request in requests.items():
            phase.bytes_down += len(request)
            if drop.get(name, len(phases)) < len(phases) or name in refused or name in finished:
                continue
            half = clients[name]
            try:
                replies[name] = half.send(request) if name in started else next(half)
            except StopIteration as stop:
                finished[name] = stop.value
            except FedrowsError as error:
                refused[name] = error
            started.add(name)
        phase.client_seconds = time.perf_counter() - begin
        phase.answered = len(replies)
        sizes = [len(reply) for reply in replies.values()]
        phase.bytes_up, phase.most_up = sum(sizes), max(sizes, default=0)
