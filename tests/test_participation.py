"""Who comes in how often without waiting, and what heat, caps and files of devices make of it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from fedrows import catalogue
from fedrows.__main__ import main
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.client import Upload
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import AsyncRounds
from fedrows.simulator.devices import read
from fedrows.simulator.virtual_time import mean_wait

CLIENTS = 60


@pytest.fixture(scope="module")
def data() -> FederatedData:
    task = catalogue.task("synthetic")
    return task.load(task.options(clients=CLIENTS, items=40, examples_per_client=8))


def uneven(path: Path) -> str:
    """Every second device is 20 times as slow, and every third drops out half of the time."""
    rows = [f"{i},{50 / (20 if i % 2 else 1)},{0.5 if i % 3 == 0 else 0}" for i in range(CLIENTS)]
    path.write_text("\n".join(["client,speed,dropout", *rows]), "utf-8")
    return str(path)


def test_the_mean_wait_by_hand() -> None:
    """Ten clients of one second and five at a time: each waits as long as it works."""
    one = torch.ones(10, dtype=torch.float64)
    assert mean_wait(one, one, 5) == pytest.approx(1.0)
    assert mean_wait(one, one, 2) == pytest.approx(4.0)
    assert mean_wait(one, one, 10) == 0.0
    assert mean_wait(one, one / 2, 4) == pytest.approx(0.25)  # five are there, four work


def test_clients_come_in_as_often_as_heat_expects(
    data: FederatedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over many steps, against the expectation; half of all are under way."""
    plan = Plan(
        rounds=600, clients_per_round=4, local_steps=1, device="cpu", mode="async", buffer=4,
        concurrency=30, clock=uneven(tmp_path / "devices.csv"),
    )  # fmt: skip
    made = Simulation(data, Logistic(data), FedSubAvg(), plan)
    schedule, came = made.schedule, Counter[int]()
    assert isinstance(schedule, AsyncRounds)
    arrived = schedule.arrived

    def counted(number: int, upload: Upload | None) -> Upload:
        found = arrived(number, upload)
        came.update(found.clients.tolist())
        return found

    monkeypatch.setattr(schedule, "arrived", counted)
    for _ in made:
        pass
    expected = schedule.participation().numpy()
    counts = np.array([came[i] for i in range(CLIENTS)])
    for group in range(6):  # by slowness and drop-out
        share, wanted = (x[group::6].sum() / x.sum() for x in (counts, expected))
        assert share == pytest.approx(wanted, rel=0.15)
    slow, fast = counts[1::6].sum(), counts[2::6].sum()  # neither drops out
    assert fast > 2 * slow  # so that the expectation says something
    weights = made.simulated.weights * schedule.participation()
    assert made.fleet.heat()["weight"].total == pytest.approx(float(weights.sum()))


def test_devices_that_are_all_alike_come_in_alike(data: FederatedData) -> None:
    plan = Plan(clock="constant", mode="async", clients_per_round=4, concurrency=20, device="cpu",
                batches="draw")  # fmt: skip
    made = Simulation(data, Logistic(data), FedSubAvg(), plan)
    assert made.schedule is not None
    share = made.schedule.participation()
    assert float(share.min()) > 0.95  # they differ by the rows that they send
    assert float(share.max()) == 1.0


def test_the_cap_of_a_cohort_is_that_of_the_buffer(data: FederatedData) -> None:
    plan = {"clients_per_round": 20, "device": "cpu"}
    capped = FedSubAvg(cap="cohort")
    waits = Simulation(data, Logistic(data), capped, Plan(**plan))
    steps = Simulation(data, Logistic(data), capped, Plan(**plan, mode="async", buffer=5))
    assert (waits.algorithm.cap, steps.algorithm.cap) == (20, 5)


def test_a_small_federation_may_have_a_small_buffer(data: FederatedData) -> None:
    """clients-per-round is for mode sync: more than there are clients do no harm here."""
    plan = Plan(rounds=2, clients_per_round=100, device="cpu", mode="async", buffer=5)
    made = Simulation(data, Logistic(data), FedSubAvg(), plan)
    assert [progress.round for progress in made] == [1, 2]


def test_two_rows_for_a_client_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "devices.csv"
    path.write_text("client,speed\n0,1\n1,1\n0,2\n", "utf-8")
    with pytest.raises(DataError, match=r"Line 4 .* is a second row for client 0: give each"):
        read(path, 2, 0, None)


BAD = {
    "client,speed\n0,-1\n": "speed is '-1', but must be a finite number above 0.",
    "client,speed\n0,50\n": "has no speed for client 1: give each client a row, 59 of 60 lack one.",
    "client,speed,hours\n0,50,0\n": "or its client is never there.",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_table_of_devices_ends_a_run_before_it_leaves_anything(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, out = tmp_path / "devices.csv", tmp_path / "run"
    clock.write_text(text, "utf-8")
    words = ["run", "synthetic", "--clients", "60", "--items", "40", "--clients-per-round", "5"]
    code = main([*words, "--clock", str(clock), "--rounds", "2", "--out", str(out)])
    said = " ".join(capsys.readouterr().err.split())
    assert code != 0
    assert BAD[text].replace(" ", "") in said.replace(" ", "")
    assert "Traceback" not in said
    assert not out.exists()


def test_the_line_and_the_table_of_a_run_with_a_clock_have_virtual_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "synthetic", "--clients", "60", "--items", "40", "--clients-per-round", "5"]
    words += ["--rounds", "2", "--out", str(tmp_path / "run")]
    assert main([*words, "--clock", "heavy-tail"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"rounds/s  [\d.,]+ virtual s\n", said)
    assert "Client hours  Wasted hours" in said
    assert main([*words[:-1], str(tmp_path / "other")]) == 0
    assert "irtual" not in capsys.readouterr().out


def test_a_comparison_in_virtual_time_leaves_out_who_cannot_before_anyone_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["compare", "synthetic", "--clients", "60", "--items", "40", "--rounds", "2"]
    words += ["--clients-per-round", "5", "--seeds", "1", "--mode", "async", "--clock", "constant"]
    assert main([*words, "--out", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert said.count("Left out") == 2
    assert "Left out centralsgd: mode is async and clock is constant, but centralsgd trains" in said
    assert "Left out scaffold: mode is async, but scaffold keeps a state" in said
    named = [*words, "--algorithms", "fedavg,scaffold", "--out", str(tmp_path / "named")]
    assert main(named) == 2
    assert "choose mode sync, or another algorithm" in capsys.readouterr().err
    assert not (tmp_path / "named").exists()
