"""A server that sends one node the real model, and all others one on which they learn nothing.

The others' updates are 0 then, and the secure sum is the one node's update (Pasquini et al., 2022).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import federation, phases_in

from fedrows.algorithm import Round
from fedrows.flower.node import private_node
from fedrows.flower.node.node_sums import NodeSums
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.model_digests import DIGESTS, model_digests, model_name
from fedrows.flower.wire.sums import coding_of
from fedrows.privacy import openings
from fedrows.rows.params import Submodels, take
from fedrows.server import begin

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "timeout": 5.0,
    "clients-per-round": 12, "rounds": 1,
}  # fmt: skip
VICTIM = "n0"
Lie = Callable[[Message, bytes], None]  # changes what others get; the digests are of their rows


class Product(nn.Module):
    """A model without gradient where its rows and its layer are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.layer = nn.Embedding(30, 3), nn.Linear(3, 1)

    def forward(self, item: Tensor) -> Tensor:
        return self.layer(self.item(item)).reshape(-1)


def product(*_: Any) -> nn.Module:
    torch.manual_seed(0)
    return Product()


class Attack:
    """One round of real nodes with a server that sends two models."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, lie: Lie, **config: Any) -> None:
        self.data = examples()
        task, shards = task_of(self.data, product), shards_of(self.data, 4)
        fleet, self.post = federation(task, PRIVATE | config, shards, folder)
        assert isinstance(fleet, PrivateFlowerFleet)
        self.fleet, self.lie = fleet, lie
        self.inputs: dict[str, dict[str, np.ndarray]] = {}
        self.results: list[Any] = []
        put, serve, work = NodeSums.put_inputs, openings.late_server, fleet._work

        def watched(sums: NodeSums, name: str, inputs: dict[str, np.ndarray]) -> None:
            if "extra" in inputs:
                self.inputs[sums._folder.parent.parent.name] = dict(inputs)
            put(sums, name, inputs)

        def served(*args: Any) -> Any:
            result = yield from serve(*args)
            self.results.append(result)
            return result

        def two_models(cohort: Tensor, node: str, its: list[int], start: Submodels) -> Message:
            if node == VICTIM:
                return work(cohort, node, its, start)
            dull = start.map(torch.zeros_like)
            message = work(cohort, node, its, dull)
            assert self.opened.united is not None
            name, places = self.opened.united.union.facts["sum"], self.opened.united.places
            self.lie(message, model_digests(name, dull, {}, fleet.space, places))
            return message

        patch.setattr(NodeSums, "put_inputs", watched)
        patch.setattr(openings, "late_server", served)
        patch.setattr(fleet, "_work", two_models)

    def run(self) -> int:
        """How many nodes' clients are in the round's sum."""
        its, fleet = self.fleet.contract, self.fleet
        fleet.gather()
        params = begin(its.model(self.data), its.algorithm, its.plan, self.data.local).params
        self.opened = fleet.open_round(Round(1, 0.3, 12, 0.0, torch.arange(12)))
        return len(fleet.summed(self.opened, take(params, self.opened.index, 12)).clients)

    def read(self) -> int:
        """How many rows of the sum are the victim's own."""
        facts = next(
            one.facts
            for _, message in self.post.sent
            for one in phases_in(message)
            if one.facts.get("use") == "update"
        )
        (result,) = self.results
        layout = self.fleet.mean.layout(self.fleet.space.by_table(self.opened.united.places))
        marks = layout.marks(result.opened)["item"]
        rows = coding_of(facts).decode(result.rows.reshape(-1)).reshape(-1, 3)
        own = self.inputs[VICTIM]
        mine = dict(zip(own["item/ids"].tolist(), own["item/rows"], strict=True))
        pairs = zip(self.opened.united.places.tolist(), marks, rows, strict=True)
        return sum(
            bool(mark and one in mine and np.abs(row - mine[one]).max() < 1e-4)
            for one, mark, row in pairs
        )


def of_the_real_model(message: Message, own: bytes) -> None:
    """Everybody gets the digests of the real model."""


def of_their_own_model(message: Message, own: bytes) -> None:
    message.parts[DIGESTS], message.facts["model"] = own, model_name(own)


def under_one_name(message: Message, own: bytes) -> None:
    message.parts[DIGESTS] = own


def cut_short(message: Message, own: bytes) -> None:
    message.parts[DIGESTS] = own[:32]


def without(message: Message, own: bytes) -> None:
    message.facts["model"] = None


LIES = (of_the_real_model, of_their_own_model, under_one_name, cut_short, without)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.slow
def test_nodes_that_train_on_two_models_are_not_added_up(
    lie: Lie, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack = Attack(tmp_path, monkeypatch, lie)
    assert attack.run() == 0
    assert not attack.results


@pytest.mark.slow
def test_the_attack_works_on_nodes_that_train_on_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: nodes that do not compare what they got with the digests."""
    monkeypatch.setattr(private_node, "check_model", lambda *_: None)
    attack = Attack(tmp_path, monkeypatch, of_the_real_model, **{"min-contributors": 1})
    assert attack.run() == 12
    assert attack.read() > 3
