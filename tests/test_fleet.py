"""A deployed fleet without the network: the same letters, the same node, the same checks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("safetensors")

from post import federation, fresh

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.data import FederatedData
from fedrows.fleet import SimulatedFleet
from fedrows.flower import parcel
from fedrows.flower.fleet import FlowerFleet
from fedrows.flower.job import Job, contract
from fedrows.flower.node import ClientNode
from fedrows.flower.state import NodeState
from fedrows.flower.wire import Letter, pack, unpack
from fedrows.heat import heat_of
from fedrows.index import Index
from fedrows.models.logistic import Logistic
from fedrows.params import Params, Submodels
from fedrows.server import Progress, begin, rounds
from fedrows.simulation import Simulation

CONFIG: dict[str, Any] = {
    "rounds": 4, "clients-per-round": 6, "lr": 0.3, "seed": 3, "local-steps": 3, "dtype": "float64"
}  # fmt: skip


def examples(
    clients: int = 12, rows: int = 30, seed: int = 0, each: int = 8, **more: Any
) -> FederatedData:
    draw = np.random.default_rng(seed)
    client = np.repeat(np.arange(clients), each)
    ids = draw.zipf(1.3, len(client)).clip(max=rows - 1)
    return FederatedData.build(
        client=client,
        ids={"item": ids},
        label=(draw.random(len(client)) < 0.5),
        test=draw.random(len(client)) < 0.2,
        tables={"item": rows},
        **more,
    )


def job_of(data: FederatedData, model: Any = lambda d, s: Logistic(d)) -> Job:
    return Job("test", lambda config: data, model, lambda config: data)


def shards_of(data: FederatedData, nodes: int = 3) -> dict[str, FederatedData]:
    return {f"n{i}": data.select(torch.arange(i, data.clients, nodes)) for i in range(nodes)}


def run(fleet: FlowerFleet, data: FederatedData) -> Progress:
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan, data.local)
    for _ in rounds(fleet, its.plan, progress):
        pass
    return progress


def simulated(fleet: FlowerFleet, data: FederatedData) -> Params:
    its = fleet.contract
    simulation = Simulation(data, its.model(data), its.algorithm, its.plan)
    for _ in simulation:
        pass
    return simulation.progress.whole()


def difference(one: Params, other: Params) -> float:
    pairs = [(one.tables[t], other.tables[t]) for t in one.tables]
    pairs += [(one.dense[d], other.dense[d]) for d in one.dense]
    return max(float((a - b).abs().max()) for a, b in pairs)


ALGORITHMS = [name for name in catalogue.names("algorithm") if name != "centralsgd"]


@pytest.mark.parametrize("cache", [False, True])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_deployed_is_simulated(tmp_path: Path, algorithm: str, cache: bool) -> None:
    data = examples()
    config = CONFIG | {"algorithm": algorithm, "row-cache": cache}
    fleet, _ = federation(job_of(data), config, shards_of(data), tmp_path)
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
    fleet, _ = federation(job_of(data, model), CONFIG, shards_of(data), tmp_path)
    assert difference(run(fleet, data).whole(), simulated(fleet, data)) < 1e-12


def test_one_exchange_a_round_in_the_steady_state(tmp_path: Path) -> None:
    data = examples()
    fleet, post = federation(job_of(data), CONFIG, shards_of(data), tmp_path)
    run(fleet, data)
    kinds = [unpack(letter).kind for _, letter in post.sent]
    assert kinds[:3] == ["hello"] * 3
    assert set(kinds[3:]) == {"train"}
    by_round: dict[tuple[int, int], int] = {}
    for node, letter in post.sent[3:]:
        key = node, unpack(letter).facts["tag"]
        by_round[key] = by_round.get(key, 0) + 1
    assert set(by_round.values()) == {1}


def test_local_rows_never_leave(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    client = np.repeat(np.arange(8), 6)
    data = FederatedData.build(
        client=client,
        ids={"user": client, "item": draw.integers(0, 10, len(client))},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"user": 8, "item": 10},
        local=["user"],
    )
    config = CONFIG | {"clients-per-round": 4, "rounds": 6}
    fleet, post = federation(job_of(data), config, shards_of(data), tmp_path)
    found, wanted = run(fleet, data), simulated(fleet, data)
    assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-14
    assert not found.params.tables["user"].any()
    assert wanted.tables["user"].any()
    for _, letter in post.sent:
        assert not any("user" in part for part in unpack(letter).parts)


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_what_is_rounded_off_is_sent_later(tmp_path: Path, coding: str) -> None:
    data = examples()
    config = CONFIG | {"coding": coding, "dtype": "float32", "rounds": 15}
    fleet, _ = federation(job_of(data), config, shards_of(data), tmp_path)
    coarse = run(fleet, data)
    plain = simulated(fleet, data)
    moved = float(plain.tables["item"].abs().max())
    assert 0 < difference(coarse.whole(), plain) < 0.02 * moved


def test_the_cache_spares_rows_that_nobody_changed(tmp_path: Path) -> None:
    data = examples(rows=300, each=60)
    sizes = {}
    for cache in (False, True):
        config = CONFIG | {"row-cache": cache, "rounds": 12, "local-steps": 1, "batch-size": 3}
        fleet, post = federation(job_of(data), config, shards_of(data), tmp_path / str(cache))
        run(fleet, data)
        sizes[cache] = sum(
            len(part) for _, x in post.sent[3:] for name, part in unpack(x).parts.items()
            if name.startswith("model/")
        )  # fmt: skip
    assert 0 < sizes[True] < 0.8 * sizes[False]


def test_a_cache_that_is_lost_costs_one_round(tmp_path: Path) -> None:
    data = examples()
    config = CONFIG | {"row-cache": True, "rounds": 6, "clients-per-round": 12, "min-answers": 1}
    fleet, _ = federation(job_of(data), config, shards_of(data), tmp_path)
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


class Leaving(SimulatedFleet):
    """A simulated fleet in which some clients train in vain: nobody hears of it, not even they."""

    lost: dict[int, set[int]]  # round → clients

    def train(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        stay = [i for i, x in enumerate(cohort.tolist()) if x not in self.lost[round_.number]]
        some = cohort[torch.tensor(stay, dtype=torch.int64)]
        index = self.index_sets(some)
        parts = [None if x is None else _of(x, stay, index) for x in (start, sent)]
        assert parts[0] is not None
        return super().train(some, parts[0], parts[1], round_)


def _of(whole: Submodels, places: list[int], index: Mapping[str, Index]) -> Submodels:
    own = [whole.slice(i, i + 1) for i in places]
    return Submodels(
        index,
        {table: torch.cat([x.rows[table] for x in own]) for table in whole.rows},
        {name: torch.cat([x.dense[name] for x in own]) for name in whole.dense},
    )


@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold", "fedadam"])
def test_an_answer_that_gets_lost_is_as_if_it_had_not_been_made(
    tmp_path: Path, algorithm: str
) -> None:
    data = examples()
    config = CONFIG | {"algorithm": algorithm, "rounds": 8, "min-answers": 1}
    fleet, post = federation(job_of(data), config, shards_of(data), tmp_path)

    def meddle(node: int, answer: bytes) -> bytes | str:
        tag = unpack(answer).facts.get("tag", 0)
        return "it is gone" if tag and (tag >> 31) % 3 + 1 == node else answer

    post.meddle = meddle
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    lost: dict[int, set[int]] = {}
    for at in rounds(fleet, its.plan, progress):
        assert fleet.last is not None
        lost[at.round] = {x for who in fleet.last.dropped.values() for x in who}
    assert 3 < sum(map(len, lost.values())) < 40
    twin = Leaving(its.model(data), its.algorithm, data, its.plan)
    twin.lost = lost
    wanted = begin(its.model(data), its.algorithm, its.plan)
    for _ in rounds(twin, its.plan, wanted):
        pass
    assert difference(progress.whole(), wanted.whole()) < 1e-14


def test_too_few_answers_repeat_the_round_with_others(tmp_path: Path) -> None:
    data = examples()
    config = CONFIG | {"rounds": 2, "min-answers": 6}
    fleet, post = federation(job_of(data), config, shards_of(data), tmp_path)
    left = {"n": 4}

    def meddle(node: int, answer: bytes) -> bytes | str:
        if left["n"] and unpack(answer).kind == "done":
            left["n"] -= 1
            return "it did not answer in time"
        return answer

    post.meddle = meddle
    progress = run(fleet, data)
    assert progress.round == 2
    tags = {unpack(x).facts["tag"] for _, x in post.sent if unpack(x).kind == "train"}
    assert len({tag >> 31 for tag in tags}) == 2  # rounds
    assert len(tags) > 2  # tries


def test_clients_that_come_go_and_change_move_the_heat(tmp_path: Path) -> None:
    data = examples(clients=13)
    config = CONFIG | {"rounds": 9, "clients-per-round": 4, "min-answers": 1}
    job, shards = job_of(data), shards_of(data.select(range(12)))
    fleet, post = federation(job, config, shards, tmp_path)
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    other = examples(seed=9)
    for at in rounds(fleet, its.plan, progress):
        if at.round == 3:  # node 1: one client leaves, one comes
            moved = data.select([3, 6, 9, 12])
            post.here[1] = fresh(job, config, moved, tmp_path / "n0", "n0")
        if at.round == 5:  # node 2: everybody has other data
            post.here[2] = fresh(job, config, other.select([1, 4, 7, 10]), tmp_path / "n1", "n1")
    names = {(one.node, one.name) for one in fleet.registry.members}
    assert ("n0", 0) not in names
    assert ("n0", 12) in names
    now = [*data.select([3, 6, 9, 12]).index["item"].ids.split(
        data.select([3, 6, 9, 12]).index["item"].lengths.tolist())]  # fmt: skip
    for node, source in (("n1", other.select([1, 4, 7, 10])), ("n2", data.select([2, 5, 8, 11]))):
        assert sum(one.node == node for one in fleet.registry.members) == 4
        now += list(source.index["item"].ids.split(source.index["item"].lengths.tolist()))
    members = fleet.registry.members
    assert sorted(map(torch.Tensor.tolist, now)) == sorted(
        x.index["item"].tolist() for x in members
    )
    whole = heat_of(fleet.registry.index(range(len(members)))["item"], fleet.weights)
    kept = fleet.heat()["item"]
    assert torch.equal(whole.ids, kept.ids)
    assert torch.allclose(whole.counts, kept.counts)
    assert whole.total == pytest.approx(kept.total)


def test_a_node_that_does_not_fit_is_told_why(tmp_path: Path) -> None:
    data, smaller = examples(), examples(rows=20)
    said: list[str] = []
    fleet, post = federation(job_of(data), CONFIG, shards_of(data), tmp_path)
    fleet._tell = said.append  # type: ignore[assignment]
    post.here[9] = fresh(job_of(smaller), CONFIG, smaller, tmp_path / "odd", "odd")
    run(fleet, data)
    assert "odd" not in fleet.registry.nodes
    [line] = [line for line in said if "not let in" in line]
    assert "tables" in line
    assert "tables" in (tmp_path / "odd" / "refused.txt").read_text()


def test_nobody_speaks_for_anothers_clients(tmp_path: Path) -> None:
    data = examples()
    fleet, post = federation(job_of(data), CONFIG, shards_of(data), tmp_path)
    post.here[8] = fresh(job_of(data), CONFIG, data.select([0, 3]), tmp_path / "x", "thief")
    post.here[9] = fresh(job_of(data), CONFIG, data.select([0, 3]), tmp_path / "y", "n0")
    run(fleet, data)
    assert set(fleet.registry.nodes) == {"n0", "n1", "n2"}
    assert fleet.rejected["registration"] == 2


def hostile(letter: Letter, kind: str, draw: np.random.Generator) -> bytes:
    """An honest answer made into one that must be refused."""
    facts, parts = dict(letter.facts), dict(letter.parts)
    name = "update/item"
    count = len(parts[name]) // 8
    if kind == "tag":
        facts["tag"] = int(draw.integers(1, 2**40))
    elif kind == "nan":
        values = np.frombuffer(parts[name], dtype="<f8").copy()
        values[draw.integers(count)] = draw.choice([np.nan, np.inf, -np.inf])
        parts[name] = values.tobytes()
    elif kind == "huge":
        parts[name] = (np.frombuffer(parts[name], dtype="<f8") * 1e12 + 1e9).tobytes()
    elif kind == "shape":
        parts[name] = parts[name][:-8] if draw.random() < 0.5 else parts[name] + bytes(8)
    elif kind == "ids":
        parts[f"{name}/at"] = parcel.ids_to_bytes(torch.arange(10**6, 10**6 + count))
    elif kind == "missing":
        del parts[name]
    elif kind == "strange":
        parts["model/item"] = bytes(8)
    elif kind == "kind":
        return pack(Letter("here", facts, parts))
    elif kind == "steps":
        parts["steps"] = parcel.ids_to_bytes(torch.tensor([10**6]))
    whole = bytearray(pack(Letter(letter.kind, facts, parts)))
    if kind == "truncated":
        return bytes(whole[: draw.integers(0, len(whole))])
    if kind == "version":
        whole[4] ^= int(draw.integers(1, 255))
    elif kind == "noise":
        return draw.bytes(int(draw.integers(0, 2_000)))
    elif kind == "large":
        return bytes(whole) + bytes(4_000_000)
    return bytes(whole)


KINDS = ["tag", "nan", "huge", "shape", "ids", "missing", "strange", "kind", "steps", "truncated",
         "version", "noise", "large", "replay"]  # fmt: skip


@pytest.mark.parametrize("count", [8, pytest.param(130, marks=pytest.mark.slow)])
def test_a_thousand_hostile_uploads_change_nothing(tmp_path: Path, count: int) -> None:
    """Eight nodes of twelve are hostile; the model is that of a run in which they are silent."""
    data, draw = examples(), np.random.default_rng(5)
    config = CONFIG | {"rounds": count, "min-answers": 1, "local-steps": 1, "clients-per-round": 12}
    results, old = [], list[bytes]()
    for evil in (True, False):
        shards = shards_of(data, 12)
        fleet, post = federation(job_of(data), config, shards, tmp_path / str(evil))
        for place, (name, shard) in enumerate(shards.items(), start=1):
            # Nodes live on in this test, for speed; Flower starts a process for each letter.
            folder = NodeState(tmp_path / str(evil) / name)
            node = ClientNode(contract(job_of(data), config), shard, folder, name)
            post.here[place] = node.answer

        def meddle(node: int, answer: bytes, evil: bool = evil) -> bytes | str:
            letter = unpack(answer)
            if node > 8 or letter.kind != "done":
                return answer
            if not evil:
                return "it did not answer in time"
            old.append(answer)
            kind = KINDS[len(old) % len(KINDS)]
            if kind == "replay" and len(old) > 20:
                return old[int(draw.integers(len(old) - 12))]
            return hostile(letter, "tag" if kind == "replay" else kind, draw)

        post.meddle = meddle
        its = fleet.contract
        progress = begin(its.model(data), its.algorithm, its.plan)
        memory = {}
        for at in rounds(fleet, its.plan, progress):
            memory[at.round] = _resident()
            post.sent.clear()
            assert fleet.last is not None
            assert fleet.last.answered == 4
        results.append(progress.whole())
        if evil:
            assert sum(fleet.rejected.values()) == len(old) == 8 * count
            assert len(fleet.rejected) >= 5
            assert memory[count] < memory[count // 2] + 16 * 2**20
    assert difference(*results) == 0


def _resident() -> int:
    """Bytes of memory that this process really has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize(
    "rule", [{"robust": "clip", "clip-norm": 0.3}, {"robust": "trim", "trim-share": 0.3}]
)
def test_robust_rules_bound_what_a_liar_does(tmp_path: Path, rule: dict[str, Any]) -> None:
    """A lie that is small enough to pass the checks moves the model less with a rule."""
    data = examples(rows=6)
    plain = CONFIG | {"algorithm": "fedavg", "clients-per-round": 12, "rounds": 2}

    def moved(name: str, config: dict[str, Any], lies: bool) -> Params:
        fleet, post = federation(job_of(data), config, shards_of(data, 12), tmp_path / name)

        def meddle(node: int, answer: bytes) -> bytes:
            letter = unpack(answer)
            if node != 3 or letter.kind != "done" or not lies:
                return answer
            values = np.frombuffer(letter.parts["update/item"], dtype="<f8") * -40
            return pack(
                Letter("done", letter.facts, {**letter.parts, "update/item": values.tobytes()})
            )

        post.meddle = meddle
        found = run(fleet, data).whole()
        assert not fleet.rejected
        return found

    honest, lied = moved("a", plain, False), moved("b", plain, True)
    bounded = difference(moved("c", plain | rule, False), moved("d", plain | rule, True))
    assert bounded < 0.5 * difference(honest, lied)


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_a_rest_alone_sends_no_row(tmp_path: Path, coding: str) -> None:
    data = examples(rows=300, each=60)
    counts = {}
    for one in ("float32", coding):
        config = CONFIG | {"dtype": "float32", "rounds": 12, "clients-per-round": 12}
        config |= {"coding": one, "local-steps": 1, "batch-size": 3}
        fleet, post = federation(job_of(data), config, shards_of(data), tmp_path / one)
        answers: list[bytes] = []

        def listen(node: int, answer: bytes, heard: list[bytes] = answers) -> bytes:
            heard.append(answer)
            return answer

        post.meddle = listen
        run(fleet, data)
        letters = [x.parts for x in map(unpack, answers) if x.kind == "done"]
        counts[one] = sum(len(x["update/item"]) for x in letters) // (4 if one == "float32" else 2)
    assert 0 < counts[coding] == counts["float32"]
