"""Whether this process is one of several, what it takes of the machine, and what needs one."""

from __future__ import annotations

import os
import threading

import pytest
import torch
from threads import Module, Threads, federation, plan_of

from fedrows import cli
from fedrows.algorithms.centralsgd import CentralSGD
from fedrows.algorithms.fedavg import FedAvg
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.privacy.options import Privacy
from fedrows.simulation import Simulation
from fedrows.simulator import process_group
from fedrows.simulator.simulated_fleet import SimulatedFleet


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes to be the first of two."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    everyone = Threads(0, 2, [], threading.Barrier(2))
    monkeypatch.setattr(everyone, "speaks", lambda: True)
    monkeypatch.setattr(process_group, "join", lambda: everyone)
    monkeypatch.setattr(process_group, "cores", torch.get_num_threads)  # later tests have as many


@pytest.mark.usefixtures("two")
def test_what_has_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    data = federation()
    with pytest.raises(PlanError, match="centralsgd trains in one place, but 2 processes"):
        Simulation(data, Logistic(data), CentralSGD(), plan_of())
    with pytest.raises(PlanError, match="A private run has one process"):
        Simulation(data, Logistic(data), FedAvg(), plan_of(), Privacy.of("index"))
    with pytest.raises(PlanError, match="Mapped tables have one process"):
        Simulation(data, Logistic(data), FedAvg(), plan_of(tables="mapped"))
    assert cli.main(["compare", "synthetic"]) == 2
    assert "fedrows: compare has one process" in capsys.readouterr().err


def test_a_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "two")
    with pytest.raises(PlanError, match="WORLD_SIZE is 'two', but must be a whole number"):
        process_group.several()


@pytest.mark.usefixtures("two")
def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(PlanError, match="2 processes were started on a machine with 1 GPU"):
        process_group.device_of(torch.device("cuda"))


def test_one_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not process_group.several()
    assert process_group.rank() == 0
    monkeypatch.setattr(process_group, "join", lambda: pytest.fail("nobody to join"))
    simulation = Simulation(federation(), Lifted(Module(40), federation()), FedAvg(), plan_of())
    assert simulation.leads
    assert type(simulation.fleet) is SimulatedFleet
    assert not torch.distributed.is_initialized()


def test_a_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert process_group.cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert process_group.cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")
    assert process_group.cores() == 1
