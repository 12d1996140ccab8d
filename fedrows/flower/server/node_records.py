"""What the server knows of its nodes: who answers, who is away and since when, what was refused.

A node is *away* from the first message that it does not answer until its next answer. How long is
counted from its last answer, because that is the last time that it was surely there.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedrows.watch.observer import NodeReport

NOT_CONNECTED = "it is not connected"
LATE = "it did not answer in time"
SILENT = "its device did not answer in time"

NoteEvent = Callable[[str, Mapping[str, Any]], None]  # its name and its fields


@dataclass
class _Record:
    """One node, as far as this process knows."""

    since: float  # when it was last there: its last answer, or when it enrolled
    answered: int = 0
    last_answer: float | None = None
    why: str = ""  # why it is away; empty if it is not
    refused: Counter[str] = field(default_factory=Counter)


class NodeRecords:
    """The nodes of a run by name. `event` hears who is lost, who is back and who has left."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._nodes: dict[str, _Record] = {}
        self.event: NoteEvent = lambda name, fields: None

    def connected(self, nodes: Mapping[str, int], present: Collection[int]) -> None:
        """Takes note of which registered nodes are connected. nodes: name → address."""
        for name, address in nodes.items():
            self._record(name)
            if address and address not in present:
                self._lose(name, NOT_CONNECTED)
        for name in sorted(self._nodes.keys() - nodes.keys()):  # it declines, or was revoked
            del self._nodes[name]
            self.event("node-left", {"node": name})

    def asked(
        self, nodes: Mapping[str, int], asked: Iterable[int], answers: Mapping[int, bytes | str]
    ) -> None:
        """Takes note of who has answered a message. asked: the addresses that were waited for."""
        names = {address: name for name, address in nodes.items()}
        for address in asked:
            if (name := names.get(address)) is None:
                continue
            answer = answers.get(address, LATE)
            if isinstance(answer, str):
                self._lose(name, answer)
            else:
                self._answer(name)

    def refuse(self, name: str, reason: str) -> None:
        """Counts what was refused of a node, or of a client of it."""
        self._record(name).refused[reason] += 1

    def reports(self) -> dict[str, NodeReport]:
        """How every node stands now."""
        now = self._clock()
        return {
            name: NodeReport(
                record.answered,
                record.last_answer,
                max(now - record.since, 0.0) if record.why else None,
                record.why,
                dict(record.refused),
            )
            for name, record in sorted(self._nodes.items())
        }

    def away(self) -> str:
        """Who is away and for how long, in a few words; empty if nobody is."""
        lost = [(name, x) for name, x in self.reports().items() if x.away is not None]
        return ", ".join(f"{name} for {x.away:.0f} s ({x.why})" for name, x in lost)

    def _record(self, name: str) -> _Record:
        return self._nodes.setdefault(name, _Record(self._clock()))

    def _answer(self, name: str) -> None:
        record, now = self._record(name), self._clock()
        if record.why:
            self.event("node-back", {"node": name, "away": round(now - record.since, 1)})
        record.answered += 1
        record.last_answer = record.since = now
        record.why = ""

    def _lose(self, name: str, why: str) -> None:
        record = self._record(name)
        if not record.why:
            away = round(max(self._clock() - record.since, 0.0), 1)
            self.event("node-lost", {"node": name, "why": why, "away": away})
        record.why = why
