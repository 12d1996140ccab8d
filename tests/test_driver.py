"""The loop of every run: what is measured, saved and told, and in which order."""

from __future__ import annotations

import errno
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from deployed import examples

from fedrows.algorithms.fedavg import FedAvg
from fedrows.errors import MemoryShortageError, NotFiniteError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.driver import InFolder, InMemory, drive
from fedrows.runs.folder import CHECKPOINT, RunFolder
from fedrows.runs.resume import begin, drop_later_lines, go_back_
from fedrows.simulation import Simulation
from fedrows.study import Study
from fedrows.watch.observer import RoundReport

DATA = examples()


def simulation(rounds: int = 5, **more: Any) -> Simulation:
    usual = {"evaluate_every": 2, "clients_per_round": 3, "local_steps": 2, "device": "cpu"}
    plan = Plan(rounds=rounds, **{**usual, **more})
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


def test_a_loss_that_is_not_finite_ends_the_run_before_it_is_kept() -> None:
    run, keeper, told = simulation(), InMemory(), Told()
    measure = run.evaluate
    run.evaluate = lambda: measure() | {"train_loss": math.nan}
    with pytest.raises(
        NotFiniteError, match=r"after round 2 the training loss .* lower lr, .* 0\.1"
    ):
        drive(run, keeper, [told])
    assert told.events == [1]
    assert keeper.lines() == []


def exploding(run: Simulation, losses: list[float]) -> None:
    """Lets the evaluations of a run, one a round, come to these losses."""
    measure = run.evaluate
    run.evaluate = lambda: measure() | {"train_loss": losses[run.progress.round - 1]}


@pytest.mark.parametrize(
    ("losses", "ends"),
    [
        ([0.7, 1.0, 200.0, 300.0, 1.0], 4),  # twice in a row
        ([0.7, 200.0, 1.0, 300.0, 1.0], None),  # never twice in a row
        ([1e-6, 1e-3, 1e-2, 0.1, 1.0], None),  # near 0 to begin with
        ([5e3, 1e4, 4e5, 4e5, 4e5], None),  # in large units
        ([5e3, 1e4, 6e5, 6e5, 1.0], 4),
    ],
)
def test_a_loss_that_explodes_ends_the_run(
    losses: list[float], ends: int | None, tmp_path: Path
) -> None:
    folder, run = RunFolder.create(tmp_path / "run", "run", {}), simulation(5, evaluate_every=1)
    begin(folder, run, {})
    exploding(run, losses)
    if ends is None:
        assert drive(run, InFolder(folder, run, 0))
        return
    said = rf"fed\w+ diverged: after round {ends} the training loss is .* lower lr, which is 0\.1"
    with pytest.raises(NotFiniteError, match=said):
        drive(run, InFolder(folder, run, 0))
    assert checkpoint.standing(folder.path / CHECKPOINT).round == ends - 2  # the last good one


def test_a_run_goes_on_if_it_is_told_to() -> None:
    run, keeper = simulation(5, evaluate_every=1, go_on=True), InMemory()
    exploding(run, [0.7, 200.0, 300.0, math.nan, 1.0])
    assert drive(run, keeper)
    assert len(keeper.lines()) == 5


def test_a_model_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    folder, run = RunFolder.create(tmp_path / "run", "run", {}), simulation()
    begin(folder, run, {})
    next(iter(run))
    run.progress.params.dense["bias"].fill_(-math.inf)
    with pytest.raises(NotFiniteError, match="dense tensor 'bias' is not finite"):
        drive(run, InFolder(folder, run, 0))
    assert checkpoint.standing(folder.path / CHECKPOINT).round == 0


def test_a_study_has_empty_lines_where_a_run_diverged(tmp_path: Path) -> None:
    plan = {"rounds": 25, "evaluate_every": 10, "lr": 1e38, "clients_per_round": 5}
    data = {"clients": 30, "items": 20, "examples_per_client": 8}
    [run] = Study.grid("synthetic", ["fedsubavg"], [0], plan=plan, data=data).run(tmp_path, 1)
    assert [line["round"] for line in run.lines] == [10, 20, 25]
    assert {line["train_loss"] for line in run.lines} == {None}


def test_errors_that_are_not_about_memory_stay_what_they_are() -> None:
    run = simulation()
    for error in (RuntimeError("shapes differ"), ValueError("odd"), OSError(28, "full")):
        run.evaluate = Mock(side_effect=error)
        with pytest.raises(type(error)) as caught:
            drive(run, InMemory())
        assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
        torch.OutOfMemoryError("CUDA out of memory."),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
)
def test_memory_that_is_short_says_what_to_lower(error: Exception) -> None:
    run = simulation()
    run.evaluate = Mock(side_effect=error)
    with pytest.raises(MemoryShortageError, match=r"lower clients-per-round \(now 3\), batch-size"):
        drive(run, InMemory())
