"""The schedule of an asynchronous private run: C / M groups of M clients, and a step for each mean.

A group begins to find its rows before a step, and reads them as soon as it has found them, which
may be some steps later. From then on it ages.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.group_fleet import GroupFleet, nobody
from fedrows.flower.server.unwaited_rounds import UnwaitedRounds
from fedrows.rows.staleness import weigh

TRIES = 8  # draws, until one is on enough nodes


class GroupedRounds(UnwaitedRounds[GroupFleet]):
    """Who begins when, and which group's mean a step takes."""

    def begin(self, number: int) -> Tensor:
        """The clients of a group that gets its rows now; before that, new groups are formed."""
        self._pay_owed()
        while self._form(number):
            pass
        self.fleet.unused = len(self.updates)
        return self.fleet.ready()

    def _form(self, number: int) -> bool:
        """Forms a group, if there may be another one and enough nodes are free."""
        fleet = self.fleet
        alone = not fleet.groups
        most = max(1, self.concurrency // self.buffer)
        if fleet.recounts or self.updates or len(fleet.groups) >= most:
            return False
        if not alone and not fleet.may_form(number):
            return False  # the run ends when what is under way has ended
        busy = self._busy()
        if not alone and int((~busy).sum()) < self.buffer:
            return False
        for _ in range(TRIES):
            cohort = self._draw(number, self.buffer, busy)
            if fleet.nodes_of(cohort) >= fleet.fewest_nodes:
                fleet.form(number, cohort)
                return True
        return False

    def arrived(self, number: int, upload: Upload | None) -> Upload:
        """The mean of a group weighed by its staleness; nobody's while none has come in."""
        fleet, exchange = self.fleet, self.fleet.exchange(number)
        self.updates += fleet.collect(number, wait=not self.updates and not fleet.is_any_ready)
        self._drop_old(number)
        if not self.updates:
            self._say(number)
            return nobody()
        taken, numbers = self.updates[0], fleet.numbers()
        self._forget([taken])
        self._taken, self._step = [taken], number
        clients = [numbers.get(who, -1) for who in taken.members]
        for who, client in zip(taken.members, clients, strict=True):
            self._accept(who, client, taken.tag)
        age, mean = number - torch.tensor([taken.began]), taken.update.parts["update"]
        update = weigh(mean, age, self.plan.staleness, self.moves, taken.read)
        exchange.answered, exchange.loss = len(clients), taken.update.loss
        exchange.buffer = self.last = self._report(age.tolist())
        self._said, fleet.unused = time.monotonic(), len(self.updates)
        weight = torch.tensor([taken.weight], dtype=torch.float64)
        steps = torch.ones(1, dtype=torch.float64)  # a sum does not tell how many
        return Upload(torch.tensor(clients), update, steps, {}, None, weight)
