"""Federations over a real network: Flower's SuperLink and SuperNodes, as processes on loopback."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
import safetensors.torch
import torch
from deployed import with_drop_outs
from nursery import patience

from benchmarks.federation_faults import (
    freeze_node,
    kill_clientapp,
    kill_node,
    kill_serverapp,
    kill_superlink,
    start_node,
    thaw_node,
)
from fedrows import catalogue
from fedrows.cli import main
from fedrows.cli.settings import choose
from fedrows.data.federation import FederatedData
from fedrows.flower.demo import federate, write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch.federation import LocalFederation
from fedrows.flower.launch.resubmit import submit_until_done
from fedrows.flower.wire.contract import BOUNDS
from fedrows.privacy.messages import unpack
from fedrows.report.exchange import read_rounds
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT, read_lines
from fedrows.runs.settings import Settings

pytestmark = pytest.mark.usefixtures("quick_starts")
LIMIT = 600.0  # seconds, which only a failure takes


def settings_of(task: str, algorithm: str, **typed: Any) -> Settings:
    words = {"device": "cpu", **{name: str(value) for name, value in typed.items()}}
    return choose(catalogue.task(task), [algorithm], words)[algorithm]


def model_of(path: Path) -> dict[str, torch.Tensor]:
    found = safetensors.torch.load_file(path / CHECKPOINT)
    return {name: x for name, x in found.items() if name.startswith("model/")}


def difference(
    path: Path,
    settings: Settings,
    data: FederatedData,
    bounds: Mapping[str, Any] = BOUNDS,
    lines: Sequence[Mapping[str, Any]] = (),
) -> float:
    """How far a deployed model is from a simulation with the bounds that deployments have.

    lines: of rounds.jsonl, if clients were dropped: the simulation then drops the same ones.
    """
    own = settings.algorithm
    usual = {name: x for name, x in own.deployed.items() if getattr(own, name) is None}
    settings = replace(settings, algorithm=replace(own, **usual))
    simulation = replace(settings, plan=replace(settings.plan, **bounds)).simulation(data)
    if lines:
        its = simulation
        wanted = with_drop_outs(its.model, its.algorithm, data, its.plan, lines).tensors()
    else:
        for _ in simulation:
            pass
        wanted = simulation.tensors()
    found = model_of(path)
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())


@pytest.mark.slow
def test_the_demo_is_a_real_federation_and_equals_the_simulation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "deploy demo synthetic --nodes 2 --rounds 2 --clients 60 --clients-per-round 10"
    assert main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "round 2/2" in said
    assert "10 of 10 answered" in said
    assert "Largest difference" in said
    lines = read_rounds(tmp_path / "run" / ROUNDS)
    assert [line["round"] for line in lines] == [1, 2]
    assert all(line["messages"] <= 2 for line in lines)  # one to a node
    assert (tmp_path / "run" / "report.html").exists()
    assert len(read_lines(tmp_path / "run" / "metrics.jsonl")) == 2


@pytest.mark.slow(minutes=1)
@pytest.mark.usefixtures("data_folder")
def test_rows_and_parts_of_clients_stay_on_real_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users' rows and a personal bias: the rest of the model is that of the simulation."""
    words = "deploy demo movielens-mf --start zero --personal bias --factors 4 --nodes 2 --rounds 3"
    out = tmp_path / "run"
    assert main([*words.split(), "--clients-per-round", "20", "--out", str(out)]) == 0
    assert "Largest difference" in capsys.readouterr().out  # and it is small, or the code is 2
    trained = model_of(out)
    assert trained.keys() == {f"model/table/{name}" for name in ("user", "item", "personal")}
    for own in ("user", "personal"):
        assert not trained[f"model/table/{own}"][:, 0].any(), "biases are as they started: 0"
    assert int((trained["model/table/item"][:, 0] != 0).sum()) > 100
    assert trained["model/table/item"].shape[1] == 1 + 4


@pytest.mark.slow(minutes=2)
def test_deployed_is_simulated_on_movielens(tmp_path: Path, data_folder: Path) -> None:
    task = catalogue.task("movielens")
    data = task.load(task.options())
    with federate(tmp_path, data, nodes=4) as federation:
        for algorithm in ("fedsubavg", "fedprox", "scaffold", "fedadam"):
            settings = settings_of("movielens", algorithm, rounds=3, evaluate_every=3)
            out = tmp_path / algorithm
            project = write_project(
                tmp_path / f"{algorithm}-project",
                settings,
                {"min_nodes": 4, "timeout": LIMIT},  # a round that is tried again draws anew
                out,
                tmp_path / "data",
            )
            status = federation.wait(federation.control.submit(project, {}), LIMIT)
            assert status == "finished:completed"
            lines = read_rounds(out / ROUNDS)
            assert [line["answered"] for line in lines] == [50] * 3
            assert all(line["messages"] <= 4 for line in lines)  # one exchange with each node
            assert difference(out, settings, data) <= 1e-5


@pytest.mark.slow(minutes=1)
def test_the_example_project_runs(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    import runpy

    example = Path(__file__).parents[1] / "examples" / "flower"
    runpy.run_path(str(example / "make_ratings.py"))["main"](tmp_path / "data", 2)
    from fedrows.flower.launch.federation import NodeSpec

    nodes = [
        NodeSpec(
            f"node-{i}",
            {
                "shard": str(tmp_path / "data" / f"node-{i}.csv"),
                "state": str(tmp_path / f"state-{i}"),
            },
        )
        for i in range(2)
    ]
    out = tmp_path / "run"
    with LocalFederation(tmp_path / "federation", nodes) as federation:
        sample = str(tmp_path / "data" / "sample.csv")
        config = {"out": str(out), "rounds": 3, "ratings-sample": sample}
        run = federation.control.submit(example, config)
        assert federation.wait(run, LIMIT) == "finished:completed"
    assert [line["answered"] for line in read_rounds(out / ROUNDS)] == [20] * 3


# What becomes of a node, and of the server while that node is away.
DEEDS = [("freeze", "ServerApp"), ("kill", "SuperLink")]


class Chaos:
    """Kills and freezes nodes, and kills the server, while a run goes on."""

    def __init__(self, federation: LocalFederation, out: Path, seed: int) -> None:
        self.federation, self.out = federation, out
        self.draw = random.Random(seed)
        self.deeds: list[str] = []

    def round(self) -> int:
        lines = read_rounds(self.out / ROUNDS) if (self.out / ROUNDS).exists() else []
        return lines[-1]["round"] if lines else 0

    def goes_on(self, submitter: threading.Thread) -> None:
        """Waits for two rounds: the first of them may have been almost done."""
        wanted, until = self.round() + 2, time.monotonic() + LIMIT
        while self.round() < wanted:
            assert submitter.is_alive(), self.deeds
            assert time.monotonic() < until, self.deeds
            time.sleep(0.05)

    @contextmanager
    def without_a_node(self, how: str) -> Iterator[None]:
        """Kills or freezes a node, for a while."""
        node = self.draw.randrange(len(self.federation.nodes))
        self.deeds.append(f"{how} node {node}")
        if how == "kill":
            kill_node(self.federation, node)
            yield
            start_node(self.federation, node)
        else:
            freeze_node(self.federation, node)
            yield
            thaw_node(self.federation, node)

    def kill_server(self, part: str) -> None:
        """Kills the ServerApp alone, or the SuperLink with it."""
        self.deeds.append(f"kill the {part}")
        if part == "ServerApp":
            assert kill_serverapp(self.federation), self.deeds
        else:
            kill_superlink(self.federation)
            self.federation.start_superlink()


@contextmanager
def persisting(federation: LocalFederation, project: Path) -> Iterator[threading.Thread]:
    """Somebody who submits the run again whenever its server has died; stops it in the end."""
    said: list[str] = []
    thread = threading.Thread(
        target=lambda: submit_until_done(federation.control, project, {}, 20, said.append),
        daemon=True,
    )
    thread.start()
    yield thread
    for run in federation.control.runs():
        if not run.over:
            federation.control.stop(run.run)
    thread.join(timeout=LIMIT)
    assert not thread.is_alive(), said[-5:]


@pytest.mark.slow(minutes=3)
@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold"])
def test_chaos(tmp_path: Path, algorithm: str) -> None:
    """Nodes and servers die; every round counts once, with the clients that answered."""
    plan: dict[str, Any] = {"rounds": 100_000, "clients_per_round": 24, "evaluate_every": 100_000}
    plan["dtype"] = "float64"  # or rounding adds up
    settings = settings_of("synthetic", algorithm, clients=240, **plan)
    data = settings.task.load(settings.options)
    out = tmp_path / "run"
    terms = {"min_nodes": 4, "timeout": patience(), "min_answers": 8}
    with federate(tmp_path, data, nodes=4) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        chaos = Chaos(federation, out, seed=1)
        with persisting(federation, project) as submitter:
            chaos.goes_on(submitter)
            for how, server in DEEDS:
                with chaos.without_a_node(how):
                    chaos.goes_on(submitter)
                    chaos.kill_server(server)
            chaos.goes_on(submitter)
    done = checkpoint.standing(out / CHECKPOINT).round
    lines = read_rounds(out / ROUNDS)[:done]
    assert [line["round"] for line in lines] == list(range(1, done + 1)), chaos.deeds
    assert any(line["dropped"] for line in lines), chaos.deeds
    assert not any(line["refused"] for line in lines)
    as_far = replace(settings, plan=replace(settings.plan, rounds=done))
    assert difference(out, as_far, data, lines=lines) <= 1e-9, chaos.deeds


@pytest.mark.slow(minutes=1)
def test_a_clientapp_that_is_killed_alone_costs_its_node_one_answer(tmp_path: Path) -> None:
    """The node says so at once, and answers again in the next round."""
    settings = settings_of("synthetic", "fedsubavg", clients=8, rounds=1_000, clients_per_round=8)
    data = settings.task.load(settings.options)
    out, killed = tmp_path / "run", 0
    terms = {"min_nodes": 2, "timeout": 45.0, "min_answers": 1}  # flwr notices after a minute
    with federate(tmp_path, data, nodes=2) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        run, until = federation.control.submit(project, {}), time.monotonic() + LIMIT
        while killed < 8 and time.monotonic() < until:
            lines = read_rounds(out / ROUNDS) if (out / ROUNDS).exists() else []
            if lines and not lines[-1]["dropped"] and kill_clientapp(federation, 1):
                killed += 1
                while len(read_rounds(out / ROUNDS)) < len(lines) + 2:
                    assert time.monotonic() < until
                    time.sleep(0.02)
        federation.control.stop(run)
    assert killed == 8
    reasons = {why for line in read_rounds(out / ROUNDS) for why in line["dropped"]}
    assert reasons
    assert not any("in time" in why for why in reasons), reasons


PRIVATE = {"privacy": "index", "index_epsilon": "", "index_epsilon_for_ever": ""}


@pytest.mark.slow(minutes=1)
def test_a_private_federation_equals_the_simulation(tmp_path: Path) -> None:
    """Heat, labels, union and updates through secure sums, each message in a process of its own."""
    settings = settings_of(
        "synthetic", "fedsubavg", clients=40, rounds=2, clients_per_round=12, cap="cohort",
        weighting="uniform", start="counted",  # private heat counts clients
    )  # fmt: skip
    data = settings.task.load(settings.options)
    out = tmp_path / "run"
    terms = {**PRIVATE, "min_contributors": 1, "min_nodes": 3, "timeout": LIMIT}
    with federate(tmp_path, data, nodes=3) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        assert (
            federation.wait(federation.control.submit(project, {}), LIMIT) == "finished:completed"
        )
    assert [line["answered"] for line in read_rounds(out / ROUNDS)] == [12, 12]
    assert difference(out, settings, data, bounds={}) <= 1e-5


def sums_of(state: Path) -> Iterator[tuple[str, str, int]]:
    """A node's sums: their names, what they are for, and how many requests each has had."""
    for half in state.glob("*/sums/*/half"):
        with suppress(OSError, ValueError):
            use = json.loads((half.parent / "facts.json").read_text())["use"]
            yield half.parent.name, use, len(unpack(half.read_bytes())) - 1


def killed_in(
    federation: LocalFederation, node: int, use: str, phase: int, known: set[str]
) -> set[str]:
    """Kills a node as soon as it has got a phase's request in a sum that is not known yet.

    Returns the names of the sums that the node knows then.
    """
    state = Path(str(federation.nodes[node].config["state"]))
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        for name, its, requests in sums_of(state):
            if name not in known and its == use and requests == phase:
                kill_node(federation, node)
                return {one for one, _, _ in sums_of(state)}
        time.sleep(0.01)
    raise AssertionError(f"phase {phase} of {use} never came")


VICTIM = 3


@pytest.mark.slow(minutes=2)
def test_a_node_killed_in_a_phase_of_every_sum(tmp_path: Path) -> None:
    """Each kill costs the node its part in that sum, and nobody else anything.

    `test_private_fleet.py` has every sum in every phase, with a node that is silent.
    """
    settings = settings_of("synthetic", "fedsubavg", clients=40, rounds=1_000, clients_per_round=12)
    data = settings.task.load(settings.options)
    out, project = tmp_path / "run", tmp_path / "project"
    with federate(tmp_path, data, nodes=4) as federation:
        terms = {**PRIVATE, "min_contributors": 1, "min_nodes": 4, "min_answers": 1}
        terms["timeout"] = patience()
        write_project(project, settings, terms, out, tmp_path / "data")
        run = federation.control.submit(project, {})
        known: set[str] = set()
        for use, phase in (("heat", 1), ("union", 3), ("update", 5)):
            known = killed_in(federation, VICTIM, use, phase, known)
            before, until = len(read_rounds(out / ROUNDS)), time.monotonic() + LIMIT
            start_node(federation, VICTIM)
            while len(read_rounds(out / ROUNDS)) <= before:
                assert time.monotonic() < until, (use, phase)
                time.sleep(0.1)
        assert federation.control.look(run).status == "running"
        federation.control.stop(run)
        federation.wait(run, LIMIT)
    lines = read_rounds(out / ROUNDS)
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
