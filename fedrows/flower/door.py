"""Who comes in: nodes that are new are greeted, and let in if they fit."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fedrows.flower.registry import Registry
from fedrows.flower.wire import Letter, WireError, pack, unpack

SECONDS = 60.0  # that a new node has to say who it is


class Post(Protocol):
    """Who carries letters: Flower's Grid, see `apps`."""

    def nodes(self) -> list[int]:
        """The nodes that are there, by Flower's ids."""

    def send(self, letters: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        """Sends a letter to each node; gives the node that each message went to."""

    def receive(self, messages: Iterable[str]) -> dict[str, bytes | str]:
        """The answers to some messages that have come: bytes, or why there will be none."""


@dataclass(frozen=True)
class _Hello:
    """A greeting that is not answered yet."""

    node: int
    version: int  # of what the node will tell
    until: float  # when it is given up


class Door:
    """Says hello to nodes that nobody knows, and registers those that fit."""

    def __init__(
        self,
        post: Post,
        registry: Registry,
        fingerprint: str,
        rejected: Counter[str],
        tell: Callable[[str], None],
    ) -> None:
        self._post, self._registry, self._fingerprint = post, registry, fingerprint
        self._rejected, self._tell = rejected, tell
        self._hellos: dict[str, _Hello] = {}  # by message
        self._unwanted: set[int] = set()  # nodes that do not fit

    def greet(self, run: str) -> list[str]:
        """Greets whoever is new, and reads what has been answered; the nodes that came in."""
        here = self._post.nodes()
        waiting = {hello.node for hello in self._hellos.values()}
        known = {node.address for node in self._registry.nodes.values()}
        new = [x for x in here if x not in known | waiting | self._unwanted]
        if new:
            version = secrets.randbits(30) + 1
            facts = {"job": self._fingerprint, "run": run, "version": version}
            letters = dict.fromkeys(new, pack(Letter("hello", facts, {})))
            until = time.monotonic() + SECONDS
            for message, node in self._post.send(letters, SECONDS, 0).items():
                self._hellos[message] = _Hello(node, version, until)
        if not self._hellos:
            return []
        found = []
        for message, answer in self._post.receive(self._hellos).items():
            name = self._welcome(self._hellos.pop(message), answer)
            found += [name] if name is not None else []
        now = time.monotonic()
        self._hellos = {m: hello for m, hello in self._hellos.items() if hello.until > now}
        return found

    def _welcome(self, hello: _Hello, answer: bytes | str) -> str | None:
        """The name of a node that is let in."""
        if isinstance(answer, str):
            self._tell(f"Node {hello.node} did not say who it is: {answer}")
            return None
        try:
            letter = unpack(answer)
            if letter.kind == "refused":
                raise WireError(str(letter.facts.get("why", "it does not fit"))[:500])
            if letter.kind != "here":
                raise WireError("It answers hello with something else.")
            name = self._registry.register(hello.node, hello.version, letter)
        except WireError as error:
            self._unwanted.add(hello.node)
            self._rejected["registration"] += 1
            self._tell(f"Node {hello.node} is not let in: {error}")
            return None
        count = len(self._registry.nodes[name].clients)
        self._tell(f"Node {name!r} is here with {count} clients.")
        return name
