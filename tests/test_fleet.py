"""A deployed fleet without the network: the same messages, the same node, the same checks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import nn

pytest.importorskip("safetensors")

from deployed import (
    CONFIG,
    difference,
    examples,
    run,
    shards_of,
    simulated,
    task_of,
    with_drop_outs,
    with_local_users,
)
from loopback import federation, fresh

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.flower.wire.message import unpack
from fedrows.models import mf
from fedrows.rows.heat import heat_of
from fedrows.server import begin, rounds

ALGORITHMS = [name for name in catalogue.names("algorithm") if name != "centralsgd"]


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_deployed_is_simulated(tmp_path: Path, algorithm: str, cache: bool) -> None:
    data = examples()
    config = CONFIG | {"algorithm": algorithm, "row-cache": cache}
    fleet, _ = federation(task_of(data), config, shards_of(data), tmp_path)
    found = run(fleet, data)
    assert difference(found.whole(), simulated(fleet, data)) < 1e-14
    assert not fleet.rejected


def test_lifted_modules_are_deployed_alike(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.item = nn.Embedding(30, 3)
            self.out = nn.Linear(3, 1)

        def forward(self, item: torch.Tensor) -> torch.Tensor:
            return self.out(self.item(item)).squeeze(-1)

    def model(data: FederatedData, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return Net()

    data = examples()
    fleet, _ = federation(task_of(data, model), CONFIG, shards_of(data), tmp_path)
    assert difference(run(fleet, data).whole(), simulated(fleet, data)) < 1e-12


def test_one_exchange_a_round_in_the_steady_state(tmp_path: Path) -> None:
    data = examples()
    fleet, loopback = federation(task_of(data), CONFIG, shards_of(data), tmp_path)
    run(fleet, data)
    kinds = [unpack(message).kind for _, message in loopback.sent]
    assert kinds[:3] == ["enrol"] * 3
    assert set(kinds[3:]) == {"train"}
    by_round: dict[tuple[int, int], int] = {}
    for node, message in loopback.sent[3:]:
        key = node, unpack(message).facts["tag"]
        by_round[key] = by_round.get(key, 0) + 1
    assert set(by_round.values()) == {1}


def test_local_rows_never_leave(tmp_path: Path) -> None:
    data = with_local_users()
    config = CONFIG | {"clients-per-round": 4, "rounds": 6}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)
    found, wanted = run(fleet, data), simulated(fleet, data)
    assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-14
    assert not found.params.tables["user"].any()
    assert wanted.tables["user"].any()
    for _, message in loopback.sent:
        assert not any("user" in part for part in unpack(message).parts)


def test_a_model_with_options_of_its_own_trains_as_in_a_simulation(tmp_path: Path) -> None:
    """Nodes and server build it with the same options, its ridge and its local rows included."""
    data = with_local_users(2, target=("item", None))
    config, items = CONFIG | {"clients-per-round": 4, "rounds": 6}, []
    for number, options in enumerate(({"factors": 3, "ridge": 0.3}, {"factors": 3})):
        task = task_of(data, lambda d, s, own=options: mf.build(d, s, **own))
        fleet, _ = federation(task, config, shards_of(data), tmp_path / str(number))
        found, wanted = run(fleet, data), simulated(fleet, data)
        items.append(found.params.tables["item"])
        assert float((items[-1] - wanted.tables["item"]).abs().max()) < 1e-13
    assert items[0].shape == (10, 4)
    assert float((items[0] - items[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_what_is_rounded_off_is_sent_later(tmp_path: Path, coding: str) -> None:
    data = examples()
    config = CONFIG | {"coding": coding, "dtype": "float32", "rounds": 15}
    fleet, _ = federation(task_of(data), config, shards_of(data), tmp_path)
    coarse = run(fleet, data)
    plain = simulated(fleet, data)
    moved = float(plain.tables["item"].abs().max())
    assert 0 < difference(coarse.whole(), plain) < 0.02 * moved


def test_the_cache_spares_rows_that_nobody_changed(tmp_path: Path) -> None:
    data = examples(rows=300, each=60)
    sizes = {}
    for cache in (False, True):
        config = CONFIG | {"row-cache": cache, "rounds": 12, "local-steps": 1, "batch-size": 3}
        fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path / str(cache))
        run(fleet, data)
        sizes[cache] = sum(
            len(part) for _, x in loopback.sent[3:] for name, part in unpack(x).parts.items()
            if name.startswith("model/")
        )  # fmt: skip
    assert 0 < sizes[True] < 0.8 * sizes[False]


def test_a_cache_that_is_lost_costs_one_round(tmp_path: Path) -> None:
    data = examples()
    config = CONFIG | {"row-cache": True, "rounds": 6, "clients-per-round": 12, "min-answers": 1}
    fleet, _ = federation(task_of(data), config, shards_of(data), tmp_path)
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    answered = []
    for at in rounds(fleet, its.plan, progress):
        assert fleet.last is not None
        answered.append(fleet.last.answered)
        if at.round == 2:
            for file in (tmp_path / "n1" / fleet.run / "cache").iterdir():
                file.unlink()
    assert answered == [12, 12, 8, 12, 12, 12]


@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold", "fedadam"])
def test_an_answer_that_gets_lost_is_as_if_it_had_not_been_made(
    tmp_path: Path, algorithm: str
) -> None:
    data = examples()
    config = CONFIG | {"algorithm": algorithm, "rounds": 8, "min-answers": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)

    def meddle(node: int, answer: bytes) -> bytes | str:
        tag = unpack(answer).facts.get("tag", 0)
        return "it is gone" if tag and (tag >> 31) % 3 + 1 == node else answer

    loopback.meddle = meddle
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    lines = []
    for _ in rounds(fleet, its.plan, progress):
        assert fleet.last is not None
        lines.append(asdict(fleet.last))
    wanted = with_drop_outs(its.model(data), its.algorithm, data, its.plan, lines)
    assert difference(progress.whole(), wanted.whole()) < 1e-14
    assert 3 < sum(len(who) for line in lines for who in line["dropped"].values()) < 40


def test_too_few_answers_repeat_the_round_with_others(tmp_path: Path) -> None:
    data = examples()
    config = CONFIG | {"rounds": 2, "min-answers": 6}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)
    left = {"n": 4}

    def meddle(node: int, answer: bytes) -> bytes | str:
        if left["n"] and unpack(answer).kind == "trained":
            left["n"] -= 1
            return "it did not answer in time"
        return answer

    loopback.meddle = meddle
    progress = run(fleet, data)
    assert progress.round == 2
    tags = {unpack(x).facts["tag"] for _, x in loopback.sent if unpack(x).kind == "train"}
    assert len({tag >> 31 for tag in tags}) == 2  # rounds
    assert len(tags) > 2  # tries


def test_clients_that_come_go_and_change_move_the_heat(tmp_path: Path) -> None:
    data = examples(clients=13)
    config = CONFIG | {"rounds": 9, "clients-per-round": 4, "min-answers": 1}
    job, shards = task_of(data), shards_of(data.select(range(12)))
    fleet, loopback = federation(job, config, shards, tmp_path)
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    other = examples(seed=9)
    for at in rounds(fleet, its.plan, progress):
        if at.round == 3:  # node 1: one client leaves, one comes
            moved = data.select([3, 6, 9, 12])
            loopback.here[1] = fresh(job, config, moved, tmp_path / "n0", "n0")
        if at.round == 5:  # node 2: everybody has other data
            loopback.here[2] = fresh(
                job, config, other.select([1, 4, 7, 10]), tmp_path / "n1", "n1"
            )
    names = {(one.node, one.name) for one in fleet.registry.clients}
    assert ("n0", 0) not in names
    assert ("n0", 12) in names
    now = [*data.select([3, 6, 9, 12]).index["item"].ids.split(
        data.select([3, 6, 9, 12]).index["item"].lengths.tolist())]  # fmt: skip
    for node, source in (("n1", other.select([1, 4, 7, 10])), ("n2", data.select([2, 5, 8, 11]))):
        assert sum(one.node == node for one in fleet.registry.clients) == 4
        now += list(source.index["item"].ids.split(source.index["item"].lengths.tolist()))
    members = fleet.registry.clients
    assert sorted(map(torch.Tensor.tolist, now)) == sorted(
        x.index["item"].tolist() for x in members
    )
    whole = heat_of(fleet.registry.index(range(len(members)))["item"], fleet.weights)
    kept = fleet.heat()["item"]
    assert torch.equal(whole.ids, kept.ids)
    assert torch.allclose(whole.counts, kept.counts)
    assert whole.total == pytest.approx(kept.total)


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_a_rest_alone_sends_no_row(tmp_path: Path, coding: str) -> None:
    data = examples(rows=300, each=60)
    counts = {}
    for one in ("float32", coding):
        config = CONFIG | {"dtype": "float32", "rounds": 12, "clients-per-round": 12}
        config |= {"coding": one, "local-steps": 1, "batch-size": 3}
        config |= {"row-clip": ""}  # a row whose steps cancel out in one coding alone is no rest
        fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path / one)
        answers: list[bytes] = []

        def listen(node: int, answer: bytes, heard: list[bytes] = answers) -> bytes:
            heard.append(answer)
            return answer

        loopback.meddle = listen
        run(fleet, data)
        messages = [x.parts for x in map(unpack, answers) if x.kind == "trained"]
        counts[one] = sum(len(x["update/item"]) for x in messages) // (4 if one == "float32" else 2)
    assert 0 < counts[coding] == counts["float32"]
