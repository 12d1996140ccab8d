"""The schedule of an asynchronous run in the clear: C clients train at a time, M make a step."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.async_fleet import AsyncFlowerFleet
from fedrows.flower.server.unwaited_rounds import UnwaitedRounds
from fedrows.flower.server.update_log import BufferedUpdate
from fedrows.flower.server.uploads import TOO_LONG, mean_loss
from fedrows.rows.staleness import weigh


class BufferedRounds(UnwaitedRounds[AsyncFlowerFleet]):
    """Who begins when, and which updates a step takes."""

    def begin(self, number: int) -> Tensor:
        """Clients that are free, as many as may begin, ascending.

        A client whose update waits for a step begins again after it.
        """
        self._pay_owed()
        count, busy = self.concurrency - sum(self.fleet.under_way.values()), self._busy()
        if count <= 0 or len(self.updates) >= self.buffer or bool(busy.all()):
            return torch.zeros(0, dtype=torch.int64)
        return self._draw(number, count, busy)

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
            out = [waiting for waiting, long in zip(taken, bad, strict=True) if long]
            for waiting in out:
                fleet.refuse(waiting, *TOO_LONG)
            self._forget(out)
            fleet.log.settle(number, out, TOO_LONG[0])
        else:
            self._say(number)
            return fleet.reader.joined(torch.zeros(0, dtype=torch.int64), [])
        self._forget(taken)
        self._taken, self._step = taken, number
        fleet.applied(taken)
        for waiting, client in zip(taken, clients.tolist(), strict=True):
            self._accept((waiting.node, waiting.client), client, waiting.tag)
        age = number - torch.tensor([waiting.began for waiting in taken])
        joined = fleet.reader.joined(clients, [waiting.update for waiting in taken])
        read = {
            table: torch.cat([waiting.read[table] for waiting in taken]) for table in self.moves
        }
        update = weigh(joined.update, age, self.plan.staleness, self.moves, read)
        exchange.answered = len(taken)
        exchange.loss = mean_loss(
            [(x.update.loss, x.weight) for x in taken if x.update.loss is not None]
        )
        exchange.buffer = self.last = self._report(age.tolist())
        self._said = time.monotonic()
        return replace(joined, update=update, weights=weights)

    def _first(self) -> tuple[list[BufferedUpdate], Tensor, Tensor]:
        """The first M updates as a step takes them: with clients' numbers (M,) and weights (M,).

        A client that has left since has the number −1, and the weight it had.
        """
        numbers, registered = self.fleet.numbers(), self.fleet.weights
        taken = [(update, numbers.get((update.node, update.client), -1)) for update in self.updates]
        taken = sorted(taken[: self.buffer], key=lambda x: (x[0].began, x[1]))
        weights = [update.weight if at < 0 else float(registered[at]) for update, at in taken]
        return (
            [update for update, _ in taken],
            torch.tensor([at for _, at in taken], dtype=torch.int64),
            torch.tensor(weights, dtype=torch.float64),
        )
