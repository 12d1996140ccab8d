"""The record of one round's messages: what rounds.jsonl keeps of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.message import WireError, unpack
from fedrows.watch.observer import BufferReport


@dataclass
class Exchange:
    """What happened in a round, for whoever watches."""

    round: int
    tries: int = 1  # a round with too few answers is tried again
    asked: int = 0
    answered: int = 0
    dropped: dict[str, list[Any]] = field(default_factory=dict)  # why → clients, by name
    refused: dict[str, list[str]] = field(default_factory=dict)  # why → nodes or clients
    messages: int = 0  # sent, one to a node
    bytes_down: int = 0
    bytes_up: int = 0
    rows_spared: int = 0  # not sent, because the node had them
    loss: float | None = None  # of the clients that answered, before they trained
    seconds: dict[str, float] = field(default_factory=dict)
    resident: int | None = None  # bytes of memory that the server has after it
    buffer: BufferReport | None = None  # of an asynchronous step

    def drop_(self, why: str, clients: Iterable[ClientName]) -> None:
        """Notes clients whose work brings nothing."""
        self.dropped.setdefault(why, []).extend(clients)

    def add_seconds_(self, phase: str, seconds: float) -> None:
        """Adds time to a phase of a step."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


def short_kind(answer: bytes) -> str:
    """The kind of an answer that is too short for an update; empty if it is another one."""
    if len(answer) > 4096:
        return ""
    try:
        return unpack(answer).kind
    except WireError:
        return ""
