"""Asynchronous deployments whose processes are killed: every accepted update is applied once."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asynchronous import Held, deployment
from deployed import examples

pytest.importorskip("flwr")

from benchmarks.async_chaos import LEFT, Chaos, chaos, checked
from fedrows.errors import FedrowsError
from fedrows.flower.journal import ROUNDS, Journal, carry_out
from fedrows.report.exchange import read_rounds
from fedrows.watch import Observers

LIMIT = 600.0  # seconds, which only a failure takes
STEPS, BUFFER, NODES = 200, 4, 6
DATA = examples(clients=24)
# Forked from a process that has imported things and no more: one with threads would hang.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "test_async_chaos"])


def serve(path: Path, nodes: Path, seed: int) -> None:
    """A server with its nodes, which answer in a random order, and one answer in ten is lost."""
    draw, transport = random.Random(seed), Held()
    importlib.import_module("torch").set_num_threads(1)
    transport.release = lambda waiting: draw.sample(sorted(waiting), min(1, len(waiting)))
    transport.meddle = lambda node, answer: (
        "it was killed" if draw.random() < 0.1 and b"trained" in answer[:200] else answer
    )
    transport.wait = lambda seconds: None  # type: ignore[method-assign]
    terms: dict[str, Any] = {"rounds": STEPS, "buffer": BUFFER, "concurrency": 12}
    run = deployment(DATA, nodes, transport, shards=NODES, evaluate_every=STEPS, **terms)
    with Journal.opened(path, run) as journal:
        carry_out(run, journal, Observers())
    os._exit(0)


@pytest.mark.slow(minutes=1)
def test_two_hundred_steps_of_a_server_that_is_killed_again_and_again(tmp_path: Path) -> None:
    """SIGKILL at random moments, at least ten of them, while nodes lose answers."""
    path, draw, kills, since = tmp_path / "run", random.Random(0), 0, time.monotonic()

    def steps() -> int:
        lines = read_rounds(path / ROUNDS)
        return lines[-1]["round"] if lines else 0

    for seed in range(1000):
        child = FORKS.Process(target=serve, args=(path, tmp_path / "nodes", seed))
        child.start()
        wanted = steps() + draw.randint(1, 25)
        while child.is_alive() and (steps() < wanted or wanted > STEPS):
            assert time.monotonic() - since < LIMIT
            time.sleep(0.02)
        time.sleep(draw.random() * 0.02)  # anywhere in a step
        if child.is_alive():
            os.kill(child.pid or 0, signal.SIGKILL)
            kills += 1
        child.join()
        if child.exitcode == 0:
            break
    assert kills >= 10
    found = checked(path, DATA, STEPS, BUFFER)
    assert found["applied_once"] == STEPS * BUFFER
    assert found["clients_lost"] > 10


class NeverReady:
    """A federation whose nodes start until they are killed again."""

    def __init__(self, nodes: int) -> None:
        self.nodes = range(nodes)
        self.killed = {node: threading.Event() for node in self.nodes}
        self.groups: dict[int, SimpleNamespace] = {}
        for node in self.nodes:
            self.begin_node(node)

    def begin_node(self, node: int) -> None:
        self.killed[node].clear()
        self.groups[node] = SimpleNamespace(kill=self.killed[node].set)

    def wait_for_node(self, node: int) -> None:
        self.killed[node].wait()
        raise FedrowsError("It was killed.")

    def group(self, node: int) -> SimpleNamespace:
        if node not in self.groups:
            raise FedrowsError("It is dead.")
        return self.groups[node]


def test_kills_go_on_while_nodes_start(tmp_path: Path) -> None:
    federation: Any = NeverReady(6)
    deeds, since = Chaos(federation, tmp_path, seed=0), time.monotonic()
    deeds.kill_nodes(0.01)
    while deeds.early < 8:
        assert time.monotonic() - since < LIMIT
        time.sleep(0.01)
    assert len(deeds.ready) == LEFT
    closing = threading.Thread(target=deeds.close)
    closing.start()
    while closing.is_alive():
        for killed in federation.killed.values():
            killed.set()
        closing.join(0.01)
    assert len(deeds.kills) == deeds.early + len(federation.nodes) - LEFT


@pytest.mark.slow(minutes=2)
def test_chaos_in_a_real_federation(tmp_path: Path) -> None:
    """Nodes, the ServerApp and the SuperLink are killed; `benchmarks/async_chaos.py` has more."""
    found = chaos(tmp_path, nodes=4, steps=16, every=5.0, servers=2, limit=LIMIT)
    assert found["server_kills"] == ["ServerApp", "SuperLink"]
    assert found["node_kills"] > 1
    assert found["applied_once"] == 16 * found["buffer"]
