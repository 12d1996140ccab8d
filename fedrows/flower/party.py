"""A node's part in a protocol: its half of a sum, which outlives the process that began it.

    heat      Σ of the weights of its clients that hold each row
    union     the rows that any of its clients that are asked holds; then which rows it asks for
    update    what its clients made of the rows they have, added up, and which rows they hold

What goes into a half is worked out once, with the first letter, and kept with the half's seed until
the sum is over. A sum is begun once: a second first letter of the same name is refused, for two
sums of one vector under one name would show it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.errors import FedrowsError
from fedrows.flower.wire.message import Message, WireError
from fedrows.privacy import openings, secure_sum, union
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.replay import Done, SavedHalf
from fedrows.privacy.terms import SumTerms


@dataclass(frozen=True)
class Inputs:
    """What a node puts into a sum."""

    words: np.ndarray  # heat: the vector; union: ids; update: the coded rows (rows, width)
    holds: np.ndarray | None = None  # update: which rows of the union its clients really hold
    extra: np.ndarray | None = None  # update: what is opened in any case


class Party:
    """The halves of one node, below its state folder."""

    def __init__(self, folder: Path, key: NodeKey, peers: Mapping[str, bytes], least: int) -> None:
        self._folder, self._key, self._peers, self._least = folder, key, peers, least

    def answer(
        self,
        letter: Message,
        inputs: Callable[[Message], Inputs],
        ended: Callable[[Message, Any], tuple[dict[str, Any], dict[str, bytes]]],
    ) -> Message:
        """The node's reply to one phase; `ended` says what goes with the last one."""
        name, phase = letter.facts.get("sum"), letter.facts.get("phase")
        if not isinstance(name, str) or not re.fullmatch("[0-9a-f]{32}", name):
            raise WireError("The letter does not name a sum.")
        place = self._folder / name
        kept = SavedHalf(place / "half")
        if phase == 0:
            kept.begin()
            self._store(place, letter, inputs(letter))
        facts = self._facts(place)
        request = letter.parts.get("request", b"")
        found = kept.advance(lambda: self._half(place, facts), request)
        if not isinstance(found, Done):
            return Message("sum", {"sum": name}, {"reply": found})
        first = Message("sum", facts, {})
        said, parts = ended(first, found.result)
        kept.end()
        for file in place.glob("*.npy"):
            file.unlink(missing_ok=True)
        return Message("sum", {"sum": name, **said}, parts)

    def _store(self, place: Path, letter: Message, found: Inputs) -> None:
        known = {name: value for name, value in letter.facts.items() if name != "phase"}
        (place / "facts.json").write_text(json.dumps(known), "utf-8")
        for name in ("words", "holds", "extra"):
            value = getattr(found, name)
            if value is not None:
                np.save(place / f"{name}.npy", value, allow_pickle=False)

    def _facts(self, place: Path) -> dict[str, Any]:
        try:
            return dict(json.loads((place / "facts.json").read_text("utf-8")))
        except (OSError, ValueError):
            raise ProtocolError(f"What sum {place.name} was about is lost: it drops out.") from None

    def _half(self, place: Path, facts: Mapping[str, Any]) -> ClientHalf[Any]:
        inputs = Inputs(**{file.stem: np.load(file) for file in place.glob("*.npy")})
        parties = {int(number): str(node) for number, node in facts["parties"].items()}
        missing = [node for node in parties.values() if node not in self._peers]
        if missing:
            raise ProtocolError(
                f"Node {missing[0]!r} is not among the peers that this node knows: it takes no "
                "part in a sum with it."
            )
        registry = {number: self._peers[node] for number, node in parties.items()}
        me = int(facts["party"])
        if facts["threshold"] < self._least:
            raise ProtocolError(
                f"The sum asks for {facts['threshold']} nodes at least, fewer than the "
                f"{self._least} that this node insists on."
            )
        about = terms_of(facts)
        if facts["use"] == "union":
            plan = union_of(facts)
            return union.client(about, plan, me, self._key, registry, inputs.words)
        if facts["use"] == "update":
            opening = openings_of(facts)
            assert inputs.holds is not None
            return openings.client(
                opening, about, me, self._key, registry, inputs.words, inputs.holds, inputs.extra
            )
        return secure_sum.client(about, me, self._key, registry, inputs.words)


def terms_of(facts: Mapping[str, Any]) -> SumTerms:
    """The terms of a sum, from what its first letter says; the same on both sides."""
    cohort, name, colluding = _cohort(facts), _name(facts), int(facts["colluding"])
    if facts["use"] == "union":
        its = union.terms(union_of(facts), name, cohort, int(facts["threshold"]))
        return SumTerms(its.name, cohort, its.threshold, its.length, its.word, colluding=colluding)
    if facts["use"] == "update":
        plan = openings_of(facts)
        return plan.terms(int(facts["threshold"]), colluding=colluding)
    return SumTerms(
        name, cohort, int(facts["threshold"]), int(facts["length"]), "uint64", colluding=colluding
    )


def union_of(facts: Mapping[str, Any]) -> union.UnionPlan:
    """How the rows of a union are written."""
    if facts["bloom"]:
        return union.Bloom.for_sets(
            int(facts["rows"]),
            len(facts["parties"]),
            int(facts["most"]),
            float(facts["bloom"]),
            salt=str(facts["sum"]),
        )
    return union.Direct(int(facts["rows"]))


def openings_of(facts: Mapping[str, Any]) -> Openings:
    """Which rows are added up, and how many nodes must hold one."""
    return Openings(
        _name(facts),
        _cohort(facts),
        int(facts["rows"]),
        int(facts["width"]),
        int(facts["minimum"]),
        int(facts["extra"]),
        int(facts["openers"]),
        str(facts["word"]),
    )


def _cohort(facts: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(sorted(int(number) for number in facts["parties"]))


def _name(facts: Mapping[str, Any]) -> str:
    """What a sum is called: it names every party, so that all agree on who is who."""
    names = ",".join(f"{n}={facts['parties'][str(n)]}" for n in _cohort(facts))
    return f"{facts['run']}/{facts['sum']}/{facts['use']} of {names}"


def refuse(error: FedrowsError) -> Message:
    """What a node says when it takes no part."""
    return Message("silent", {"why": str(error)[:300]}, {})
