"""The schedule of an asynchronous deployed run: C clients train at a time, M updates make a step.

The round loop is that of every run (`server.PlainRounds`). It asks who begins, and takes what has
arrived; while fewer than M updates have come in, it asks again. So whoever is free begins from the
model as it is, and nobody is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.async_fleet import AsyncFlowerFleet
from fedrows.flower.server.fleet import SAID
from fedrows.flower.server.update_log import BufferedUpdate
from fedrows.flower.server.uploads import TOO_LONG, mean_loss
from fedrows.flower.wire.clients import ClientName
from fedrows.rows.params import Params, Submodels
from fedrows.rows.staleness import count_moves_, weigh
from fedrows.seeds import SLOT, bits, key
from fedrows.server import ATTEMPT
from fedrows.simulator.asynchronous import concurrency_of
from fedrows.watch.observer import BufferReport


class BufferedRounds:
    """Who begins when, and which updates a step takes."""

    def __init__(self, fleet: AsyncFlowerFleet, shared: Params) -> None:
        self.fleet, self.plan = fleet, fleet.contract.plan
        self.buffer = self.plan.buffer_size
        self.moves = {
            table: torch.zeros(len(x), dtype=torch.int32)
            for table, x in shared.tables.items()
            if self.plan.staleness == "row"
        }
        fleet.moves = self.moves
        self.updates: list[BufferedUpdate] = []  # that have come in, in this order
        self.last: BufferReport | None = None  # of the last step
        self._taken: list[BufferedUpdate] = []  # those of the present step
        self._step = 0  # the last one that is done
        self._drawn = (0, 0)  # the present step, and how often clients were drawn for it
        self._owed: dict[tuple[str, ClientName], int] = {}  # tags that count, of who is not here
        self._said = time.monotonic()

    @property
    def concurrency(self) -> int:
        """C: how many clients may train at a time."""
        clients = max(self.fleet.clients, self.buffer)
        return self.plan.concurrency or concurrency_of(self.plan, clients)

    def begin(self, number: int) -> Tensor:
        """Clients that are free, as many as may begin, ascending.

        A client whose update waits for a step begins again after it. Without delay, and if all are
        free, they are those of a synchronous round.
        """
        fleet, attempt = self.fleet, self._drawn[1] if self._drawn[0] == number else 0
        self._pay_owed()
        none = torch.zeros(0, dtype=torch.int64)
        count = self.concurrency - sum(fleet.under_way.values())
        busy, numbers = fleet.occupied(), fleet.numbers()
        waiting = [numbers[x] for one in self.updates if (x := (one.node, one.client)) in numbers]
        busy[waiting] = True
        if count <= 0 or len(self.updates) >= self.buffer or bool(busy.all()):
            return none
        self._drawn = number, attempt + 1
        counter, size = number + attempt * ATTEMPT, count
        while True:
            size = min(size, fleet.clients)
            drawn = fleet.draw(counter, size)
            drawn = drawn[~busy[drawn]]
            if len(drawn) >= count or size == fleet.clients:
                order = bits(key(self.plan.seed, SLOT, counter), drawn).argsort(stable=True)
                return drawn[order[:count]].sort().values
            size = 2 * size + 8

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """M updates weighed by their staleness; none while fewer have come in."""
        fleet, exchange = self.fleet, self.fleet.exchange(number)
        self.updates += fleet.collect(number, wait=len(self.updates) < self.buffer)
        self._drop_old(number)
        while len(self.updates) >= self.buffer:
            taken, clients, weights = self._first()
            bad = fleet.reader.too_long([x.update for x in taken], weights, fleet.heat())
            if not any(bad):
                break
            out = [one for one, long in zip(taken, bad, strict=True) if long]
            for one in out:
                fleet.refuse(one, *TOO_LONG)
            self._forget(out)
            fleet.log.settle(number, out, TOO_LONG[0])
        else:
            self._say(number)
            return fleet.reader.joined(torch.zeros(0, dtype=torch.int64), [])
        self._forget(taken)
        self._taken, self._step = taken, number
        for one, client in zip(taken, clients.tolist(), strict=True):
            if client < 0:
                self._owed[one.node, one.client] = one.tag
            else:
                fleet.registry.clients[client].accepted = one.tag
        age = number - torch.tensor([one.began for one in taken])
        joined = fleet.reader.joined(clients, [one.update for one in taken])
        read = {table: torch.cat([one.read[table] for one in taken]) for table in self.moves}
        update = weigh(joined.update, age, self.plan.staleness, self.moves, read)
        exchange.answered = len(taken)
        exchange.loss = mean_loss(
            [(x.update.loss, x.weight) for x in taken if x.update.loss is not None]
        )
        exchange.buffer = self.last = self._report(age.tolist())
        self._said = time.monotonic()
        return replace(joined, update=update, weights=weights)

    def stepped(self, update: Submodels) -> None:
        count_moves_(self.moves, update.index)
        self.fleet.log.settle(self._step, self._taken)
        self._taken = []

    def saved(self) -> None:
        """A checkpoint is on the disk: the updates in it are needed no more."""
        self.fleet.log.saved()

    def now(self) -> BufferReport:
        """How it stands at this moment; ages are those of the last step."""
        return self._report([] if self.last is None else self.last.ages)

    def _report(self, ages: Sequence[int]) -> BufferReport:
        return BufferReport(self.buffer, len(self.updates), self.fleet.under_way, ages)

    def _first(self) -> tuple[list[BufferedUpdate], Tensor, Tensor]:
        """The first M updates as a step takes them: with clients' numbers (M,) and weights (M,).

        A client that has left since has the number −1, and the weight it had.
        """
        numbers, registered = self.fleet.numbers(), self.fleet.weights
        taken = [(one, numbers.get((one.node, one.client), -1)) for one in self.updates]
        taken = sorted(taken[: self.buffer], key=lambda x: (x[0].began, x[1]))
        weights = [one.weight if at < 0 else float(registered[at]) for one, at in taken]
        return (
            [one for one, _ in taken],
            torch.tensor([at for _, at in taken], dtype=torch.int64),
            torch.tensor(weights, dtype=torch.float64),
        )

    def _drop_old(self, number: int) -> None:
        """Throws updates away that are older than they may be."""
        if self.plan.max_age is None:
            return
        old = [one for one in self.updates if number - one.began > self.plan.max_age]
        if old:
            self._forget(old)
            self.fleet.log.settle(number, old, "too old")
            dropped = self.fleet.exchange(number).dropped
            dropped.setdefault("its update is too old", []).extend(one.client for one in old)

    def _forget(self, updates: list[BufferedUpdate]) -> None:
        gone = {one.key for one in updates}
        self.updates = [one for one in self.updates if one.key not in gone]

    def _pay_owed(self) -> None:
        """Tells clients that are back which of their tags counts."""
        if self._owed:
            numbers = self.fleet.numbers()
            for who in self._owed.keys() & numbers.keys():
                self.fleet.registry.clients[numbers[who]].accepted = self._owed.pop(who)

    def _say(self, number: int) -> None:
        """Tells operators from time to time that a step waits for nodes."""
        under_way = sum(self.fleet.under_way.values())
        if under_way + len(self.updates) >= self.buffer:
            self._said = time.monotonic()
        elif time.monotonic() - self._said > SAID:
            self._said = time.monotonic()
            said = (
                f"Step {number} waits for nodes: {len(self.updates)} of {self.buffer} updates have "
                f"come in, and {under_way} clients are under way."
            )
            if lost := self.fleet.records.away():
                said += f" Away: {lost}."
            self.fleet.notice(said)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of it: how often each row was moved."""
        return {f"moves/{table}": x for table, x in self.moves.items()}

    def state(self) -> dict[str, Any]:
        """The rest of it, as JSON. Updates that wait are in files of their own."""
        owed = [[node, client, tag] for (node, client), tag in self._owed.items()]
        return {"step": self._step, "owed": owed}

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to a checkpoint; what was under way is given up, what had come in is not."""
        for table, moves in self.moves.items():
            moves.copy_(tensors[f"moves/{table}"])
        self._step = int(state["step"])
        self._owed = {(node, client): tag for node, client, tag in state["owed"]}
        self.updates = self.fleet.log.restore(self._step)
