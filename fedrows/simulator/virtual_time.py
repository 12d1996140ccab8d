"""Virtual time: how long simulated clients take, and rounds that wait for them.

`Clock` knows the devices and counts virtual seconds. `WaitingRounds` is the schedule of a
synchronous run: it asks more clients than it needs, takes the first K that answer, and ends a round
at a deadline. `asynchronous` has the schedule that does not wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.fleet import id_bytes
from fedrows.plan import Plan
from fedrows.rows.params import Submodels
from fedrows.seeds import SLOT, host_bits, key
from fedrows.server import ATTEMPT, Schedule
from fedrows.simulator.devices import HOUR, UpdateWork, devices_of
from fedrows.simulator.simulated_fleet import SimulatedFleet


class Clock:
    """The virtual time of a run, and what its devices have spent."""

    def __init__(self, fleet: SimulatedFleet, plan: Plan) -> None:
        self.fleet, self.plan = fleet, plan
        self.timed = plan.clock != "none"
        names = fleet.data.client_names
        self.devices = devices_of(
            plan.clock, fleet.clients, plan.seed, None if names is None else names.tolist()
        )
        self.typical = self.devices.typical_seconds(work_of(fleet, plan))  # (N,), of an update
        self.now = 0.0
        self.spent = 0.0  # seconds of all clients together
        self.wasted = 0.0  # the part of it whose updates were never used
        self.starts = torch.zeros(fleet.clients, dtype=torch.int64)  # of each client
        self.starts_of = self.starts.numpy()  # the same memory
        self._always = self.devices.always
        self._there = 0.8 * float(self.devices.hours.mean()) / 24  # so that one try is enough

    def line(self) -> dict[str, float]:
        """What a line of metrics has of it."""
        if not self.timed:
            return {}
        return {
            "virtual_seconds": self.now,
            "client_hours": self.spent / HOUR,
            "wasted_hours": self.wasted / HOUR,
        }

    def draw(self, counter: int, count: int, busy: np.ndarray | None = None) -> Tensor:
        """`count` clients that are there and not busy (N,), in a random order; fewer if need be.

        If all are there and none is busy, they are those of a round without a clock.
        """
        # NumPy: so few numbers that what counts is what a call costs.
        fleet, size = self.fleet, count if self._always else int(count / self._there) + 8
        while True:
            size = min(size, fleet.clients)
            drawn = fleet.draw(counter, size).numpy()
            if busy is not None:
                drawn = drawn[~busy[drawn]]
            if not self._always:
                drawn = drawn[self.devices.there(drawn, self.now)]
            if len(drawn) >= count or size == fleet.clients:
                order = host_bits(key(self.plan.seed, SLOT, counter), drawn).argsort(kind="stable")
                return torch.from_numpy(drawn[order[:count]])
            size = 2 * size + 8

    def durations(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """How long the next update of clients takes, and whose never arrives: (k,) each."""
        if not self.timed:
            none = torch.zeros(len(clients), dtype=torch.float64)
            return none, none.bool()
        starts = torch.from_numpy(self.starts_of[clients.numpy()])
        took = self.typical[clients] * self.devices.jitters(clients, starts)
        return took, self.devices.drops(clients, starts)

    def begin(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """The same for clients that begin now."""
        durations = self.durations(clients)
        self.starts_of[clients.numpy()] += 1
        return durations

    def participation(self, concurrency: int | None = None) -> Tensor:
        """How often an update of each client comes in, against the most that it can be: (N,).

        It counts hours of absence and lost updates. If so many clients train at a time, a client is
        also not drawn while it trains. One that takes t seconds and then waits for w on average
        comes in once in w + t. The wait is the same for all: as many train as there is room for,
        Σ t / (w + t) = C.
        """
        if concurrency is None or not self.timed:
            return self.devices.present
        took = self.typical * self.devices.mean_jitter
        wait = mean_wait(took, self.devices.hours / 24, concurrency)
        return self.devices.present * (wait + took.min()) / (wait + took)

    def wait(self) -> None:
        """Goes on to when the next device comes, because nobody is there."""
        then = self.devices.next_opening(self.now)
        if not math.isfinite(then):
            raise PlanError("No client can begin to train: ask for fewer at a time.")
        self.now = then

    def state(self) -> dict[str, Any]:
        """Where it stands, as JSON."""
        return {"now": self.now, "spent": self.spent, "wasted": self.wasted}

    def restore_(self, state: Mapping[str, Any], starts: Tensor) -> None:
        """Goes back to where `state` was taken."""
        self.now, self.spent, self.wasted = (float(state[x]) for x in ("now", "spent", "wasted"))
        self.starts.copy_(starts)


class RunSchedule(Schedule, Protocol):
    """A schedule in virtual time, which a checkpoint can keep."""

    @property
    def clock(self) -> Clock:
        """The virtual time."""

    def participation(self) -> Tensor:
        """How often an update of each client comes in, against the most that it can be: (N,)."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors, of whatever shape they have by now."""

    def state(self) -> dict[str, Any]:
        """Returns the rest of it, as JSON."""

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to where `tensors` and `state` were taken."""


class WaitingRounds:
    """The schedule of a synchronous run with a clock."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def participation(self) -> Tensor:
        return self.clock.participation()

    def begin(self, number: int) -> Tensor:
        clock, plan = self.clock, self.clock.plan
        wanted = plan.clients_per_round
        asked = min(clock.fleet.clients, math.ceil(wanted * plan.over_select - 1e-9))
        attempt = 0
        while True:
            cohort = clock.draw(number + attempt * ATTEMPT, asked)
            attempt += 1
            if not len(cohort):
                clock.wait()
                continue
            took, dropped = clock.begin(cohort)
            deadline = math.inf if plan.deadline is None else plan.deadline
            came = torch.where(dropped | (took > deadline), math.inf, took)
            order = came.argsort(stable=True)[:wanted]
            first = order[came[order] < math.inf]
            if len(first) == wanted:
                ends = float(came[first].max())
            else:  # somebody is missing: the server waits until the end, or until it knows
                ends = min(deadline, float(took.max()))
            clock.now += ends
            spent = took.clamp(max=ends)
            clock.spent += float(spent.sum())
            clock.wasted += float(spent.index_fill(0, first, 0.0).sum())
            if len(first):
                return cohort[first].sort().values

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        assert upload is not None, "a round has clients"
        return upload

    def stepped(self, update: Submodels) -> None:
        """A round starts from the model as it is."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it."""
        return {"starts": self.clock.starts}

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        return self.clock.state()

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to where `tensors` and `state` were taken."""
        self.clock.restore_(state, tensors["starts"])


def mean_wait(took: Tensor, there: Tensor, concurrency: int) -> float:
    """How long a client waits on average until it is drawn again: w with Σ there·t/(w + t) = C.

    0 if all that are there train all the time.
    """

    def busy(wait: float) -> float:
        return float((there * took / (wait + took)).sum())

    low, high = 0.0, float(took.max())
    if busy(low) <= concurrency:
        return 0.0
    while busy(high) > concurrency:
        low, high = high, 2 * high
    for _ in range(60):  # halves an interval that ends as narrow as float64 allows
        middle = (low + high) / 2
        low, high = (middle, high) if busy(middle) > concurrency else (low, middle)
    return (low + high) / 2


def work_of(fleet: SimulatedFleet, plan: Plan) -> UpdateWork:
    """The examples, rows and bytes of an update of each client."""
    data, schema = fleet.data, fleet.model.schema
    everyone = torch.arange(fleet.clients)
    sizes = data.train.splits.diff()
    if plan.batches == "draw":
        examples = torch.full_like(sizes, plan.local_steps * plan.batch_size)
    else:
        examples = sizes * plan.epochs
    rows = torch.zeros(len(everyone), dtype=torch.float64)
    down = torch.full_like(rows, schema.dense_size * plan.torch_dtype.itemsize)
    ids = torch.zeros_like(rows)
    for table, index in data.index.items():
        count = index.lengths.double()
        if fleet.negatives is not None and table == fleet.negatives.table:
            count = count + fleet.negatives.pools(everyone).sizes
        rows += count
        if table not in data.local:
            down += count * schema.tables[table].width * plan.torch_dtype.itemsize
            ids += count * id_bytes(schema.tables[table].rows)
    return UpdateWork(examples.double(), rows, down, down + ids)
