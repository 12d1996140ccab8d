"""Enrolment: asks nodes that are new who they are, and registers those that fit the run."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from fedrows.flower.server.registry import Registry
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.transport import Transport

SECONDS = 60.0  # that a new node has to answer


@dataclass(frozen=True)
class _Request:
    """A request to enrol that is not answered yet."""

    node: int
    version: int  # of the list of clients that the node will send
    until: float  # when it is given up


class Enrolment:
    """Sends requests to enrol, and reads the answers."""

    def __init__(
        self,
        transport: Transport,
        registry: Registry,
        fingerprint: str,
        rejected: Counter[str],
        log: Callable[[str], None],
    ) -> None:
        self._transport, self._registry, self._fingerprint = transport, registry, fingerprint
        self._rejected, self._log = rejected, log
        self._requests: dict[str, _Request] = {}  # by message id
        self._unfit: set[int] = set()  # nodes that do not fit this run

    def poll(self, run: str) -> list[str]:
        """Asks nodes that are new to enrol, reads new answers, and returns who has enrolled."""
        waiting = {request.node for request in self._requests.values()}
        known = {node.address for node in self._registry.nodes.values()}
        seen = known | waiting | self._unfit
        new = [node for node in self._transport.nodes() if node not in seen]
        if new:
            version = secrets.randbits(30) + 1
            facts = {"contract": self._fingerprint, "run": run, "version": version}
            messages = dict.fromkeys(new, pack(Message("enrol", facts, {})))
            until = time.monotonic() + SECONDS
            for message_id, node in self._transport.send(messages, SECONDS, 0).items():
                self._requests[message_id] = _Request(node, version, until)
        if not self._requests:
            return []
        answers = self._transport.receive(self._requests)
        names = [self._read(self._requests.pop(i), answer) for i, answer in answers.items()]
        now = time.monotonic()
        self._requests = {i: one for i, one in self._requests.items() if one.until > now}
        return [name for name in names if name is not None]

    def _read(self, request: _Request, answer: bytes | str) -> str | None:
        """Registers the node that answered; returns its name, or None if it is not let in."""
        if isinstance(answer, str):
            self._log(f"Node {request.node} did not say who it is: {answer}")
            return None
        try:
            message = unpack(answer)
            if message.kind == "refused":
                raise WireError(str(message.facts.get("why", "it does not fit"))[:500])
            if message.kind != "enrolled":
                raise WireError("It answers the request to enrol with something else.")
            name = self._registry.register(request.node, request.version, message)
        except WireError as error:
            self._unfit.add(request.node)
            self._rejected["registration"] += 1
            self._log(f"Node {request.node} is not let in: {error}")
            return None
        count = len(self._registry.nodes[name].clients)
        self._log(f"Node {name!r} is here with {count} clients.")
        return name
