"""A server that begins sums with the nodes by hand, so that a sum is one client's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import fresh

from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.model_digests import DIGESTS, model_digests, model_name
from fedrows.flower.wire.names import SumNames, tag_of
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.flower.wire.sums import row_space, union_terms, update_terms, weighted_mean
from fedrows.privacy import openings, union
from fedrows.privacy.protocol import ProtocolError, ServerHalf
from fedrows.privacy.ring import Coding
from fedrows.rows.params import Submodels, index_select

INDEX: dict[str, Any] = CONFIG | {"privacy": "index", "timeout": 5.0}
ONE = {1: [1], 2: [0], 3: [0], 4: [0]}  # node → which of its clients are asked
ALONE = {1: [1], 2: [], 3: [], 4: []}
CODING = Coding(1e4, 4, 1.0, 1e-6, 1.0)


class ByHand:
    """A server of four nodes that fills in the messages itself.

    configs: of the run as each node has it; all alike if not given.
    """

    def __init__(self, folder: Path, configs: Mapping[int, dict[str, Any]] | None = None) -> None:
        self.data, self.names, self.answers = examples(), SumNames(), dict[int, Message]()
        task, shards = task_of(self.data), shards_of(self.data, 4)
        self.contract = make_contract(task, INDEX)
        self.model = self.contract.model(self.data)
        self.space = row_space(self.model.schema, tuple(self.model.schema.tables))
        self.keys = {i: own_key(folder / name).public for i, name in enumerate(shards, start=1)}
        self.parties = {str(i): name for i, name in enumerate(shards, start=1)}
        write_peers(folder / "peers.json", dict(zip(shards, self.keys.values(), strict=True)))
        self.nodes, self.contracts = {}, {}
        for i, (name, shard) in enumerate(shards.items(), start=1):
            config = (configs or {}).get(i, INDEX)
            self.nodes[i] = fresh(task, config, shard, folder / name, name)
            own = make_contract(task, config).fingerprint(self.model, self.data)
            request = Message("enrol", {"run": "0" * 16, "contract": own, "version": 1}, {})
            assert unpack(self.nodes[i](pack(request))).kind == "enrolled"
            self.contracts[i] = digest(own)

    def union(self, places: Mapping[int, list[int]], wrap: bool = False) -> np.ndarray | None:
        """The rows of a union; None if it fails. `asked` and `union_of` are kept for the update."""
        facts = self._facts("union", round=1)
        plan, terms = union_terms(self.contract, facts, self.space)
        found = self._go(union.server(terms, plan, self.keys), facts, places, {}, wrap)
        if found is None:
            return None
        self.union_of, self.rows, count = facts["sum"], found.ids, len(found.ids)
        answers = self.answers.items()
        asked = {i: one.parts["asked"][:-64] for i, one in answers if "asked" in one.parts}
        self.asked = {
            i: found.ids[ids_from_bytes(part, count, count).numpy()] for i, part in asked.items()
        }
        return np.asarray(found.ids)

    def update(self, places: Mapping[int, list[int]], coding: Coding = CODING) -> Any:
        """What a sum of updates opens; None if it fails."""
        mean = weighted_mean(self.contract, self.model.schema, self.space.tables, {})
        layout = mean.layout(self.space.by_table(self.rows))
        whole = self._submodel(self.rows)
        digests = model_digests(self.union_of, whole, {}, self.space, self.rows)
        more = {"union": self.union_of, "tag": tag_of(1), "model": model_name(digests)}
        facts = self._facts("update", **more, round=1, coding=asdict(coding))
        plan, terms = update_terms(self.contract, facts, layout)
        parts = {}
        for i, rows in self.asked.items():
            sent = self._submodel(rows)
            parts[i] = encode_submodels("model", sent, self.contract.plan.dtype)
            parts[i][DIGESTS] = digests
        found = self._go(openings.server(plan, terms, self.keys), facts, places, parts)
        if found is None:
            return None
        return layout.opened(found.rows.reshape(-1), found.opened, found.extra, coding)

    def _submodel(self, rows: np.ndarray) -> Submodels:
        """The model's start at some rows."""
        start, index = self.model.start(), self.space.index([rows])
        tables = {t: index_select(start.tables[t], its.ids) for t, its in index.items()}
        dense = {name: x[None] for name, x in start.dense.items()}
        return Submodels(index, tables, dense).map(lambda x: x.double())

    def _facts(self, use: str, **more: Any) -> dict[str, Any]:
        own = {"run": "0" * 16, "contract": self.contracts[1], "version": 1, "use": use}
        return {**own, "sum": self.names.make(), "parties": self.parties, **more}

    def _go(
        self,
        half: ServerHalf[Any],
        facts: dict[str, Any],
        places: Mapping[int, list[int]],
        parts: Mapping[int, dict[str, bytes]],
        wrap: bool = False,
    ) -> Any:
        """Carries a protocol to its end.

        wrap: each message travels in one of several sums, under the contract that its node has.
        """
        requests, phase = next(half), 0
        while True:
            replies = {}
            for i, request in requests.items():
                own = {"phase": phase, "party": i, "places": places[i], "numbers": places[i]}
                sent = {"request": request} | (parts.get(i, {}) if phase == 0 else {})
                message = Message("sum", facts | own | {"accepted": [0] * len(places[i])}, sent)
                if wrap:
                    outer = {"run": "0" * 16, "contract": self.contracts[i]}
                    message = Message("sums", outer, {"0": pack(message)})
                answer = unpack(self.nodes[i](pack(message)))
                if answer.kind == "sums":
                    answer = unpack(answer.parts["0"])
                self.answers[i] = answer
                if "reply" in answer.parts:
                    replies[i] = answer.parts["reply"]
            try:
                requests, phase = half.send(replies), phase + 1
            except StopIteration as stop:
                return stop.value
            except ProtocolError:
                return None


def test_a_union_of_one_client_and_of_nobody_else_is_refused(tmp_path: Path) -> None:
    """Nodes of which no client is asked would put in zeros, and the union be one index set."""
    server = ByHand(tmp_path)
    assert server.union(ALONE) is None
    assert {server.answers[i].kind for i in (2, 3, 4)} == {"silent"}
    assert server.union(ONE) is not None


@pytest.mark.parametrize("places", [ALONE, ONE | {2: [1]}, ONE | {3: [0, 1]}])
def test_an_update_is_of_the_clients_of_its_union(
    tmp_path: Path, places: dict[int, list[int]]
) -> None:
    server = ByHand(tmp_path)
    server.union(ONE)
    changed = {i for i, its in places.items() if its != ONE[i]}
    server.update(places)
    assert not any(server.answers[i].parts for i in changed)
    assert {server.answers[i].kind for i in changed} == {"silent"}


def test_an_update_of_the_clients_of_its_union_is_answered(tmp_path: Path) -> None:
    server = ByHand(tmp_path)
    server.union(ONE)
    assert server.update(ONE).extra[0] > 0


def test_nodes_under_two_contracts_have_no_sum(tmp_path: Path) -> None:
    """With a learning rate of 0 elsewhere, a sum would be one node's update."""
    slow = INDEX | {"lr": 1e-9}
    server = ByHand(tmp_path, dict.fromkeys((2, 3, 4), slow))
    assert server.contracts[1] != server.contracts[2]
    assert server.union(ONE, wrap=True) is None
    assert {server.answers[i].kind for i in (2, 3, 4)} == {"silent"}


def test_a_range_of_the_servers_choice_tells_nothing_of_an_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by the text of an error, nor by who falls silent: an honest range fits any update."""
    server = ByHand(tmp_path)
    server.union(ONE)
    assert server.update(ONE, Coding(1e-9, 4, 1.0, 1e-9, 1.0)) is None
    whys = {(answer.kind, answer.facts["why"]) for answer in server.answers.values()}
    assert whys == {("silent", "the node could not answer")}
    assert "below what was agreed" in caplog.text
    assert "A value" not in caplog.text  # it was refused before a number was there


@pytest.mark.parametrize("below", [False, True])
def test_a_node_asks_for_the_range_that_an_honest_server_sends(tmp_path: Path, below: bool) -> None:
    server = ByHand(tmp_path)
    server.union(ONE)
    data, weighting = server.data, server.contract.plan.weighting
    weights = data.weights(weighting).numpy()[[4, 1, 2, 3]]  # of the clients that are asked
    mean = weighted_mean(server.contract, server.model.schema, server.space.tables, {})
    honest = mean.coding(weights, 4, 3, 1.0)
    server.update(ONE, replace(honest, range=honest.range * (1 - 1e-12)) if below else honest)
    silent = [i for i, answer in server.answers.items() if answer.kind == "silent"]
    assert silent == [i for i, own in enumerate(weights, 1) if below and own == weights.max()]


@pytest.mark.parametrize("lr", [1e6, 1e300])
def test_no_number_of_an_update_makes_a_node_drop_out(tmp_path: Path, lr: float) -> None:
    server = ByHand(tmp_path, dict.fromkeys((1, 2, 3, 4), INDEX | {"lr": lr}))
    server.union(ONE)
    opened = server.update(ONE, Coding(1e4, 4, 1.0, 1e-6, 1.0))
    assert opened is not None
    assert {answer.kind for answer in server.answers.values()} == {"sum"}
