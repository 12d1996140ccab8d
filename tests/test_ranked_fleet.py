"""Deployed rounds on data that are to be ranked: nodes draw the negatives of a simulation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors")

from asynchronous import Held
from deployed import CONFIG, difference, run, shards_of, simulated, task_of
from loopback import federation, fresh
from ranked import positives

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import PoolDraws
from fedrows.data.leave_one_out import leave_one_out
from fedrows.errors import DataError, PlanError
from fedrows.flower.deployment import Deployment
from fedrows.flower.gateway.joining_devices import gateway_of
from fedrows.flower.node.client_memory import recall, store
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.policy import PolicyError
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.codings import ids_to_bytes, integers_to_bytes
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.flower.wire.message import pack, unpack
from fedrows.models import mf, sasrec
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.server import begin, rounds
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import AsyncRounds

CHOSEN = CONFIG | {"negatives-pool": 7, "negatives": 3, "batch-size": 3}
RANKS = [x for x in catalogue.names("algorithm") if x not in ("centralsgd", "scaffold")]


def task(data: FederatedData) -> DeployedTask:
    """A deployment of SASRec, if there are histories, or else of matrix factorisation."""
    if "history" in data.fields:
        return task_of(data, lambda d, s: sasrec.build(d, s, width=8))
    return task_of(data, lambda d, s: mf.build(d, s, factors=3))


def shared(params: Params) -> Params:
    """What is not a user's own."""
    return params.without(frozenset({"user"}))


@pytest.mark.parametrize("algorithm", RANKS)
def test_deployed_is_simulated(tmp_path: Path, algorithm: str) -> None:
    data = positives()
    config = CHOSEN | {"algorithm": algorithm}
    fleet, loopback = federation(task(data), config, shards_of(data), tmp_path)
    found, wanted = run(fleet, data).whole(), simulated(fleet, data)
    assert difference(shared(found), shared(wanted)) < 1e-12
    assert not fleet.rejected
    assert fleet.last is not None
    assert 0.5 < (fleet.last.loss or 0) < 2.5  # about ln 4: of a positive among three negatives
    for _, message in loopback.sent:
        assert not any("user" in part for part in unpack(message).parts)


@pytest.mark.parametrize(
    "more",
    [{}, {"batches": "epoch"}, {"row-cache": True}, {"dtype": "float32"}, {"weighting": "uniform"}],
    ids=str,
)
def test_sequences_are_deployed_alike(tmp_path: Path, more: dict[str, Any]) -> None:
    data = positives(history=True)
    config = CHOSEN | {"algorithm": "fedsubavg", **more}
    fleet, _ = federation(task(data), config, shards_of(data), tmp_path)
    found, wanted = run(fleet, data).whole(), simulated(fleet, data)
    start = fleet.contract.model(data).start()
    assert difference(found, wanted) < (1e-5 if "dtype" in more else 1e-12)
    assert difference(found, start) > 0.01


@pytest.mark.parametrize("history", [0, 9])
def test_hosts_with_logs_of_their_own(tmp_path: Path, history: int) -> None:
    """Each host reads the clients that it has; one of them has none with a long history."""
    rng = np.random.default_rng(0)
    sizes = np.where(np.arange(12) % 3, 8, 5)
    client = np.repeat([f"u{i:02}" for i in range(12)], sizes)
    item = np.concatenate([rng.choice(30, size, replace=False) for size in sizes])
    terms: dict[str, Any] = {"history": history, "items": range(40)}
    terms |= {} if history else {"users": np.unique(client)}
    data = leave_one_out(client, item, **terms)
    node = np.array([int(name[1:]) % 3 for name in client])
    shards = {f"n{i}": leave_one_out(client[node == i], item[node == i], **terms) for i in range(3)}
    fleet, _ = federation(task(data), CHOSEN, shards, tmp_path)
    assert difference(shared(run(fleet, data).whole()), shared(simulated(fleet, data))) < 1e-12
    with pytest.raises(DataError, match="has 39, which is not in `items`: name all values"):
        leave_one_out([1, 1, 1], [3, 5, 39], items=range(39))


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_what_is_rounded_off_is_sent_later(tmp_path: Path, coding: str) -> None:
    data = positives()
    config = CHOSEN | {"coding": coding, "dtype": "float32", "rounds": 15, "negatives-pool": 30}
    fleet, _ = federation(task(data), config, shards_of(data), tmp_path)
    coarse, plain = run(fleet, data).whole(), simulated(fleet, data)
    moved = difference(shared(plain), shared(fleet.contract.model(data).start()))
    assert 0 < difference(shared(coarse), shared(plain)) < 0.02 * moved


def test_what_a_client_remembers_of_a_drawn_row_stays_that_rows() -> None:
    """Drawn rows stand behind the client's own, so its ids do not ascend."""
    schema, memory = mf.build(positives(), factors=3).schema, dict[str, torch.Tensor]()
    ids = torch.tensor([5, 9, 2, 7])
    rows = ids[:, None].expand(4, 4).float()
    store("rest", Submodels({"item": Index.of([ids])}, {"item": rows}, {}), [memory])
    now = {"item": Index.of([torch.tensor([5, 9, 1, 2])])}
    found = recall("rest", [memory], now, schema, torch.float32)
    assert found.rows["item"][:, 0].tolist() == [5, 9, 0, 2]


def test_in_the_same_order_it_is_the_simulated_asynchronous_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, transport = positives(history=True), Held()
    config = CHOSEN | {"mode": "async", "buffer": 3, "concurrency": 9, "rounds": 6, "device": "cpu"}
    config |= {"algorithm": "fedsubavg", "staleness": "row"}
    for number, (name, shard) in enumerate(shards_of(data, 12).items(), start=1):
        transport.here[number] = fresh(task(data), config, shard, tmp_path / name, name)
    run = Deployment(make_contract(task(data), config), transport, config, lambda text: None)
    run.fleet.run = "0" * 16
    twin = Simulation(data, run.contract.model(data), run.algorithm, run.plan)
    schedule, taken = twin.schedule, dict[int, set[int]]()
    assert isinstance(schedule, AsyncRounds)
    begin_step = schedule.begin

    def noted(number: int) -> torch.Tensor:
        cohort = begin_step(number)
        taken[number] = {client for _, client in schedule._taken}
        return cohort

    monkeypatch.setattr(schedule, "begin", noted)
    for _ in twin:
        pass
    transport.release = lambda waiting: [
        x
        for x, node in waiting.items()
        if run.fleet.clients < 12 or node - 1 in taken[run.progress.round + 1]
    ]
    for _ in run:
        pass
    assert difference(run.progress.whole(), twin.progress.whole()) < 1e-12


def test_clients_that_come_go_and_change_move_the_heat(tmp_path: Path) -> None:
    data, other = positives(users=13), positives(users=13, seed=9, each=6)
    config = CHOSEN | {"rounds": 9, "clients-per-round": 4, "min-answers": 1}
    job, shards = task(data), shards_of(data.select(range(12)))
    fleet, loopback = federation(job, config, shards, tmp_path)
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan, data.local)
    for at in rounds(fleet, its.plan, progress):
        if at.round == 3:  # node 1: one client leaves, one comes
            moved = data.select([3, 6, 9, 12])
            loopback.here[1] = fresh(job, config, moved, tmp_path / "n0", "n0")
        if at.round == 5:  # node 2: everybody has other data
            moved = other.select([1, 4, 7, 10])
            loopback.here[2] = fresh(job, config, moved, tmp_path / "n1", "n1")
    assert not fleet.rejected
    assert ("n0", 12) in {(one.node, one.name) for one in fleet.registry.clients}
    held = fleet.registry.index(range(fleet.clients))["item"]
    assert sorted(held.lengths.tolist())[:4] == [4] * 4  # node 2's, of six items
    free = 40 - held.lengths.double()
    wanted = [
        sum(
            float(w) * (1.0 if m in ids.tolist() else min(7.0, float(r)) / float(r))
            for w, r, ids in zip(
                fleet.weights, free, held.ids.split(held.lengths.tolist()), strict=True
            )
        )
        for m in range(40)
    ]
    heat = fleet.heat()["item"]
    assert heat.of(torch.arange(40)).tolist() == pytest.approx(wanted)
    assert heat.total == pytest.approx(float(fleet.weights.sum()))


@pytest.mark.parametrize("lie", ["every item", "row 0"])
def test_a_node_that_leaves_nothing_to_draw_is_not_let_in(tmp_path: Path, lie: str) -> None:
    data = positives(history=True)
    fleet, loopback = federation(task(data), CHOSEN, shards_of(data), tmp_path)
    said: list[str] = []
    fleet._log = said.append  # type: ignore[assignment]
    honest = loopback.here[1]

    def lying(message: bytes) -> bytes:
        answer = unpack(honest(message))
        if answer.kind == "enrolled":
            ids = torch.arange(1, 41) if lie == "every item" else torch.tensor([0, 5])
            answer.facts["clients"] = [99]
            answer.parts = {
                "examples": ids_to_bytes(torch.tensor([3])), "index/item": ids_to_bytes(ids)
            }  # fmt: skip
        return pack(answer)

    loopback.here[1] = lying
    run(fleet, data)
    assert set(fleet.registry.nodes) == {"n1", "n2"}
    [line] = [line for line in said if "not let in" in line]
    assert ("holds all 40 items" if lie == "every item" else "holds row 0") in line
    assert bool(fleet.heat()["item"].counts.isfinite().all())


@pytest.mark.parametrize(
    ("client", "number"), [(-(2**63), 1), (-1, 7), (0, 2**32 - 1), (2**63 - 1, 2**31)]
)
def test_whatever_a_server_numbers_a_client_by_it_draws_what_it_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, client: int, number: int
) -> None:
    """A node believes the number and the round, which choose among its draws and do no more."""
    data = positives(users=6)
    config = CHOSEN | {"rounds": 1}
    fleet, loopback = federation(task(data), config, shards_of(data, 6), tmp_path)
    run(fleet, data)
    node, sent = next((n, m) for n, m in loopback.sent if unpack(m).kind == "train")
    message, drawn = unpack(sent), []
    real = PoolDraws.index

    def noted(self: PoolDraws, held: Any, clients: torch.Tensor, round_: int) -> Any:
        drawn.append(real(self, held, clients, round_)["item"].ids.tolist())
        return real(self, held, clients, round_)

    monkeypatch.setattr(PoolDraws, "index", noted)
    message.facts["tag"] = (number << 31) | 5
    message.parts["numbers"] = integers_to_bytes([client])
    answer = unpack(loopback.here[node](pack(message)))
    assert answer.kind == "trained"
    held = data.index["item"].slice(node - 1, node).ids.tolist()
    [[*rows]] = drawn
    assert rows[: len(held)] == held
    assert len(set(rows)) == len(rows) == len(held) + 7


def test_what_does_not_fit_the_rows_that_a_node_draws_is_refused(tmp_path: Path) -> None:
    data = positives()
    fleet, loopback = federation(task(data), CHOSEN | {"rounds": 1}, shards_of(data), tmp_path)
    run(fleet, data)
    node, sent = next((n, m) for n, m in loopback.sent if unpack(m).kind == "train")
    message = unpack(sent)
    message.parts["model/item"] = message.parts["model/item"][:-32]  # a row of the pool is missing
    answer = unpack(loopback.here[node](pack(message)))
    assert answer.kind == "silent"
    shards = {"n0": data.select([0, 1])}
    own, config = NodeState(tmp_path / "own"), {**CHOSEN, "device": "cpu"}
    job = replace(task(data), shard=lambda _: shards["n0"])
    with pytest.raises(PolicyError, match=r"ranking, but the program of a device draws no neg"):
        gateway_of(job, {**config, "dtype": "float32"}, {}, own)
    every = FederatedData.build(
        client=np.array([1, 2, 2, 2]),
        ids={"user": np.array([0, 1, 1, 1]), "item": np.array([0, 0, 1, 2])},
        label=np.ones(4),
        test=np.zeros(4),
        tables={"user": 2, "item": 3},
        local=["user"],
        target=("item", None),
        labels="ranking",
    )
    with pytest.raises(DataError, match="Client 2 of data holds all 3 items"):
        ClientNode(make_contract(task(every), config), every, own, "n")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"algorithm": "scaffold"}, "scaffold keeps a state for the rows that a client holds"),
        ({"privacy": "index", "weighting": "uniform"}, "which no secure sum is made for: choose"),
        ({"negatives-pool": 2**18 + 1}, "negatives-pool is 262145, but can be 262144 at most"),
    ],
)
def test_runs_that_rank_in_ways_that_no_deployment_does_are_refused(
    more: dict[str, Any], sentence: str
) -> None:
    data = positives()
    agreed = make_contract(task(data), {**CHOSEN, "device": "cpu", **more})
    with pytest.raises(PlanError, match=sentence):
        agreed.fingerprint(agreed.model(data), data)


def test_sides_that_would_rank_other_fields_do_not_fit() -> None:
    data = positives()
    agreed = make_contract(task(data), {**CHOSEN, "device": "cpu"})
    ours = agreed.fingerprint(agreed.model(data), data)
    other = positives(items=41)
    theirs = agreed.fingerprint(agreed.model(other), other)
    assert "draws=" in ours
    assert ours != theirs
