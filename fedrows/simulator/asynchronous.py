"""Rounds without waiting: updates come in one by one, and the server steps on every M of them.

C clients train at a time, each from the model as it was when the client began. When an update has
come in, another client begins. When M have, the server takes a step on their mean: the rule of
FedBuff (Nguyen et al., AISTATS 2022). A round is one such step.

An update that began some steps ago is stale, and counts for less: `fedrows/rows/staleness.py`.

How long a client takes does not depend on what it learns. So who begins and who comes in before the
next step is known first, and all that begin from one model are trained together, as a cohort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.plan import Plan
from fedrows.rows.params import Params, Submodels
from fedrows.rows.staleness import count_moves_, weigh
from fedrows.server import ATTEMPT
from fedrows.simulator.devices import HOUR
from fedrows.simulator.pending_updates import Arrival, PendingUpdates
from fedrows.simulator.virtual_time import Clock

# When it comes in, a count, the client, the step that it began before, how long it takes, and
# whether it never arrives.
UpdateUnderWay = tuple[float, int, int, int, float, bool]
# A client, how long it takes, whether its update never arrives, and when its device is there.
Drawn = tuple[int, float, bool, float, float]


class AsyncRounds:
    """The schedule of an asynchronous run."""

    def __init__(self, clock: Clock, shared: Params) -> None:
        plan = clock.plan
        self.clock, self.buffer = clock, plan.buffer_size
        self.concurrency = concurrency_of(plan, clock.fleet.clients)
        self.pending = PendingUpdates(self.concurrency + self.buffer, clock.fleet.clients)
        self._under_way: list[UpdateUnderWay] = []  # a heap
        self._free, self._count = self.concurrency, 0
        self._row: list[Drawn] = []  # who was drawn and has not begun
        self._many = min(8 * self.buffer, max(1, clock.fleet.clients // 16))
        self._attempt = 0
        self._busy = bytearray(clock.fleet.clients)  # whether each trains
        self._taken: list[tuple[int, int]] = []  # the step that each began before, and the client
        # How often each row was moved. None where nobody asks.
        self.moves = {
            table: torch.zeros(len(x), dtype=torch.int32, device=x.device)
            for table, x in shared.tables.items()
            if plan.staleness == "row"
        }

    def participation(self) -> Tensor:
        """How often an update of each client comes in: one that trains cannot be drawn."""
        return self.clock.participation(self.concurrency)

    def begin(self, number: int) -> Tensor:
        """Goes on in virtual time until M updates have come in; the clients that began by then.

        A client whose update is lost, or has become too old before the step, is not trained at all.
        """
        # This is done for every update, so names are looked up once, and tests are in place.
        clock, heap, busy, buffer = self.clock, self._under_way, self._busy, self.buffer
        starts, now, row, free = clock.starts_of, clock.now, self._row, self._free
        spent, wasted, count = clock.spent, clock.wasted, self._count
        oldest = -1 if clock.plan.max_age is None else number - clock.plan.max_age
        rest: list[int] = []  # who has come in since the last step begins again after it
        begun: list[int] = []
        lost: list[int] = []
        taken: list[tuple[int, int]] = []
        self._attempt = 0
        while len(taken) < buffer:
            while free:
                if not row:
                    clock.now = now
                    row = self._drawn(number, free)
                    if not row:
                        break
                client, took, dropped, opens, hours = row.pop()
                if busy[client] or not (hours >= 24 or (now / HOUR - opens) % 24 < hours):
                    continue
                heappush(heap, (now + took, count, client, number, took, dropped))
                count += 1
                free -= 1
                starts[client] += 1
                busy[client] = True
                if not dropped:
                    begun.append(client)
            if not heap:
                clock.now = now
                clock.wait()
                now = clock.now
                continue
            now = heap[0][0]
            while heap and heap[0][0] == now and len(taken) < buffer:
                _, _, client, began, took, dropped = heappop(heap)
                free += 1
                spent += took
                if dropped:
                    busy[client] = False
                    wasted += took
                    continue
                rest.append(client)
                if began >= oldest:
                    taken.append((began, client))
                else:
                    wasted += took
                    lost.append(client)
        for client in rest:
            busy[client] = False
        clock.now, clock.spent, clock.wasted = now, spent, wasted
        self._row, self._free, self._count, self._taken = row, free, count, taken
        if lost:
            self.pending.release(np.array(lost))
        return torch.from_numpy(np.array(sorted(begun), dtype=np.int64))

    def _drawn(self, number: int, free: int) -> list[Drawn]:
        """Who begins next, the last one first; nobody if nobody can now.

        Clients are drawn many at a time, and wait in a row; one that trains or is away when its
        turn has come is passed over. Without a clock, who begins before a step is its cohort.
        """
        clock, devices = self.clock, self.clock.devices
        wanted = max(free, self._many) if clock.timed else free
        busy = np.frombuffer(self._busy, dtype=bool)
        clients = clock.draw(number + self._attempt * ATTEMPT, wanted, busy)
        if not len(clients):
            return []
        self._attempt += 1
        facts = [clients, *clock.durations(clients), devices.opens[clients], devices.hours[clients]]
        return list(zip(*(x.tolist() for x in facts), strict=True))[::-1]

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """The M updates that have come in, weighed by their staleness."""
        if upload is not None:
            index = upload.update.index
            moves = {t: x.index_select(0, index[t].ids) for t, x in self.moves.items()}
            self.pending.add(upload, torch.full_like(upload.clients, number), moves)
        clients = np.array([client for _, client in sorted(self._taken)])
        arrival = self.pending.take(clients)
        self.pending.release(clients)
        return self._weighed(arrival, number)

    def _weighed(self, arrival: Arrival, number: int) -> Upload:
        """Updates times s(τ)."""
        upload, local = arrival.upload, self.clock.fleet.data.local
        age, rule = number - arrival.began, self.clock.plan.staleness
        update = weigh(upload.update, age, rule, self.moves, arrival.moves, local)
        return replace(upload, update=update)

    def stepped(self, update: Submodels) -> None:
        count_moves_(self.moves, update.index)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it: the updates that are under way, and rows' counts."""
        tensors = {"starts": self.clock.starts}
        tensors |= {f"moves/{table}": x for table, x in self.moves.items()}
        return tensors | {f"pending/{name}": x for name, x in self.pending.tensors().items()}

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        way = {"under_way": self._under_way, "free": self._free, "count": self._count}
        return {**self.clock.state(), **way, "row": self._row}

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to where `tensors` and `state` were taken."""
        self.clock.restore_(state, tensors["starts"])
        self._under_way = [(*entry,) for entry in state["under_way"]]
        self._row = [(*drawn,) for drawn in state["row"]]
        self._free, self._count = state["free"], state["count"]
        self._busy = bytearray(self.clock.fleet.clients)
        for entry in self._under_way:
            self._busy[entry[2]] = True
        for table, moves in self.moves.items():
            moves.copy_(tensors[f"moves/{table}"])
        head, fleet = "pending/", self.clock.fleet
        pending = {x.removeprefix(head): y for x, y in tensors.items() if x.startswith(head)}
        self.pending.restore_(pending, fleet.data.index, fleet.device)


def concurrency_of(plan: Plan, clients: int) -> int:
    """C: how many clients train at a time, checked against how many there are."""
    if plan.buffer_size > clients:
        raise PlanError(
            f"buffer is {plan.buffer_size}, but only {clients} clients have training data: ask for "
            f"at most {clients}."
        )
    if plan.concurrency is None:
        return max(plan.buffer_size, min(10 * plan.buffer_size, clients // 2))
    if plan.concurrency > clients:
        raise PlanError(
            f"concurrency is {plan.concurrency}, but only {clients} clients have training data: "
            f"ask for at most {clients}."
        )
    return plan.concurrency


def no_virtual_time(plan: Plan, why: str) -> PlanError:
    """The error of a run that can have none."""
    asked = [f"mode is {plan.mode}"] * (plan.mode != "sync")
    asked += [f"clock is {plan.clock}"] * (plan.clock != "none")
    out = "both" if len(asked) == 2 else "that"
    return PlanError(f"{' and '.join(asked)}, but {why}: leave {out} out.")


def check_virtual(algorithm: Algorithm, plan: Plan) -> None:
    """Raises a PlanError if a run cannot go in virtual time, or not without waiting."""
    if algorithm.pooled:
        why = f"{algorithm.name} trains on pooled data, and has no clients that take their time"
        raise no_virtual_time(plan, why)
    if plan.mode == "async" and plan.staleness == "row" and plan.tables == "mapped":
        raise PlanError(
            "staleness is row, which counts the moves of every row in memory, but tables are "
            "mapped: choose staleness version, or tables memory."
        )
    if plan.mode == "async" and (algorithm.keeps or algorithm.returns):
        raise PlanError(
            f"mode is async, but {algorithm.name} keeps a state at its clients that must be of the "
            "same round as the server's: choose mode sync, or another algorithm."
        )
