"""Federations over a real network: Flower's SuperLink and SuperNodes, as processes on loopback."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
import safetensors.torch
import torch

from fedrows import catalogue
from fedrows.cli import main
from fedrows.cli.settings import choose
from fedrows.data.federation import FederatedData
from fedrows.flower.demo import federate, write_project
from fedrows.flower.deployment import ROUNDS
from fedrows.flower.launch.federation import LocalFederation
from fedrows.flower.launch.resubmit import submit_until_done
from fedrows.privacy.messages import unpack
from fedrows.report.exchange import read_rounds
from fedrows.runs.folder import CHECKPOINT, read_lines
from fedrows.runs.settings import Settings


def settings_of(task: str, algorithm: str, **typed: Any) -> Settings:
    words = {"device": "cpu", **{name: str(value) for name, value in typed.items()}}
    return choose(catalogue.task(task), [algorithm], words)[algorithm]


def model_of(path: Path) -> dict[str, torch.Tensor]:
    found = safetensors.torch.load_file(path / CHECKPOINT)
    return {name: x for name, x in found.items() if name.startswith("model/")}


def difference(path: Path, settings: Settings, data: FederatedData) -> float:
    simulation = settings.simulation(data)
    for _ in simulation:
        pass
    wanted, found = simulation.tensors(), model_of(path)
    return max(float((x - wanted[name]).abs().max()) for name, x in found.items())


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


@pytest.mark.slow
def test_deployed_is_simulated_on_movielens(tmp_path: Path, data_folder: Path) -> None:
    task = catalogue.task("movielens")
    data = task.load(task.options())
    with federate(tmp_path, data, nodes=4) as federation:
        for algorithm in ("fedsubavg", "fedprox", "scaffold", "fedadam"):
            settings = settings_of("movielens", algorithm, rounds=5, evaluate_every=5)
            out = tmp_path / algorithm
            project = write_project(
                tmp_path / f"{algorithm}-project",
                settings,
                {"min_nodes": 4},
                out,
                tmp_path / "data",
            )
            status = federation.wait(federation.submit(project, {}), 300)
            assert status == "finished:completed"
            lines = read_rounds(out / ROUNDS)
            assert [line["answered"] for line in lines] == [50] * 5
            assert all(line["messages"] <= 4 for line in lines)  # one exchange with each node
            if algorithm == "fedsubavg":
                settings = settings_of("movielens", algorithm, rounds=5, cap=100)
            assert difference(out, settings, data) <= 1e-5


@pytest.mark.slow
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
        run = federation.submit(example, config)
        assert federation.wait(run, 180) == "finished:completed"
    assert [line["answered"] for line in read_rounds(out / ROUNDS)] == [20] * 3


class Chaos:
    """Kills and freezes nodes, and kills the server, while a run goes on."""

    def __init__(self, federation: LocalFederation, out: Path, seed: int) -> None:
        self.federation, self.out = federation, out
        self.draw = random.Random(seed)
        self.frozen: set[int] = set()
        self.dead: set[int] = set()
        self.deeds: list[str] = []

    def round(self) -> int:
        lines = read_rounds(self.out / ROUNDS)
        return lines[-1]["round"] if lines else 0

    def repair(self) -> None:
        for node in list(self.frozen):
            self.federation.thaw_node(node)
            self.frozen.discard(node)
        for node in list(self.dead):
            self.federation.start_node(node)
            self.dead.discard(node)

    def harm_a_node(self) -> None:
        node = self.draw.randrange(len(self.federation.nodes))
        if self.draw.random() < 0.5:
            self.federation.kill_node(node)
            self.dead.add(node)
            self.deeds.append(f"killed node {node}")
        else:
            self.federation.freeze_node(node)
            self.frozen.add(node)
            self.deeds.append(f"froze node {node}")

    def harm_the_server(self) -> None:
        if self.draw.random() < 0.5 and self.federation.kill_serverapp():
            self.deeds.append("killed the ServerApp")
            return
        self.federation.kill_superlink()
        time.sleep(1)
        self.federation.start_superlink()
        self.deeds.append("killed the SuperLink")


@contextmanager
def persisting(federation: LocalFederation, project: Path) -> Iterator[threading.Thread]:
    """Somebody who submits the run again whenever its server has died."""
    said: list[str] = []
    thread = threading.Thread(
        target=lambda: submit_until_done(federation.control, project, {}, 20, said.append),
        daemon=True,
    )
    thread.start()
    yield thread
    thread.join(timeout=60)
    assert not thread.is_alive(), said[-5:]


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold"])
def test_chaos(tmp_path: Path, algorithm: str) -> None:
    """Nodes and servers die all the time; every round completes, and counts once."""
    plan: dict[str, Any] = {"rounds": 20, "clients_per_round": 24, "evaluate_every": 20}
    if algorithm == "fedsubavg":
        plan["cap"] = 100  # what deployments have
    settings = settings_of("synthetic", algorithm, clients=240, **plan)
    data = settings.task.load(settings.options)
    out = tmp_path / "run"
    terms = {"min_nodes": 6, "timeout": 8.0, "min_answers": 8}
    with federate(tmp_path, data, nodes=6) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        chaos, hurt, server = Chaos(federation, out, seed=1), 0, [5, 10, 15]
        with persisting(federation, project) as thread:
            until = time.monotonic() + 900
            while thread.is_alive() and time.monotonic() < until:
                at = chaos.round()
                if at >= hurt + 2:
                    hurt = at
                    chaos.repair()
                    chaos.harm_a_node()
                if server and at >= server[0]:
                    server.pop(0)
                    chaos.harm_the_server()
                time.sleep(0.3)
            chaos.repair()
    lines = read_rounds(out / ROUNDS)
    assert [line["round"] for line in lines] == list(range(1, 21)), chaos.deeds
    assert not server, chaos.deeds
    assert any(line["dropped"] for line in lines), chaos.deeds
    assert not any(line["refused"] for line in lines)
    [line] = read_lines(out / "metrics.jsonl")[-1:]
    losses = []
    for seed in range(5):
        calm = settings_of("synthetic", algorithm, clients=240, seed=seed, **plan)
        simulation = calm.simulation(data)
        for _ in simulation:
            pass
        losses.append(simulation.evaluate()["train_loss"])
    spread = max(losses) - min(losses)
    assert min(losses) - spread <= line["train_loss"] <= max(losses) + spread


PRIVATE = {"privacy": "index", "index_epsilon": "", "index_epsilon_for_ever": ""}


@pytest.mark.slow
def test_a_private_federation_equals_the_simulation(tmp_path: Path) -> None:
    """Heat, union and updates through secure sums, each message in a process of its own."""
    settings = settings_of(
        "synthetic", "fedsubavg", clients=40, rounds=2, clients_per_round=12, cap=100
    )
    data = settings.task.load(settings.options)
    out = tmp_path / "run"
    terms = {**PRIVATE, "min_contributors": 1, "min_nodes": 3, "timeout": 60.0}
    with federate(tmp_path, data, nodes=3) as federation:
        project = write_project(tmp_path / "project", settings, terms, out, tmp_path / "data")
        assert federation.wait(federation.submit(project, {}), 240) == "finished:completed"
    assert [line["answered"] for line in read_rounds(out / ROUNDS)] == [12, 12]
    assert difference(out, settings, data) <= 1e-5


def sums_of(state: Path) -> Iterator[tuple[str, str, int]]:
    """A node's sums: their names, what they are for, and how many requests each has had."""
    for half in state.glob("*/sums/*/half"):
        with suppress(OSError, ValueError):
            use = json.loads((half.parent / "facts.json").read_text())["use"]
            yield half.parent.name, use, len(unpack(half.read_bytes())) - 1


def killed_in(
    federation: LocalFederation, node: int, use: str, phase: int, known: set[str]
) -> None:
    """Kills a node as soon as it has got a phase's request in a sum that is not known yet."""
    state = Path(str(federation.nodes[node].config["state"]))
    until = time.monotonic() + 300
    while time.monotonic() < until:
        for name, its, requests in sums_of(state):
            if name not in known and its == use and requests == phase:
                federation.kill_node(node)
                return
        time.sleep(0.01)
    raise AssertionError(f"phase {phase} of {use} never came")


@pytest.mark.slow
@pytest.mark.parametrize("use", ["heat", "union", "update"])
def test_a_node_killed_in_any_phase_of_a_sum(tmp_path: Path, use: str) -> None:
    """Each kill costs the node its part in that sum, and nobody else anything."""
    count = 1 if use == "heat" else 1_000  # heat is counted at the start of a run only
    settings = settings_of("synthetic", "fedsubavg", clients=40, rounds=count, clients_per_round=12)
    data = settings.task.load(settings.options)
    terms = {**PRIVATE, "min_contributors": 1, "min_nodes": 4, "timeout": 12.0, "min_answers": 1}
    victim, runs, out = 3, list[int](), tmp_path / "none"
    with federate(tmp_path, data, nodes=4) as federation:
        state = tmp_path / "state" / f"node-{victim}"
        for phase in range(1, 6):
            known = {name for name, _, _ in sums_of(state)}
            if not runs or use == "heat":
                out, project = tmp_path / f"run-{phase}", tmp_path / f"project-{phase}"
                write_project(project, settings, terms, out, tmp_path / "data")
                runs.append(federation.submit(project, {}))
            before = len(read_rounds(out / ROUNDS))
            killed_in(federation, victim, use, phase, known)
            federation.start_node(victim)
            until = time.monotonic() + 300
            while len(read_rounds(out / ROUNDS)) <= before and time.monotonic() < until:
                time.sleep(0.3)
            assert len(read_rounds(out / ROUNDS)) > before, (use, phase)
            if use == "heat":
                assert federation.wait(runs[-1], 120) == "finished:completed"
        assert use == "heat" or federation.status(runs[-1]) == "running"
    lines = read_rounds(out / ROUNDS)
    assert [line["round"] for line in lines] == list(range(1, len(lines) + 1))
