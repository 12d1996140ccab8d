"""A server that lies about who takes part, or hands messages on to where they do not belong."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, run, shards_of, task_of
from loopback import federation, fresh

from fedrows.algorithm import Round
from fedrows.errors import FedrowsError
from fedrows.flower.node import private_node
from fedrows.flower.node.parties import party_keys
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import own_key, read_peers, write_peers
from fedrows.flower.wire.sums import (
    heat_terms,
    row_space,
    union_terms,
    update_parties,
    update_terms,
    weighted_mean,
)
from fedrows.privacy import messages, secure_sum, session
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.protocol import MessageError, ProtocolError
from fedrows.privacy.terms import SumTerms

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 5.0,
}  # fmt: skip
RUN = "0" * 16


class OneColluder:
    """A server and one node in league, which plays every party of a sum but the victim."""

    def __init__(self, folder: Path, others: int = 3) -> None:
        self.data, self.task = examples(clients=3), task_of(examples(clients=3))
        self.contract = make_contract(self.task, PRIVATE)
        self.model = self.contract.model(self.data)
        self.key, names = own_key(folder / "colluder"), ["victim", "colluder", "c", "d"]
        self.peers = {name: own_key(folder / name).public for name in names}
        write_peers(folder / "peers.json", self.peers)
        self.parties = {1: "victim"} | dict.fromkeys(range(2, 2 + others), "colluder")
        self.victim = fresh(self.task, PRIVATE, self.data, folder / "victim", "victim")
        fingerprint = self.contract.fingerprint(self.model, self.data)
        self.facts = {"run": RUN, "contract": fingerprint, "version": 1}
        assert unpack(self.victim(pack(Message("enrol", self.facts, {})))).kind == "enrolled"
        self.facts["contract"] = digest(fingerprint)

    def heat(self) -> tuple[np.ndarray | None, Message]:
        """The victim's own part in a sum of heat, if it takes part, and its last answer."""
        listed = {str(number): node for number, node in self.parties.items()}
        facts = {**self.facts, "sum": SumNames().make(), "use": "heat", "parties": listed}
        space = row_space(self.model.schema, tuple(self.model.schema.tables))
        terms = heat_terms(self.contract, facts, space)
        keys = {number: self.peers[node] for number, node in self.parties.items()}
        nothing = np.zeros(terms.length, dtype=terms.dtype)
        halves = {
            n: secure_sum.client(terms, n, self.key, keys, nothing) for n in self.parties if n != 1
        }
        server = secure_sum.server(terms, keys)
        requests, phase = next(server), 0
        while True:
            message = Message(
                "sum", {**facts, "phase": phase, "party": 1}, {"request": requests[1]}
            )
            answer = unpack(self.victim(pack(message)))
            if "reply" not in answer.parts:
                return None, answer
            replies = {1: answer.parts["reply"]}
            for n, half in halves.items():
                replies[n] = half.send(requests[n]) if phase else next(half)
            try:
                requests, phase = server.send(replies), phase + 1
            except StopIteration as stop:
                return stop.value.values, answer


def rows_read(values: np.ndarray | None, colluder: OneColluder) -> int:
    """How many of the victim's rows the colluder knows; -1 if it has one wrong."""
    if values is None:
        return 0
    true = np.unique(colluder.data.index["item"].ids.numpy())
    found = np.flatnonzero(values)
    return len(found) if np.array_equal(true, found) else -1


def test_one_colluder_cannot_play_all_the_others(tmp_path: Path) -> None:
    colluder = OneColluder(tmp_path)
    values, answer = colluder.heat()
    assert rows_read(values, colluder) == 0
    assert answer.kind != "sum"
    assert not answer.parts


def no_check(facts: Any, name: str, key: bytes, peers: Any) -> dict[int, bytes]:
    """The parties as the server lists them."""
    return {int(number): peers[node] for number, node in facts["parties"].items()}


def test_the_protocol_itself_refuses_two_parties_with_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node whose own check was left out would not be read either."""

    monkeypatch.setattr(private_node, "party_keys", no_check)
    colluder = OneColluder(tmp_path)
    values, _ = colluder.heat()
    assert rows_read(values, colluder) == 0
    assert "same node key" in caplog.text


def test_without_both_checks_one_colluder_reads_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose, so that the tests above can fail."""
    monkeypatch.setattr(private_node, "party_keys", no_check)
    monkeypatch.setattr(session, "check_different", lambda *_: None)
    colluder = OneColluder(tmp_path)
    values, _ = colluder.heat()
    assert rows_read(values, colluder) == 8


KEYS = {name: NodeKey().public for name in ("a", "b", "c")}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"parties": {"1": "a", "2": "b", "3": "b"}}, "more than once"),
        ({"parties": {"1": "a", "2": "a", "3": "b"}}, "more than once"),
        ({"parties": {"1": "a", "2": "b", "3": "z"}}, "not among the peers"),
        ({"parties": {"1": "a", "2": "b", "3": "same"}}, "one key"),
        ({"parties": {"1": "a", "01": "b", "3": "c"}}, "number the parties"),
        ({"parties": {"1": "a", "x": "b", "3": "c"}}, "number the parties"),
        ({"parties": {"1": "a", "²": "b", "3": "c"}}, "number the parties"),
        ({"parties": {"1": "a", "-2": "b", "3": "c"}}, "number the parties"),
        ({"parties": {"2": "b", "3": "c"}}, "under the number and the key"),
        ({"parties": {"1": "b", "2": "a", "3": "c"}}, "under the number and the key"),
        ({"party": 2}, "under the number and the key"),
        ({"party": "1"}, "under the number and the key"),
        ({"party": True}, "under the number and the key"),
        ({"party": None}, "under the number and the key"),
        ({"parties": ["a", "b"]}, "who takes part"),
        ({"parties": {"1": "a", "2": 7}}, "who takes part"),
        ({"parties": None}, "who takes part"),
    ],
)
def test_a_list_of_parties_that_cannot_be(facts: dict[str, Any], words: str) -> None:
    right = {"parties": {"1": "a", "2": "b", "3": "c"}, "party": 1}
    peers = KEYS | {"same": KEYS["b"]}
    assert party_keys(right, "a", KEYS["a"], peers) == {1: KEYS["a"], 2: KEYS["b"], 3: KEYS["c"]}
    with pytest.raises(ProtocolError, match=words):
        party_keys(right | facts, "a", KEYS["a"], peers)


def test_a_node_is_no_party_under_another_key(tmp_path: Path) -> None:
    facts = {"parties": {"1": "a", "2": "b", "3": "c"}, "party": 1}
    with pytest.raises(ProtocolError, match="under the number and the key"):
        party_keys(facts, "a", NodeKey().public, KEYS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (lambda a, b: f'{{"n": "{a}", "n": "{b}"}}', "'n' twice"),
        (lambda a, b: f'{{"n": "{a}", "m": "{a}"}}', "one key for 'n' and for 'm'"),
        (lambda a, b: f'["{a}", "{b}"]', "no list of node keys"),
        (lambda a, b: f'{{"n": "{a[2:]}"}}', "no list of node keys"),
    ],
)
def test_a_list_of_peers_names_each_node_and_each_key_once(
    tmp_path: Path, text: Callable[[str, str], str], words: str
) -> None:
    path = tmp_path / "peers.json"
    path.write_text(text(KEYS["a"].hex(), KEYS["b"].hex()))
    with pytest.raises(FedrowsError, match=words):
        read_peers(path)
    path.write_text(json.dumps({"n": KEYS["a"].hex(), "m": KEYS["b"].hex()}))
    assert read_peers(path) == {"n": KEYS["a"], "m": KEYS["b"]}


FACTS: dict[str, Any] = {
    "run": RUN, "sum": "1" * 32, "use": "update", "contract": "2" * 16, "union": "3" * 32,
    "tag": 7, "round": 4, "model": "4" * 64, "parties": {"1": "a", "2": "b", "3": "c", "4": "d"},
    "coding": {"range": 4.0, "clients": 4, "correction": 1.0, "precision": 1e-6, "divisor": 1.0},
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "run": "f" * 16, "sum": "f" * 32, "use": "union", "contract": "f" * 16, "union": "f" * 32,
    "tag": 8, "round": 5, "model": "f" * 64, "parties": FACTS["parties"] | {"4": "e"},
    "coding": FACTS["coding"] | {"correction": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_message_counts_in_one_run_round_use_and_cohort_alone(name: str) -> None:
    """Every fact of a sum that its parties share is in the context that all messages are bound to.

    So a message of one run, round, use or cohort is no message of another, and a server cannot tell
    two parties two things.
    """
    data = examples()
    contract = make_contract(task_of(data), PRIVATE)
    schema = contract.model(data).schema
    space, node = row_space(schema, ("item",)), NodeKey()
    layout = weighted_mean(contract, schema, ("item",), {}).layout({"item": np.arange(5)})
    other = replace(layout, union={"item": np.arange(1, 6)})
    terms: list[Callable[[dict[str, Any]], SumTerms]] = [
        lambda facts: heat_terms(contract, facts, space),
        lambda facts: union_terms(contract, facts, space)[1],
        lambda facts: update_terms(contract, facts, layout)[1],
    ]
    makers = [lambda facts, of=of: of(facts).context for of in terms]
    if name in ("run", "sum", "use", "contract", "round", "parties"):  # known when keys are made
        makers += [lambda facts, of=of: of(facts).parties for of in terms]
    assert update_parties(contract, FACTS).parties == terms[2](FACTS).parties
    contexts = {make(facts) for make in makers for facts in (FACTS, FACTS | {name: OTHERS[name]})}
    assert len(contexts) == 2 * len(makers)
    assert update_terms(contract, FACTS, other)[1].context not in contexts
    for make in makers:
        here, there = make(FACTS), make(FACTS | {name: OTHERS[name]})
        message = messages.sign(node, here, "keys", 1, b"body")
        assert messages.check({1: node.public}, here, "keys", 1, message) == b"body"
        for context, phase, sender in ((there, "keys", 1), (here, "shares", 1), (here, "keys", 2)):
            with pytest.raises(MessageError, match="signature"):
                messages.check(dict.fromkeys((1, 2), node.public), context, phase, sender, message)


def test_which_rows_a_node_asks_for_is_signed_by_it(tmp_path: Path) -> None:
    """Rows that somebody else asks for in a node's name are not sent, nor is it trained on them."""
    data = examples(clients=4)
    config = PRIVATE | {"clients-per-round": 4}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    heard: list[Message] = []

    def forge(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if "asked" in message.parts:
            heard.append(message)
            if node == 1:
                message.parts["asked"] = message.parts["asked"][:-64]  # as it was, unsigned
            if node == 2:
                message.parts["asked"] = heard[0].parts["asked"]  # another node's
            return pack(message)
        return answer

    loopback.meddle = forge
    fleet.gather()
    opened = fleet.open_round(Round(1, 0.1, 4, 0.0, torch.arange(4)))
    assert len(heard) == 4
    assert sorted(opened.asked) == ["n2", "n3"]


def test_every_reply_of_a_node_is_signed_by_it(tmp_path: Path) -> None:
    """In sums of heat, of a union and of updates: no reply counts that the node has not signed."""
    data = examples(clients=4)
    config = PRIVATE | {"clients-per-round": 4, "rounds": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    pairs: list[tuple[Message, Message]] = []

    def heard(node: int, answer: bytes) -> bytes:
        request, reply = unpack(loopback.sent[-1][1]), unpack(answer)
        if request.kind == "sums":  # phases of several sums in one message
            both = [(request.parts[name], part) for name, part in reply.parts.items()]
            pairs.extend((unpack(one), unpack(other)) for one, other in both)
        else:
            pairs.append((request, reply))
        return answer

    loopback.meddle = heard
    run(fleet, data)
    first = {m.facts["sum"]: m.facts for m, _ in pairs if m.facts.get("phase") == 0}
    told = {  # the union, as the last message of its sum tells it
        request.facts["sum"]: np.frombuffer(request.parts["request"], dtype="<u4").astype(np.int64)
        for request, answer in pairs
        if "asked" in answer.parts
    }
    its, space, checked = fleet.contract, fleet.space, Counter[str]()
    for request, answer in pairs:
        if answer.kind != "sum" or not answer.parts:
            continue
        facts = first[request.facts["sum"]]
        if facts["use"] == "heat":
            terms = heat_terms(its, facts, space)
        elif facts["use"] == "union":
            terms = union_terms(its, facts, space)[1]
        else:
            layout = fleet.mean.layout(space.by_table(told[facts["union"]]))
            terms = update_terms(its, facts, layout)[1]
        number = request.facts["party"]
        keys = {number: fleet._peers[facts["parties"][str(number)]]}
        for part in answer.parts.values():
            for phase in _signed_phases(keys, terms, number, part):
                checked[f"{facts['use']} {phase}"] += 1
    assert checked.keys() >= {f"{use} {p}" for use in ("heat", "union", "update") for p in PHASES}
    assert checked.keys() >= {"union asked", "update rows"}


PHASES = ("keys", "shares", "masked", "agreed", "opened")


def _signed_phases(keys: dict[int, bytes], terms: SumTerms, number: int, part: bytes) -> list[str]:
    """The phases that a part of a node's answer is signed for; some have two signed parts."""
    for phase in (*PHASES, "asked"):
        with suppress(MessageError):
            context = terms.parties if phase in ("keys", "shares") else terms.context
            messages.check(keys, context, phase, number, part)
            return [phase]
    with suppress(MessageError):  # the list of all is signed with the vector
        messages.check(keys, terms.context, "agreed", number, part[:96])
        messages.check(keys, terms.context, "masked", number, part[96:])
        return ["agreed", "masked"]
    for phase, inner in zip(("rows", "pads"), messages.unpack(part, 2), strict=True):
        messages.check(keys, terms.context, phase, number, inner)
    return ["rows"]
