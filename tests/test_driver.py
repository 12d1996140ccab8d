"""The loop of every run: what is measured, saved and told, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from deployed import examples

from fedrows.algorithms.fedavg import FedAvg
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.runs.driver import InFolder, InMemory, drive
from fedrows.runs.folder import RunFolder
from fedrows.runs.resume import begin, drop_later_lines, go_back_
from fedrows.simulation import Simulation
from fedrows.watch.observer import RoundReport

DATA = examples()


def simulation(rounds: int = 5) -> Simulation:
    plan = Plan(rounds=rounds, evaluate_every=2, clients_per_round=3, local_steps=2, device="cpu")
    return Simulation(DATA, Logistic(DATA), FedAvg(), plan)


class Told:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def round(self, report: RoundReport) -> None:
        self.events.append(report.round)

    def measured(self, line: Mapping[str, Any]) -> None:
        self.events.append(f"measured {line['round']}")

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.events.append(name)


def test_every_second_round_and_the_last_are_measured_before_they_are_told() -> None:
    keeper, told = InMemory(), Told()
    assert drive(simulation(), keeper, [told])
    assert told.events == [1, "measured 2", 2, 3, "measured 4", 4, "measured 5", 5]
    assert [line["round"] for line in keeper.lines()] == [2, 4, 5]


def test_a_run_that_is_asked_to_stop_is_saved_and_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    whole, told = simulation(), Told()
    drive(whole, InMemory())
    folder, first = RunFolder.create(tmp_path / "run", "run", {}), simulation()
    begin(folder, first, {})
    assert not drive(first, InFolder(folder, first, 1e9), [told], lambda: first.progress.round == 3)
    assert told.events == [1, "measured 2", 2, "saved", 3]
    second = simulation()
    go_back_(second, folder)
    drop_later_lines(second, folder)
    assert drive(second, InFolder(folder, second, 1e9))
    assert [line["round"] for line in folder.lines()] == [2, 4, 5]
    tensors = second.tensors()
    assert all(torch.equal(x, tensors[name]) for name, x in whole.tensors().items())


def test_a_run_without_privacy_left_ends_measured_and_says_why() -> None:
    run, keeper, told = simulation(), InMemory(), Told()

    def spent() -> bool:
        run.stopped = "ε is spent" if run.progress.round == 3 else ""
        return not run.stopped

    run._may_go_on = spent
    assert drive(run, keeper, [told])
    assert told.events == [1, "measured 2", 2, 3, "stopped", "measured 3"]


def test_a_run_that_was_stopped_at_what_is_now_its_end_is_measured_there() -> None:
    run, keeper = simulation(3), InMemory()
    for _ in run:
        pass
    assert drive(run, keeper)
    assert [line["round"] for line in keeper.lines()] == [3]
