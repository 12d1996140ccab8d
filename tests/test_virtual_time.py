"""Virtual time: clocks, deadlines, and rounds that do not wait, against slow twins."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.algorithm import Round
from fedrows.algorithms.fedavg import FedAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, FedrowsError, PlanError, RunFolderError, UnknownNameError
from fedrows.models import mf
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.rows.params import Params, take
from fedrows.runs import checkpoint
from fedrows.server import begin
from fedrows.simulation import Simulation
from fedrows.simulator import devices
from fedrows.simulator.asynchronous import AsyncRounds
from fedrows.simulator.devices import ROW, UpdateWork, drawn, read
from fedrows.simulator.simulated_fleet import SimulatedFleet
from fedrows.simulator.virtual_time import WaitingRounds, work_of
from tests.ranked import positives

KINDS = {name: catalogue.algorithm(name) for name in catalogue.names("algorithm")}
ADDITIVE = [name for name, of in KINDS.items() if of.additive and not of.pooled]
Run = Callable[..., Simulation]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    task = catalogue.task("synthetic")
    return task.load(task.options(clients=60, items=40, examples_per_client=8))


@pytest.fixture(scope="module")
def run(data: FederatedData) -> Run:
    def simulation(algorithm: str = "fedsubavg", to: int = 8, **plan: object) -> Simulation:
        plan = {"rounds": 8, "clients_per_round": 6, "device": "cpu", "dtype": "float64", **plan}
        made = Simulation(data, Logistic(data), catalogue.algorithm(algorithm)(), Plan(**plan))
        for progress in made:
            if progress.round == to:
                break
        return made

    return simulation


def same(a: Simulation, b: Simulation) -> bool:
    return all(torch.equal(x, b.tensors()[name]) for name, x in a.tensors().items())


ASYNC = {"mode": "async", "clock": "heavy-tail", "buffer": 4, "concurrency": 20}


@pytest.mark.parametrize("algorithm", [*ADDITIVE, "fedadam", "rowadam", "steppedmean"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_delay_it_is_the_synchronous_run(run: Run, algorithm: str, dtype: str) -> None:
    alike = run(algorithm, mode="async", concurrency=6, dtype=dtype)
    assert same(run(algorithm, dtype=dtype), alike)


def test_devices_that_are_all_alike_change_nothing(run: Run) -> None:
    assert same(run(), waited := run(clock="constant"))
    assert waited.evaluate()["virtual_seconds"] > 0
    assert waited.evaluate()["wasted_hours"] == 0


@pytest.mark.parametrize("staleness", ["row", "version", "none"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedsubavg"])
def test_asynchronous_rounds_against_a_loop_over_clients(
    data: FederatedData, staleness: str, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client trained alone, from a copy of the model that it read; weights worked out here."""
    plan = Plan(
        rounds=12, clients_per_round=6, device="cpu", dtype="float64", staleness=staleness, **ASYNC
    )
    own = catalogue.algorithm(algorithm)()
    made = Simulation(data, Logistic(data), own, plan)
    schedule, events = made.schedule, []
    assert isinstance(schedule, AsyncRounds)
    begin = schedule.begin
    monkeypatch.setattr(
        schedule, "begin", lambda n: (c := begin(n), events.append((n, c, schedule._taken)))[0]
    )
    heat = made.fleet.heat()["weight"]
    params = {"weight": made.progress.params.tables["weight"].clone()}
    dense = {name: x.clone() for name, x in made.progress.params.dense.items()}
    for _ in made:
        pass
    moved = [0] * len(params["weight"])
    read_at: dict[tuple[int, int], tuple[dict[int, int], dict, dict]] = {}
    for number, cohort, taken in events:
        for client in cohort.tolist():
            update = twin_update(data, plan, params["weight"], dense, client, number)
            ids = update[0]
            read_at[number, client] = ({m: moved[m] for m in ids}, *update)
        weights = {x: float(made.simulated.weights[x[1]]) for x in taken}
        rows, sums, touched = params["weight"].clone(), dict(dense), set()
        for key in sorted(taken):
            before, update, changes = read_at[key]
            share = weights[key] / sum(weights.values())
            age = number - key[0]
            for m, change in update.items():
                late = {"row": moved[m] - before[m], "version": age, "none": 0}[staleness]
                factor = heat.total / float(heat.of(torch.tensor([m])))
                factor = factor if algorithm == "fedsubavg" else 1.0
                rows[m] += share * factor * change / math.sqrt(1 + late)
                touched.add(m)
            for name, change in changes.items():
                late = 0 if staleness == "none" else age
                sums[name] = sums[name] + share * change / math.sqrt(1 + late)
        params["weight"], dense = rows, sums
        for m in touched:
            moved[m] += 1
    torch.testing.assert_close(made.progress.params.tables["weight"], params["weight"])
    for name, x in dense.items():
        torch.testing.assert_close(made.progress.params.dense[name], x)
    assert max(n - began for n, _, taken in events for began, _ in taken) > 2  # some were stale


def twin_update(
    data: FederatedData, plan: Plan, table: Tensor, dense: dict[str, Tensor], client: int, n: int
) -> tuple[dict[int, Tensor], dict[str, Tensor]]:
    """What one client makes of a model: FedAvg with that client as its only one."""
    fleet = SimulatedFleet(Logistic(data), FedAvg(), data, plan)
    cohort = torch.tensor([client])
    opened = fleet.open_round(Round(n, plan.lr_at(n), data.clients, 1.0, cohort))
    update = opened.train(take(Params({"weight": table}, dense), opened.index, 1), None).update
    ids = update.index["weight"].ids.tolist()
    rows = {m: x.clone() for m, x in zip(ids, update.rows["weight"], strict=True)}
    return rows, {name: x[0].clone() for name, x in update.dense.items()}


@pytest.mark.parametrize(
    "plan",
    [
        ASYNC,
        {**ASYNC, "max_age": 3, "staleness": "version"},
        {"clock": "log-normal", "over_select": 1.5, "deadline": 30.0},
    ],
    ids=["async", "bounded age", "sync"],
)
def test_a_run_goes_on_where_it_was_saved(tmp_path: Path, run: Run, plan: dict) -> None:
    path = tmp_path / "checkpoint.safetensors"
    whole, saved = run(**plan), run(to=3, **plan)
    checkpoint.save(path, saved)
    again = run(to=0, **{**plan, "rounds": 8})
    fresh = Simulation(again._federation, again.model, again.algorithm, again.plan)
    checkpoint.restore_(fresh, path)
    for _ in fresh:
        pass
    assert same(whole, fresh)
    assert fresh.evaluate()["virtual_seconds"] == whole.evaluate()["virtual_seconds"]
    assert fresh.evaluate()["client_hours"] == whole.evaluate()["client_hours"]


def test_the_same_seed_gives_the_same_run_in_virtual_time(run: Run) -> None:
    one, again, other = run(**ASYNC), run(**ASYNC), run(**ASYNC, seed=1)
    lines = [made.evaluate() for made in (one, again, other)]
    assert same(one, again)
    for name in ("virtual_seconds", "client_hours", "wasted_hours"):
        assert lines[0][name] == lines[1][name]
        assert lines[0][name] != lines[2][name]
    assert not same(one, other)


def test_a_checkpoint_of_another_clock_is_refused(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "checkpoint.safetensors"
    checkpoint.save(path, run(to=2))
    with pytest.raises(RunFolderError, match="its clock or mode is another"):
        checkpoint.restore_(run(to=1, clock="constant"), path)


def test_the_first_of_more_clients_count_and_the_rest_is_wasted(run: Run) -> None:
    """Over-selection by hand: of the durations, the K shortest."""
    made = run(to=1, clock="log-normal", over_select=2.0)
    schedule = made.schedule
    assert isinstance(schedule, WaitingRounds)
    clock, then = schedule.clock, made.evaluate()["virtual_seconds"]
    clock.starts.zero_()
    clock.now = 0.0
    asked = clock.draw(1, 12)
    took, dropped = clock.begin(asked)
    took = took[~dropped].sort().values
    assert then == pytest.approx(float(took[5]))
    assert made.evaluate()["wasted_hours"] > 0


def test_a_deadline_ends_a_round(run: Run) -> None:
    made = run(to=8, clock="heavy-tail", deadline=2.0)
    assert made.evaluate()["virtual_seconds"] <= 8 * 2.0 + 1e-9


def test_how_long_an_update_takes() -> None:
    """50 examples at 50 a second, 100 rows, 1 MB down in a second, 0.5 MB up in two."""
    one = torch.ones(1, dtype=torch.float64)
    work = UpdateWork(50 * one, 100 * one, 1e6 * one, 5e5 * one)
    took = drawn("constant", 1, 0).typical_seconds(work)
    assert float(took) == pytest.approx(1 + ROW * 100 / 50 + 1 + 2)


@pytest.mark.parametrize("labels", ["binary", "ranking"])
def test_network_time_follows_the_bytes_of_a_round(data: FederatedData, labels: str) -> None:
    """Of all clients, as a round without a clock counts them; pools of negatives come on top."""
    own = positives() if labels == "ranking" else data
    model = mf.build(own, factors=3) if labels == "ranking" else Logistic(own)
    plan = Plan(clients_per_round=own.clients, negatives_pool=7, device="cpu", dtype="float64")
    fleet, everyone = SimulatedFleet(model, FedAvg(), own, plan), torch.arange(own.clients)
    opened = fleet.open_round(Round(1, plan.lr, own.clients, 1.0, everyone))
    opened.train(take(begin(model, FedAvg(), plan).params, opened.index, own.clients), None)
    work = work_of(fleet, plan)
    assert float(work.down.sum()) == opened.traffic.down
    assert float(work.up.sum()) == opened.traffic.up
    assert float(work.rows.sum()) == sum(len(index.ids) for index in opened.index.values())


@pytest.mark.parametrize("kind", ["log-normal", "heavy-tail"])
def test_devices_do_not_depend_on_how_many_there_are(kind: str) -> None:
    few, many = drawn(kind, 10, 3), drawn(kind, 1_000, 3)
    for name in ("speed", "down", "up", "dropout", "opens", "hours"):
        assert torch.equal(getattr(few, name), getattr(many, name)[:10])
    assert not torch.equal(few.speed, drawn(kind, 10, 4).speed)


def test_the_tail_is_as_stated() -> None:
    slow = devices.SPEED / drawn("heavy-tail", 200_000, 0).speed
    share = torch.quantile(slow[:100_000], torch.tensor([0.99, 0.999], dtype=torch.float64))
    assert float(share[0]) == pytest.approx(46.4, rel=0.1)
    assert float(share[1]) == pytest.approx(316, rel=0.2)
    assert float(slow.max()) <= 1000 * (1 + 1e-9)


def test_nobody_begins_while_away() -> None:
    """There from 22:00 for 4 hours: at 23:00 and 01:00, not at 03:00."""
    one = torch.ones(1, dtype=torch.float64)
    night = devices.Devices(one, one, one, 0 * one, 22 * one, 4 * one)
    first = np.zeros(1, dtype=np.int64)
    assert [bool(night.there(first, h * 3600.0)) for h in (23, 25, 27)] == [True, True, False]
    assert night.next_opening(3 * 3600.0) == pytest.approx(22 * 3600.0)


def test_a_client_whose_update_is_lost_does_not_train(run: Run, tmp_path: Path) -> None:
    lines = ["client,speed,dropout", *(f"{i},{10 + i},0.5" for i in range(60))]
    (tmp_path / "half.csv").write_text("\n".join(lines))
    clock = str(tmp_path / "half.csv")
    made = run("fedavg", to=1, **{**ASYNC, "clock": clock})
    for _ in made:
        assert isinstance(made.schedule, AsyncRounds)
        under_way = made.schedule.state()["under_way"]
        assert any(lost for *_, lost in under_way)
        comes = sorted(client for _, _, client, _, _, lost in under_way if not lost)
        assert made.schedule.pending.clients.tolist() == comes


def test_nobody_begins_an_asynchronous_round_while_away(run: Run, tmp_path: Path) -> None:
    """An update takes about an hour, and each client is there for eight a day."""
    lines = ["client,speed,opens,hours", *(f"{i},{0.01 + i / 1e4},{i % 24},8" for i in range(60))]
    (tmp_path / "by-hour.csv").write_text("\n".join(lines))
    clock = str(tmp_path / "by-hour.csv")
    made = run("fedavg", to=1, **{**ASYNC, "concurrency": 8, "clock": clock}, rounds=60)
    for _ in made:
        assert isinstance(made.schedule, AsyncRounds)
        there = made.schedule.clock.devices.there
        for comes, _, client, _, took, _ in made.schedule.state()["under_way"]:
            assert there(np.array([client]), comes - took)
    assert made.evaluate()["virtual_seconds"] > devices.DAY


def test_heat_counts_who_takes_part(data: FederatedData, tmp_path: Path) -> None:
    """A client that drops out half of the time counts for half of a row."""
    lines = ["client,speed,dropout", *(f"{i},50,{0.5 if i % 2 else 0}" for i in range(60))]
    (tmp_path / "devices.csv").write_text("\n".join(lines))
    plan = Plan(clock=str(tmp_path / "devices.csv"), clients_per_round=6, device="cpu")
    made = Simulation(data, Logistic(data), catalogue.algorithm("fedsubavg")(), plan)
    weights = made.simulated.weights * torch.tensor([1.0, 0.5]).double().repeat(30)
    assert made.fleet.heat()["weight"].total == pytest.approx(float(weights.sum()))


FILES = {
    "client,speed\n0,0\n": "speed is '0', but must be a finite number above 0",
    "client,speed\n0,fast\n": "speed is 'fast'",
    "client,speed\n0,50\n": "no speed for client 1",
    "client,speed,hours\n0,1,0\n": "never there",
    "client,speed,dropout\n0,1,1\n": "dropout is '1'",
    "client,down\n0,1\n": "no column 'speed'",
    "client,speed,sped\n0,1,1\n": "There is no column of the clock",
    "client,speed\n0,nan\n": "speed is 'nan'",
}


@pytest.mark.parametrize("text", FILES)
def test_files_that_cannot_be_right(tmp_path: Path, text: str) -> None:
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises((DataError, UnknownNameError), match=FILES[text]):
        read(path, 2, 0, None)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.csv cannot be read"):
        read(tmp_path / "none.csv", 2, 0, None)


@pytest.mark.parametrize(
    ("plan", "algorithm", "says"),
    [
        ({"mode": "async", "buffer": 9, "concurrency": 3}, "fedavg", "buffer is 9, but only 3"),
        ({"mode": "async"}, "scaffold", "keeps a state at its clients"),
        ({"mode": "async"}, "centralsgd", "^mode is async, but .* take their time: leave that out"),
        ({"clock": "constant"}, "centralsgd", "^clock is constant, but .*: leave that out"),
        ({"mode": "async", "clock": "constant"}, "centralsgd", "constant, but .*: leave both out"),
        ({"clock": "sundial"}, "fedavg", "clock is 'sundial', but must be"),
        ({"mode": "async", "deadline": 3.0, "clock": "constant"}, "fedavg", "deadline is 3.0"),
        ({"buffer": 3}, "fedavg", "buffer is 3, but it is for mode async"),
        ({"deadline": 3.0}, "fedavg", "there is no clock"),
        ({"mode": "async", "concurrency": 100}, "fedavg", "concurrency is 100, but only 60"),
        ({"mode": "async", "buffer": 100}, "fedavg", "buffer is 100, but only 60"),
        ({"mode": "asap"}, "fedavg", "mode is 'asap'"),
    ],
)
def test_plans_that_cannot_be_right(run: Run, plan: dict, algorithm: str, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        run(algorithm, **plan)


def test_a_private_run_has_no_virtual_time(data: FederatedData) -> None:
    from fedrows.privacy.options import Privacy

    plan = Plan(clock="constant", clients_per_round=6, weighting="uniform", device="cpu")
    made = catalogue.algorithm("fedsubavg")()
    with pytest.raises(FedrowsError, match="has no virtual time"):
        Simulation(data, Logistic(data), made, plan, Privacy.of(privacy="heat"))
