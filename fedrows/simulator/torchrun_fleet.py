"""A fleet in several processes: each trains a part of every cohort, and only updates travel.

    every rank       holds the whole model and all data, and draws the same cohort
    train            its own clients, which stand side by side in the cohort
    all-gather       the updates of the rows that the cohort touches, the dense updates, and what
                     clients return beside and keep: flat, in one exchange, never a whole table
    then             each rank adds all of them up, in cohort order, and steps; all arrive alike

Ids and sizes do not travel, for every rank knows the index sets. The numbers are those of a single
process; bit for bit if `chunk` is given and no larger than a rank's part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.data.batches import occurred, steps_of
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.fleet import NO_TRAFFIC, Traffic, clear_traffic
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, index_select
from fedrows.rows.ragged import Ragged
from fedrows.simulator.chunks import Chunks
from fedrows.simulator.process_group import RankGroup, digest
from fedrows.simulator.simulated_fleet import SimulatedFleet

_OWN = ("device", "threads")  # of a plan: what ranks need not have in common
_ROWS = 1_000  # of a table, that the starting models are compared by


class TorchrunFleet:
    """A simulated fleet whose cohorts are split over the processes of a group."""

    least = 0  # all clients answer

    def __init__(self, inner: SimulatedFleet, group: RankGroup) -> None:
        cohort = inner.plan.clients_per_round
        if inner.algorithm.pooled:
            raise PlanError(
                f"{inner.algorithm.name} trains in one place, but {group.size} processes were "
                "started: run it without torchrun."
            )
        if group.size > cohort:
            raise PlanError(
                f"clients-per-round is {cohort}, which cannot be split over {group.size} "
                "processes: ask for more clients, or start fewer processes."
            )
        self.inner, self.group = inner, group
        self.checked = False  # whether all ranks are known to make the same run
        self.exchanged = 0  # bytes that this rank has handed to each other rank
        self.stopping: Callable[[], bool] = lambda: False  # whether this rank wants to stop
        self.stopped = False  # whether any did, in the last round; the same on every rank

    @property
    def clients(self) -> int:
        return self.inner.clients

    @property
    def weights(self) -> Tensor:
        return self.inner.weights

    def gather(self) -> None:
        """Nobody comes or goes."""

    def heat(self) -> Mapping[str, Heat]:
        return self.inner.heat()

    def draw(self, counter: int, count: int) -> Tensor:
        return self.inner.draw(counter, count)

    def open_round(self, round_: Round) -> TorchrunRound:
        return TorchrunRound(self, round_, self.inner.open_round(round_).index)

    def check(self, params: Params, round_: int) -> None:
        """Raises a RankError unless all ranks are about to make the same run."""
        inner, plan = self.inner, vars(self.inner.plan)
        settings = {name.replace("_", "-"): x for name, x in plan.items() if name not in _OWN}
        self.group.alike(
            {
                "algorithm": inner.algorithm,
                **settings,
                "model": inner.model.schema,
                "federation": digest(_contents(inner.data)),
                "round to go on from": round_,
                "starting model": digest(_sample(params)),
            }
        )
        self.checked = True

    def trained(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        """What the cohort uploads, of which this rank trains a part."""
        local = self.inner.local(cohort)
        steps = steps_of(local, self.inner.plan)
        places = cuts(steps.numpy(), self.group.size, self.inner.plan.chunk)
        low, high = places[self.group.rank : self.group.rank + 2]
        own = self.inner.trained(
            cohort[low:high],
            start.slice(low, high),
            None if sent is None else sent.slice(low, high),
            round_,
        )
        parts = [own.update, *own.extra.values(), *([own.kept] if own.kept else [])]
        update, *others = self._exchange(parts, start.index, places)
        extra = dict(zip(own.extra, others, strict=False))
        if own.kept is not None:
            self.inner.remember(cohort, others[-1])
        marks = None
        if self.inner.algorithm.needs_occurred:  # follows from the data, which every rank has
            marks = occurred(local, start.index, self.inner.plan, round_.number)
        return Upload(cohort, update, steps.to(torch.float64), extra, None, occurred=marks)

    def _exchange(
        self, parts: list[Submodels], index: Mapping[str, Index], places: list[int]
    ) -> list[Submodels]:
        """The whole cohort's submodels, of which this rank has a part."""
        splits = {table: rows.splits[places].tolist() for table, rows in index.items()}
        tensors = [x for part in parts for x in (*part.rows.values(), *part.dense.values())]
        named = [t for part in parts for t in (*part.rows, *([""] * len(part.dense)))]
        # How many rows of each tensor each rank has; a dense tensor has one a client.
        ends = np.array([splits[table] if table else places for table in named])  # (T, ranks+1)
        widths = np.array([x.shape[1:].numel() for x in tensors])
        sizes = np.diff(ends) * widths[:, None]  # (T, ranks)
        flat = tensors[0].new_zeros(int(sizes.sum(0).max()))  # all send as much as the largest
        own = flat[: int(sizes[:, self.group.rank].sum())]
        torch.cat([x.reshape(-1) for x in tensors], out=own)
        everyones = self._gathered(flat, places)
        by_rank = [
            numbers[: int(lengths.sum())].split(lengths.tolist())
            for numbers, lengths in zip(everyones, sizes.T, strict=True)
        ]
        whole = (
            torch.cat(pieces).view(-1, *x.shape[1:])
            for x, pieces in zip(tensors, zip(*by_rank, strict=True), strict=True)
        )
        return [_filled(part, index, whole) for part in parts]

    def _gathered(self, numbers: Tensor, places: list[int]) -> Tensor:
        """Everyone's numbers; beside them goes what is to be agreed upon."""
        wishes = numbers.new_tensor([self.stopping(), *self._chunks(places)], device="cpu")
        if numbers.device.type == "cpu":  # in one exchange, for each takes its time to begin
            both = self.group.gather(torch.cat([wishes, numbers]))
            all_wishes, all_numbers = both[:, : len(wishes)], both[:, len(wishes) :]
        else:  # on the host, where it is needed, and where it is found out who is gone
            all_wishes, all_numbers = self.group.gather(wishes), self.group.gather(numbers)
        self.exchanged += numbers.nbytes + wishes.nbytes
        self.stopped = bool(all_wishes[:, 0].any())
        self.inner.chunks = Chunks(*min((int(a), int(b)) for a, b in all_wishes[:, 1:].tolist()))
        return all_numbers

    def _chunks(self, places: list[int]) -> tuple[int, int]:
        """How this rank cuts its clients; all take the smallest, so that a resumed run does too."""
        chunks, count = self.inner.chunks, np.diff(places)[self.group.rank]
        assert chunks is not None, "it has trained"
        if chunks.at_a_time == 1 and chunks.clients >= count:
            return places[-1], 1  # not at all, however many clients a later round gives it
        return chunks.clients, chunks.at_a_time


@dataclass
class TorchrunRound:
    """A round of which every rank trains a part."""

    fleet: TorchrunFleet
    round: Round
    index: Mapping[str, Index]
    traffic: Traffic = NO_TRAFFIC

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        inner = self.fleet.inner
        upload = self.fleet.trained(self.round.cohort, start, sent, self.round)
        self.traffic = clear_traffic(inner.model.schema, inner.data.local, start, sent, upload)
        return upload


def cuts(work: np.ndarray, ranks: int, chunk: int | None = None) -> list[int]:
    """Where a cohort is cut for every rank to have about as much work: ranks + 1 places.

    work: what each client has to do. Chunks are left whole where there is one for every rank.
    """
    bounds = Chunks(chunk or 1).bounds(len(work))
    if len(bounds) <= ranks:
        bounds = Chunks(1).bounds(len(work))
    units = np.add.reduceat(work, bounds[:-1])
    done, places = np.cumsum(units), [0]
    for number in range(1, ranks):
        best = 1 + int(np.abs(done - done[-1] * number / ranks).argmin())
        places.append(min(max(best, places[-1] + 1), len(units) - (ranks - number)))
    return [*(bounds[position] for position in places), len(work)]


def _filled(part: Submodels, index: Mapping[str, Index], whole: Iterator[Tensor]) -> Submodels:
    """Submodels like a part of them, of the whole cohort."""
    rows = {table: next(whole) for table in part.rows}
    dense = {name: next(whole) for name in part.dense}
    return replace(part, index={table: index[table] for table in rows}, rows=rows, dense=dense)


def _contents(data: FederatedData) -> Iterator[bytes]:
    """All that is trained on."""
    columns = [*data.slots.values(), *data.train.numbers.values(), data.train.label]
    tensors = [data.train.splits, *(index.ids for index in data.index.values())]
    for column in columns:
        tensors += [column.values, column.offsets] if isinstance(column, Ragged) else [column]
    if data.train.weight is not None:
        tensors.append(data.train.weight)
    for x in tensors:
        yield f"{x.dtype} {tuple(x.shape)}".encode()
        yield x.detach().cpu().contiguous().numpy().tobytes()


def _sample(params: Params) -> Iterator[bytes]:
    """The dense tensors of a model, and rows from all over its tables."""
    for table in params.tables.values():
        count = min(_ROWS, len(table))
        ids = torch.arange(count, device=table.device) * (len(table) // max(count, 1))
        yield index_select(table, ids).cpu().numpy().tobytes()
    for x in params.dense.values():
        yield x.detach().cpu().contiguous().numpy().tobytes()
