"""Enrolment: asks nodes that are new who they are, and registers those that fit the run.

A registration may be a lie of any size, so its bytes are counted before it is read. A node that is
not let in is asked again after a pause, which doubles each time. A gateway that still waits for its
devices is asked again soon. A node has one name at a time. In a private run it signs its
registration, or whoever knows a node's name could take it first.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedrows.flower.server.registry import Registry
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.signing import check_enrolment
from fedrows.flower.wire.transport import Transport

SECONDS = 60.0  # that a new node has to answer
SOON = 2.0  # seconds until a gateway that waits for devices is asked again
LONGEST = 3600.0  # seconds at most until a node that was not let in is asked again


@dataclass(frozen=True)
class _Request:
    """A request to enrol that is not answered yet."""

    node: int
    run: str
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
        self.keys: Mapping[str, bytes] | None = None  # of the only nodes let in; None: any node
        self._requests: dict[str, _Request] = {}  # by message id
        self._refused: dict[
            int, tuple[float, float]
        ] = {}  # node → asked again at, after a pause of
        self._names: dict[int, str] = {}  # node → what it was last registered as
        self.declined: dict[int, str] = {}  # nodes that take no part → what people call them
        self.not_let_in: dict[int, str] = {}  # nodes whose registration was refused → why

    def poll(self, run: str) -> list[str]:
        """Asks nodes that are new to enrol, reads new answers, and returns who has enrolled."""
        waiting = {request.node for request in self._requests.values()}
        known = {node.address for node in self._registry.nodes.values()}
        now = time.monotonic()
        seen = known | waiting | {node for node, (at, _) in self._refused.items() if at > now}
        new = [node for node in self._transport.nodes() if node not in seen]
        if new:
            version = secrets.randbits(30) + 1
            facts = {"contract": self._fingerprint, "run": run, "version": version}
            messages = dict.fromkeys(new, pack(Message("enrol", facts)))
            until = now + SECONDS
            for message_id, node in self._transport.send(messages, SECONDS, 0).items():
                self._requests[message_id] = _Request(node, run, version, until)
        if not self._requests:
            return []
        answers = self._transport.receive(self._requests)
        names = [self._read(self._requests.pop(i), answer) for i, answer in answers.items()]
        self._requests = {i: x for i, x in self._requests.items() if x.until > now}
        return [name for name in names if name is not None]

    def decline_(self, node: int, called: str) -> None:
        """Takes note of a node that takes no part; it does not say why, and is not asked soon."""
        self._refused[node] = (time.monotonic() + LONGEST, LONGEST)
        self.declined[node] = called
        self._log(f"N{called[1:]} declines to take part: its own log says why.")

    def _wait_(self, node: int, message: Message) -> None:
        """Takes note of a gateway that waits for its devices."""
        facts = [message.facts.get(name) for name in ("devices", "needed")]
        if not all(type(x) is int and 0 <= x < 2**31 for x in facts):
            raise WireError("It does not say how many devices it waits for.")
        self._refused[node] = (time.monotonic() + SOON, SECONDS / 2)
        why = f"it waits for devices: {facts[0]} have registered, and {facts[1]} are needed"
        if self.not_let_in.get(node) != why:
            self.not_let_in[node] = why
            self._log(f"Gateway {node} is not ready: {why}.")

    def _read(self, request: _Request, answer: bytes | str) -> str | None:
        """Registers the node that answered; returns its name, or None if it is not let in."""
        if isinstance(answer, str):
            self._log(f"Node {request.node} did not say who it is: {answer}")
            return None
        most = self._registry.limits.bytes
        try:
            if len(answer) > most:
                raise WireError(
                    f"Its registration has {len(answer)} bytes, but at most {most} are read: give "
                    "it fewer clients, or raise max-registration."
                )
            message = unpack(answer, most)
            if message.kind == "declined":
                self.decline_(request.node, f"node {request.node}")
                return None
            if message.kind == "waiting":
                self._wait_(request.node, message)
                return None
            if message.kind == "refused":
                raise WireError(str(message.facts.get("why", "it does not fit"))[:500])
            if message.kind != "enrolled":
                raise WireError("It answers the request to enrol with something else.")
            if self.keys is not None:
                check_enrolment(self.keys, request.run, request.version, message)
            name = self._registry.register(request.node, request.version, message)
        except WireError as error:
            _, pause = self._refused.get(request.node, (0.0, SECONDS / 2))
            pause = min(2 * pause, LONGEST)
            self._refused[request.node] = time.monotonic() + pause, pause
            self._rejected["registration"] += 1
            self.not_let_in[request.node] = str(error)[:300]
            self._log(f"Node {request.node} is not let in: {error}")
            return None
        self._take_back_(request.node, name)
        self.declined.pop(request.node, None)
        self.not_let_in.pop(request.node, None)
        count = len(self._registry.nodes[name].clients)
        self._log(f"Node {name!r} is here with {count} clients.")
        return name

    def _take_back_(self, node: int, name: str) -> None:
        """Takes out the node and the clients that a node was before it took another name.

        It could else leave as many clients behind as it likes, of which none ever answers.
        """
        before, self._names[node] = self._names.get(node, name), name
        nodes = self._registry.nodes
        if before != name and before in nodes and nodes[before].address in (0, node):
            self._registry.remove(before)
