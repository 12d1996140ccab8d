"""What the schedules of asynchronous deployed runs share: updates that wait for their step.

The round loop is that of every run (`server.PlainRounds`). It asks who begins, and takes what has
arrived; while that is not enough for a step, it asks again. So whoever is free begins from the
model as it is, and nobody is waited for.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.fleet import SAID
from fedrows.flower.server.unwaited_fleet import UnwaitedFleet
from fedrows.flower.server.update_log import BufferedUpdate
from fedrows.flower.wire.clients import ClientName
from fedrows.rows.params import Params, Submodels
from fedrows.rows.staleness import count_moves_
from fedrows.seeds import SLOT, bits, key
from fedrows.server import ATTEMPT
from fedrows.simulator.asynchronous import concurrency_of
from fedrows.watch.observer import BufferReport

F = TypeVar("F", bound=UnwaitedFleet)


class UnwaitedRounds(Generic[F]):
    """Who begins when, and which updates a step takes."""

    def __init__(self, fleet: F, shared: Params) -> None:
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
        """The clients that begin to train before a step, ascending; there may be none."""
        raise NotImplementedError

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """The updates of a step, weighed by their staleness; none while too few have come in."""
        raise NotImplementedError

    def _busy(self) -> Tensor:
        """Which clients cannot begin: their node is at work or away, or their update waits (N,).

        A node also waits with as many clients as have sent an update and are registered no more. It
        could else fill a buffer by giving its clients other names.
        """
        busy, numbers = self.fleet.occupied(), self.fleet.numbers()
        sent = [who for update in self.updates for who in update.clients]
        busy[[numbers[who] for who in sent if who in numbers]] = True
        gone = Counter(node for node, name in sent if (node, name) not in numbers)
        for (node, _), at in numbers.items() if gone else ():
            if gone[node] and not busy[at]:
                busy[at] = True
                gone[node] -= 1
        return busy

    def _draw(self, number: int, count: int, busy: Tensor) -> Tensor:
        """So many clients that are free, or all who are; another draw each time, ascending.

        Without delay, and if all are free, the first are those of a synchronous round.
        """
        fleet, attempt = self.fleet, self._drawn[1] if self._drawn[0] == number else 0
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

    def _accept(self, who: tuple[str, ClientName], number: int, tag: int) -> None:
        """Notes which tag of a client counts. number: the client's, −1 if it has left since."""
        if number < 0:
            self._owed[who] = tag
        else:
            self.fleet.registry.clients[number].accepted = tag

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
        waiting = sum(len(update.clients) for update in self.updates)
        return BufferReport(self.buffer, waiting, self.fleet.under_way, ages)

    def _drop_old(self, number: int) -> None:
        """Throws updates away that are older than they may be."""
        if self.plan.max_age is None:
            return
        old = [update for update in self.updates if number - update.began > self.plan.max_age]
        if old:
            self._forget(old)
            self.fleet.log.settle(number, old, "too old")
            names = [name for update in old for _, name in update.clients]
            self.fleet.exchange(number).drop_("its update is too old", names)

    def _forget(self, updates: list[BufferedUpdate]) -> None:
        gone = {update.key for update in updates}
        self.updates = [update for update in self.updates if update.key not in gone]

    def _pay_owed(self) -> None:
        """Tells clients that are back which of their tags counts."""
        if self._owed:
            numbers = self.fleet.numbers()
            for who in self._owed.keys() & numbers.keys():
                self.fleet.registry.clients[numbers[who]].accepted = self._owed.pop(who)

    def _say(self, number: int) -> None:
        """Tells operators from time to time that a step waits for nodes."""
        at = self.now()
        under_way = sum(at.under_way.values())
        if under_way + at.waiting >= self.buffer:
            self._said = time.monotonic()
        elif time.monotonic() - self._said > SAID:
            self._said = time.monotonic()
            notice = (
                f"Step {number} waits for nodes: {at.waiting} of {self.buffer} updates have come "
                f"in, and {under_way} clients are under way."
            )
            if lost := self.fleet.records.away():
                notice += f" Away: {lost}."
            self.fleet.notice(notice)

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
