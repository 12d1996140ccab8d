"""Rounds without waiting: updates come in one by one, and the server steps on every M of them.

C clients train at a time, each from the model as it was when the client began. When an update has
come in, another client begins. When M have, the server takes a step on their mean: the rule of
FedBuff (Nguyen et al., AISTATS 2022). A round is one such step.

An update that began τ steps ago is stale, and is weighed by s(τ) = 1 / √(1 + τ):

    version   τ counts the steps of the server since the client read the model (FedBuff)
    row       τ counts, for each row, the steps that moved *this row* since the client read it;
              dense tensors move in every step, and age as one
    none      s = 1

How long a client takes does not depend on what it learns. So who begins and who comes in before the
next step is known first, and all that begin from one model are trained together, as a cohort.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.server import ATTEMPT
from fedrows.simulator.virtual_time import Clock


@dataclass
class Pending:
    """Updates that were trained from one model and have not all come in."""

    number: int  # of the step that their clients began before
    upload: Upload
    moves: dict[str, Tensor]  # how often each row had been moved when it was read, by table (R,)

    def __post_init__(self) -> None:
        self.position = {client: i for i, client in enumerate(self.upload.clients.tolist())}

    def select(self, positions: list[int]) -> Pending:
        """Some of the updates, in this order."""
        if positions == list(range(len(self.upload.clients))):
            return self
        which, old = torch.tensor(positions, dtype=torch.int64), self.upload
        index = {table: x.select(which) for table, x in old.update.index.items()}
        sources = {table: x.source for table, x in index.items()}
        update = Submodels(
            index,
            {table: rows[sources[table]] for table, rows in old.update.rows.items()},
            {name: x[which.to(x.device)] for name, x in old.update.dense.items()},
        )
        marks = old.occurred
        if marks is not None:
            marks = {table: x[sources[table]] for table, x in marks.items()}
        upload = Upload(old.clients[which], update, old.steps[which], {}, None, occurred=marks)
        return Pending(
            self.number, upload, {table: x[sources[table]] for table, x in self.moves.items()}
        )


class AsyncRounds:
    """The schedule of an asynchronous run."""

    def __init__(self, clock: Clock, shared: Params) -> None:
        plan = clock.plan
        self.clock, self.buffer = clock, plan.buffer_size
        self.concurrency = concurrency_of(plan, clock.fleet.clients)
        self.pending: list[Pending] = []
        self._under_way: list[tuple[float, int, int, int, float, bool]] = []  # a heap, see `begin`
        self._free, self._count = self.concurrency, 0
        self._busy = torch.zeros(clock.fleet.clients, dtype=torch.bool)
        self._taken: list[tuple[int, int]] = []  # the step that it began before, and the client
        # How often each row was moved. None where nobody asks.
        self.moves = {
            table: torch.zeros(len(x), dtype=torch.int32, device=x.device)
            for table, x in shared.tables.items()
            if plan.staleness == "row"
        }

    def begin(self, number: int) -> Tensor:
        """Goes on in virtual time until M updates have come in; the clients that began by then.

        An entry of the heap is: when it comes in, a count, the client, the step that it began
        before, how long it takes, and whether it never arrives.
        """
        clock, plan, heap = self.clock, self.clock.plan, self._under_way
        begun: dict[int, None] = {}
        rest: set[int] = set()  # who has come in since the last step begins again after it
        self._taken, attempt = [], 0
        waiting: list[tuple[int, float, bool]] = []  # who begins next
        while len(self._taken) < self.buffer:
            while self._free:
                if not waiting:
                    wanted = self._free if attempt == 0 else max(self._free, self.buffer)
                    waiting = self._drawn(number + attempt * ATTEMPT, wanted, rest)
                    attempt += 1
                    if not waiting:
                        break
                client, took, dropped = waiting.pop()
                entry = (clock.now + took, self._count, client, number, took, dropped)
                heapq.heappush(heap, entry)
                self._count, self._free = self._count + 1, self._free - 1
                self._busy[client], begun[client] = True, None
            if not heap:
                clock.wait()
                continue
            clock.now = heap[0][0]
            while heap and heap[0][0] == clock.now and len(self._taken) < self.buffer:
                _, _, client, began, took, dropped = heapq.heappop(heap)
                self._free, self._busy[client] = self._free + 1, False
                clock.spent += took
                old = plan.max_age is not None and number - began > plan.max_age
                if dropped or old:
                    clock.wasted += took
                if not dropped:
                    rest.add(client)
                if not dropped and not old:
                    self._taken.append((began, client))
        for client, _, _ in waiting:  # drawn, and not needed
            clock.starts[client] -= 1
        return torch.tensor(sorted(begun), dtype=torch.int64)

    def _drawn(self, counter: int, wanted: int, rest: set[int]) -> list[tuple[int, float, bool]]:
        """Clients that may begin, how long each takes and whether it drops out."""
        busy = self._busy
        if rest:
            busy = busy.clone()
            busy[torch.tensor(sorted(rest))] = True
        clients = self.clock.draw(counter, wanted, busy)
        took, dropped = self.clock.begin(clients)
        drawn = zip(clients.tolist(), took.tolist(), dropped.tolist(), strict=True)
        return list(drawn)[::-1]

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """The M updates that have come in, weighed by their staleness."""
        if upload is not None:
            index = upload.update.index
            moves = {t: x[index[t].ids] for t, x in self.moves.items() if t in index}
            self.pending.append(Pending(number, upload, moves))
        taken: dict[int, list[int]] = {}
        where = {group.number: group for group in self.pending}
        for began, client in self._taken:
            taken.setdefault(began, []).append(where[began].position[client])
        parts = [where[began].select(sorted(p)) for began, p in sorted(taken.items())]
        uploads = [self._weighed(part, number) for part in parts]
        self._forget()
        return uploads[0] if len(uploads) == 1 else _joined(uploads)

    def _weighed(self, part: Pending, number: int) -> Upload:
        """Updates times s(τ); rows of local tables belong to their client as they are."""
        age, rule, update = number - part.number, self.clock.plan.staleness, part.upload.update
        if rule == "none" or age == 0:
            return part.upload
        factor = (1 + age) ** -0.5
        dense = {name: x * factor for name, x in update.dense.items()}
        rows = dict(update.rows)
        for table in rows.keys() - self.clock.fleet.data.local:
            if rule == "version":
                rows[table] = rows[table] * factor
            else:
                moved = self.moves[table][update.index[table].ids] - part.moves[table]
                rows[table] = rows[table] * (1 + moved.to(rows[table].dtype)).rsqrt_()[:, None]
        return replace(part.upload, update=Submodels(update.index, rows, dense))

    def _forget(self) -> None:
        """Drops updates that have come in; copies what is left once it is less than half."""
        waiting: dict[int, list[int]] = {}
        for _, _, client, began, _, _ in self._under_way:
            waiting.setdefault(began, []).append(client)
        left = []
        for group in self.pending:
            clients = waiting.get(group.number, [])
            if 2 * len(clients) < len(group.position):
                group = group.select(sorted(group.position[x] for x in clients))
            if clients:
                left.append(group)
        self.pending = left

    def stepped(self, update: Submodels) -> None:
        for table, moves in self.moves.items():
            ids = update.index[table].ids
            moves[ids] = moves[ids] + 1  # once for a row, however many clients moved it

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it: the updates that are under way, and rows' counts."""
        found = {"starts": self.clock.starts}
        found |= {f"moves/{table}": x for table, x in self.moves.items()}
        for group in self.pending:
            upload, name = group.upload, f"pending/{group.number}"
            found |= {f"{name}/clients": upload.clients, f"{name}/steps": upload.steps}
            found |= {f"{name}/dense/{d}": x for d, x in upload.update.dense.items()}
            found |= {f"{name}/moves/{t}": x for t, x in group.moves.items()}
            found |= {f"{name}/occurred/{t}": x for t, x in (upload.occurred or {}).items()}
            for table, rows in upload.update.rows.items():
                index = upload.update.index[table]
                found |= {f"{name}/ids/{table}": index.ids, f"{name}/rows/{table}": rows}
                found |= {f"{name}/splits/{table}": index.splits}
        return found

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON."""
        way = {"under_way": self._under_way, "free": self._free, "count": self._count}
        return {**self.clock.state(), **way}

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to where `tensors` and `state` were taken."""
        self.clock.restore_(state, tensors["starts"])
        self._under_way = [tuple(entry) for entry in state["under_way"]]
        self._free, self._count = state["free"], state["count"]
        self._busy[:] = False
        self._busy[torch.tensor([x[2] for x in self._under_way], dtype=torch.int64)] = True
        for table, moves in self.moves.items():
            moves.copy_(tensors[f"moves/{table}"])
        numbers = {int(name.split("/")[1]) for name in tensors if name.startswith("pending/")}
        self.pending = [self._restored(number, tensors) for number in sorted(numbers)]

    def _restored(self, number: int, tensors: Mapping[str, Tensor]) -> Pending:
        device, name = self.clock.fleet.device, f"pending/{number}/"

        def part(kind: str) -> dict[str, Tensor]:
            head = f"{name}{kind}/"
            found = {x.removeprefix(head): y for x, y in tensors.items() if x.startswith(head)}
            return {x: y if kind == "splits" else y.to(device) for x, y in found.items()}

        ids, splits, marks = part("ids"), part("splits"), part("occurred")
        whole = self.clock.fleet.data.index
        index = {table: _placed(x, splits[table], whole[table]) for table, x in ids.items()}
        update = Submodels(index, part("rows"), part("dense"))
        clients, steps = tensors[f"{name}clients"], tensors[f"{name}steps"]
        return Pending(
            number, Upload(clients, update, steps, {}, None, occurred=marks or None), part("moves")
        )


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


def check_virtual(algorithm: Algorithm, plan: Plan) -> None:
    """Raises a PlanError if a run cannot go in virtual time, or not without waiting."""
    if algorithm.pooled:
        raise PlanError(
            f"mode is {plan.mode} and clock is {plan.clock}, but {algorithm.name} trains on pooled "
            "data, and has no clients that take their time: leave both out."
        )
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


def _placed(ids: Tensor, splits: Tensor, whole: Index) -> Index:
    """An index as the federation's own, whose heat is read by one gather."""
    if whole.held is None:
        return Index(ids, splits)
    place = torch.searchsorted(whole.held, ids).clamp_(max=max(len(whole.held) - 1, 0))
    if not torch.equal(whole.held[place], ids):  # negatives, which nobody holds
        return Index(ids, splits)
    return Index(ids, splits, place, whole.held)


def _joined(uploads: list[Upload]) -> Upload:
    """Updates of several cohorts as those of one."""
    updates, first = [x.update for x in uploads], uploads[0]
    index = {
        table: _joined_index([x.index[table] for x in updates]) for table in first.update.index
    }
    update = Submodels(
        index,
        {table: torch.cat([x.rows[table] for x in updates]) for table in first.update.rows},
        {name: torch.cat([x.dense[name] for x in updates]) for name in first.update.dense},
    )
    marks = None
    if first.occurred is not None:
        every = [x.occurred or {} for x in uploads]
        marks = {table: torch.cat([x[table] for x in every]) for table in first.occurred}
    clients, steps = (
        torch.cat([x.clients for x in uploads]),
        torch.cat([x.steps for x in uploads]),
    )
    return Upload(clients, update, steps, {}, None, occurred=marks)


def _joined_index(parts: list[Index]) -> Index:
    lengths = torch.cat([x.splits.diff() for x in parts])
    splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    ids, held = torch.cat([x.ids for x in parts]), parts[0].held
    places = [x.place for x in parts if x.place is not None and x.held is held]
    if held is None or len(places) < len(parts):
        return Index(ids, splits)
    return Index(ids, splits, torch.cat(places), held)
