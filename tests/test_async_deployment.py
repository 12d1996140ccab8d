"""Deployed rounds without waiting: against synchronous rounds, the simulator and killed servers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

pytest.importorskip("safetensors")

from asynchronous import Held, KilledError, Killer, deployment, replay
from deployed import difference, examples

from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.node.state import NodeState
from fedrows.flower.server.update_log import (
    ARRIVALS,
    UPDATES,
    read_updates,
)
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import AsyncRounds
from fedrows.watch import Observers

DATA = examples()
UNBOUNDED = {"row_clip": "", "weight_quantile": ""}


def finished(run: Deployment) -> Deployment:
    for _ in run:
        pass
    return run


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsubavg", "boundedsubavg", "fedadam"])
def test_without_delay_it_is_the_synchronous_run(tmp_path: Path, algorithm: str) -> None:
    alike = {"algorithm": algorithm, "dtype": "float32", "rounds": 4}
    whole = {"mode": "sync", "buffer": "", "concurrency": ""}
    waited = finished(deployment(DATA, tmp_path / "sync", **alike, **whole))
    run = finished(deployment(DATA, tmp_path / "async", buffer=6, **alike))
    assert run.schedule is not None
    assert waited.schedule is None
    assert run.progress.round == 4
    for name, tensor in waited.progress.tensors().items():
        other = run.progress.tensors()[name]
        torch.testing.assert_close(tensor, other, rtol=0, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("staleness", ["row", "version", "none"])
@pytest.mark.parametrize("algorithm", ["fedsubavg", "rowadam"])
def test_in_the_same_order_it_is_the_simulated_run(
    tmp_path: Path, algorithm: str, staleness: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node for every client. Each step gets the answers that the simulated step has taken."""
    transport, terms = Held(), {"algorithm": algorithm, "staleness": staleness, "concurrency": 9}
    run = deployment(DATA, tmp_path, transport, shards=12, **terms)
    twin = Simulation(DATA, run.contract.model(DATA), run.algorithm, run.plan)
    schedule, taken = twin.schedule, dict[int, set[int]]()
    assert isinstance(schedule, AsyncRounds)
    begin = schedule.begin

    def noted(number: int) -> torch.Tensor:
        cohort = begin(number)
        taken[number] = {client for _, client in schedule._taken}
        return cohort

    monkeypatch.setattr(schedule, "begin", noted)
    for _ in twin:
        pass

    def release(waiting: Mapping[str, int]) -> list[str]:
        if run.fleet.clients < 12:  # they enrol
            return list(waiting)
        now = taken[run.progress.round + 1]
        return [x for x, node in waiting.items() if node - 1 in now]

    transport.release = release
    ages = set[int]()
    for exchange in run:
        assert exchange.buffer is not None
        ages |= set(exchange.buffer.ages)
    assert ages == {0, 1, 2}
    assert difference(run.progress.whole(), twin.progress.whole()) < 1e-14


@pytest.mark.parametrize(("seed", "staleness"), [(0, "row"), (1, "version"), (2, "none")])
def test_a_server_killed_at_any_moment_applies_every_update_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, staleness: str
) -> None:
    """By updates.jsonl, and by its sum: the model is replayed from what was accepted."""
    killer, draw = Killer(monkeypatch, seed), random.Random(seed)
    terms = {"algorithm": "fedavg", "weighting": "uniform", "staleness": staleness, "rounds": 12}
    terms |= {"coding": "int8", "dtype": "float32", **UNBOUNDED}
    path, nodes = tmp_path / "run", tmp_path / "nodes"
    for _ in range(400):
        transport = Held()
        transport.release = lambda waiting: draw.sample(sorted(waiting), min(1, len(waiting)))
        run = deployment(DATA, nodes, transport, **terms)
        try:
            with Journal.opened(path, run) as journal:
                carry_out(run, journal, Observers())
            break
        except KilledError:
            continue
    assert killer.kills > 5
    assert run.progress.round == 12
    lines = read_updates(path / UPDATES)
    applied = [line for line in lines if "step" in line]
    keys = [(line["node"], line["client"], line["tag"]) for line in applied]
    assert len(set(keys)) == len(keys) == 12 * 3
    assert Counter(line["step"] for line in applied) == dict.fromkeys(range(1, 13), 3)
    assert run.schedule is not None
    waiting = {one.key for one in run.schedule.updates}
    assert {*keys, *waiting} == killer.accepted.keys()  # nothing that was accepted is lost
    listed = [(x["node"], x["client"], x["tag"]) for x in lines if "accepted" in x]
    assert sorted(listed, key=str) == sorted(killer.accepted, key=str)
    assert len(list((path / ARRIVALS).iterdir())) == len({x.sequence for x in run.schedule.updates})
    updates = [
        (line["step"], killer.accepted[key]) for line, key in zip(applied, keys, strict=True)
    ]
    replayed = replay(run, updates, staleness, 3)
    torch.testing.assert_close(run.progress.params.tables["item"], replayed, rtol=0, atol=1e-6)
    for one in run.registry.clients:  # each client still has what it remembers of its last update
        state = NodeState(nodes / one.node).of_run(run.fleet.run).of(one.name)
        assert not one.accepted or state.get(one.accepted) is not None
