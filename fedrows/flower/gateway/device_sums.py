"""Secure sums among the devices of a gateway: the server half runs here, a half on each device.

Each phase is work for the devices that it asks, by the same way as the work of a round in the
clear. A device that does not answer in time is a drop-out. The gateway sees what a server sees:
masked vectors, and the sum of at least `threshold` devices.

What all devices must agree on is one message, the `terms`. Its digest is in the sum's name, so it
is in every key and every signature: devices that were told different things open nothing together.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from fedrows.flower.gateway.forms import SUM, PhaseForm
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.message import Message, pack
from fedrows.flower.wire.names import SumNames
from fedrows.privacy.protocol import LastRequests, ServerHalf

LAST = 10.0  # seconds, at most, for the last message, which changes no result
ROOM = 4096  # bytes of an answer beside the vector, and …
ROOM_EACH = 1024  # … for every device of the sum
R = TypeVar("R")


@dataclass(frozen=True)
class SumDevice:
    """A device that takes part in sums."""

    id: str
    registration: str
    key: bytes  # public, Ed25519


@dataclass(frozen=True)
class AgreedTerms:
    """The message that says what is added up, and the name that follows from it."""

    sum: str
    message: bytes

    @property
    def name(self) -> str:
        """What the sum is called in keys and signatures."""
        return f"{self.sum}, {hashlib.sha256(self.message).hexdigest()}"


class DeviceSums:
    """Carries secure sums for one run. enough: the share of devices that the first phase awaits."""

    def __init__(self, work: WorkStore, run: str, program: str, enough: float = 1.0) -> None:
        self._work, self._run, self._program, self._enough = work, run, program, enough
        self._names = SumNames()

    def terms(
        self, devices: Sequence[SumDevice], facts: Mapping[str, Any], parts: Mapping[str, bytes]
    ) -> AgreedTerms:
        """The terms of a new sum; the devices are its parties 0, 1, …"""
        parties = [device.key.hex() for device in devices]
        name = self._names.make()
        about = {**facts, "sum": name, "run": self._run, "parties": parties}
        return AgreedTerms(name, pack(Message("terms", about, dict(parts))))

    def carry(
        self,
        half: ServerHalf[R],
        agreed: AgreedTerms,
        devices: Sequence[SumDevice],
        own: Sequence[Mapping[str, Any]],
        vector: int,
        seconds: float,
    ) -> R:
        """What the server half of a protocol returns; ProtocolErrors are the protocol's own.

        own: what each device alone is told. vector: bytes of one. seconds: for all phases.
        """
        until, phase = time.time() + seconds, 0
        most = ROOM + ROOM_EACH * len(devices) + vector
        try:
            requests = next(half)
            while True:
                form = PhaseForm(agreed.sum, phase, most)
                works = {}
                for party, request in requests.items():
                    facts: dict[str, Any] = {
                        "run": self._run,
                        "program": self._program,
                        "sum": agreed.sum,
                    }
                    facts |= {"phase": phase, "party": party, **own[party]}
                    facts["registration"] = devices[party].registration
                    parts = {"request": request} | ({} if phase else {"terms": agreed.message})
                    message = pack(Message(SUM, facts, parts))
                    works[party] = NewWork(devices[party].id, form.text(), message)
                last = isinstance(requests, LastRequests)
                end = min(until, time.time() + LAST) if last else until
                requests = half.send(self._exchange(works, form, end))
                phase += 1
        except StopIteration as stop:
            result: R = stop.value
            return result
        finally:
            self._work.put(self._run, 0, 0.0, [])  # nobody is asked any more

    def _exchange(
        self, works: Mapping[int, NewWork], form: PhaseForm, until: float
    ) -> dict[int, bytes]:
        """The replies of the devices that answer; each phase may take half of the time left."""
        if not works:
            return {}
        tag, deadline = secrets.randbits(62), time.time() + max(0.0, until - time.time()) / 2
        ids = self._work.put(self._run, tag, deadline, list(works.values()))
        wanted = math.ceil(self._enough * len(works)) if form.phase == 0 else len(works)
        uploads = self._work.wait(tag, len(works) - wanted, deadline)
        replies = {
            p: form.check(uploads[i]) for p, i in zip(works, ids, strict=True) if i in uploads
        }
        return {party: reply for party, reply in replies.items() if reply is not None}
