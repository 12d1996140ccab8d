"""Protocols over the network: the server half runs here, a client half on every node.

Each request and each reply is a message, and a node that does not answer in time is a drop-out,
which the protocol bears or refuses by itself.

    sum → sum     one phase: a request to the node's half, and its reply
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.privacy.protocol import ServerHalf

R = TypeVar("R")
_TEN_YEARS = 10 * 365 * 86_400 * 10**9  # ns


class SumNames:
    """Names of sums: a number that rises, by the clock if it can, and random digits behind it.

    So a node need remember the newest name alone in order to begin no sum twice.
    """

    def __init__(self) -> None:
        self._newest = 0

    def make(self) -> str:
        """A name above all before it."""
        self._newest = max(self._newest + 1, time.time_ns())
        return f"{self._newest:016x}{secrets.token_hex(8)}"

    def learn_(self, newest: object) -> None:
        """Takes note of a newer name that a node knows, as after a clock was set back.

        A node that lies cannot use the numbers up.
        """
        if not isinstance(newest, str) or not 0 < len(newest) <= 16:
            return
        try:
            number = int(newest, 16)
        except ValueError:
            return
        if number < time.time_ns() + _TEN_YEARS:
            self._newest = max(self._newest, number)


@dataclass
class SumExchange:
    """One run of a protocol with some nodes."""

    parties: dict[int, str]  # number in the protocol → node
    facts: dict[str, Any]  # what both sides must know to take part
    first: Mapping[str, Message] = field(default_factory=dict)  # what goes with the first phase
    last: dict[str, Message] = field(default_factory=dict)  # what nodes said at the end
    bytes_down: int = 0
    bytes_up: int = 0
    phases: int = 0
    silent: dict[str, str] = field(default_factory=dict)  # node → why it was not heard
    lost: set[str] = field(default_factory=set)  # nodes without the state that was counted on
    newest: list[object] = field(default_factory=list)  # names that nodes say they have begun

    @property
    def messages(self) -> int:
        """How many were sent, at most."""
        return self.phases * len(self.parties)


Send = Callable[[Mapping[str, bytes]], Mapping[str, "bytes | str"]]


def carry(sum_: SumExchange, half: ServerHalf[R], send: Send) -> R:
    """Runs a protocol to its end; raises what the server half raises."""
    requests = next(half)
    while True:
        messages = {}
        for number, request in requests.items():
            node = sum_.parties[number]
            facts = {name: sum_.facts[name] for name in ("sum", "run", "contract")}
            facts |= {"phase": sum_.phases, "party": number}
            parts = {"request": request}
            if sum_.phases == 0:
                facts |= sum_.facts
                if node in sum_.first:
                    facts |= sum_.first[node].facts
                    parts |= sum_.first[node].parts
            messages[node] = pack(Message("sum", facts, parts))
        sum_.bytes_down += sum(map(len, messages.values()))
        replies = _replies(sum_, send(messages))
        sum_.phases += 1
        try:
            requests = half.send(replies)
        except StopIteration as stop:
            result: R = stop.value
            return result


def _replies(sum_: SumExchange, answers: Mapping[str, bytes | str]) -> dict[int, bytes]:
    """What the nodes' halves have replied; whoever has nothing to say is missing."""
    replies = {}
    for number, node in sum_.parties.items():
        answer = answers.get(node)
        if answer is None:
            continue
        if isinstance(answer, str):
            sum_.silent.setdefault(node, answer)
            continue
        sum_.bytes_up += len(answer)
        try:
            message = unpack(answer)
        except WireError as error:
            sum_.silent[node] = str(error)
            continue
        if message.kind != "sum" or message.facts.get("sum") != sum_.facts["sum"]:
            sum_.silent[node] = str(message.facts.get("why", "it answers something else"))[:300]
            sum_.newest.append(message.facts.get("newest"))
            sum_.lost |= {node} if message.kind == "state-lost" else set()
            continue
        if "reply" in message.parts:
            replies[number] = message.parts["reply"]
        else:
            sum_.last[node] = message
    return replies
