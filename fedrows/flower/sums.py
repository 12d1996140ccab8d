"""Protocols over the network: the server half runs here, a client half on every node.

A node is one party: whoever runs it sees its clients' data anyway, so it adds up their part before
anything leaves. Each request and each reply is a letter, and a node that does not answer in time
is a drop-out, which the protocol bears or refuses by itself.

    sum → sum     one phase: a request to the node's half, and its reply
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.privacy.protocol import ServerHalf

R = TypeVar("R")


@dataclass
class Sum:
    """One run of a protocol with some nodes."""

    use: str  # heat, union or update
    parties: dict[int, str]  # number in the protocol → node
    facts: dict[str, Any]  # what both sides must know to take part
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    openings: Mapping[str, Message] = field(default_factory=dict)  # what comes with the first phase
    endings: dict[str, Message] = field(default_factory=dict)  # what nodes said at the end
    bytes_down: int = 0
    bytes_up: int = 0
    phases: int = 0
    silent: dict[str, str] = field(default_factory=dict)  # node → why it was not heard


Exchange = Callable[[Mapping[str, bytes]], Mapping[str, "bytes | str"]]


def carry(sum_: Sum, half: ServerHalf[R], exchange: Exchange) -> R:
    """Runs a protocol to its end; raises what the server half raises."""
    requests = next(half)
    while True:
        letters = {}
        for number, request in requests.items():
            node = sum_.parties[number]
            facts = {"sum": sum_.name, "phase": sum_.phases, "party": number}
            facts |= {name: sum_.facts[name] for name in ("run", "contract")}
            parts = {"request": request}
            if sum_.phases == 0:
                facts |= {"use": sum_.use, **sum_.facts}
                if node in sum_.openings:
                    facts |= sum_.openings[node].facts
                    parts |= sum_.openings[node].parts
            letters[node] = pack(Message("sum", facts, parts))
        sum_.bytes_down += sum(map(len, letters.values()))
        replies = _replies(sum_, exchange(letters))
        sum_.phases += 1
        try:
            requests = half.send(replies)
        except StopIteration as stop:
            result: R = stop.value
            return result


def _replies(sum_: Sum, answers: Mapping[str, bytes | str]) -> dict[int, bytes]:
    """What the nodes' halves have replied; whoever has nothing to say is missing."""
    found = {}
    for number, node in sum_.parties.items():
        answer = answers.get(node)
        if answer is None:
            continue
        if isinstance(answer, str):
            sum_.silent.setdefault(node, answer)
            continue
        sum_.bytes_up += len(answer)
        try:
            letter = unpack(answer)
        except WireError as error:
            sum_.silent[node] = str(error)
            continue
        if letter.kind != "sum" or letter.facts.get("sum") != sum_.name:
            sum_.silent[node] = str(letter.facts.get("why", "it answers something else"))[:300]
            continue
        if "reply" in letter.parts:
            found[number] = letter.parts["reply"]
        else:
            sum_.endings[node] = letter
    return found
