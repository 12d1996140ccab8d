"""Whole rounds as one CUDA graph, where the server does no more than add.

`cuda_graphs` records what the clients do. For a small model what the server does around it takes
longer than that, in launches: index sets, the download, the mean, the step. Here all of it is
recorded, by running the same functions on buffers of fixed size. The host has nothing left to do
but to draw the cohort and to copy a few numbers of each client to the GPU.

    rows behind the cohort's own     belong to whatever row comes next in the index, and their
                                     update and share are 0, or made 0: adding them changes nothing

So it serves algorithms that only add to rows (`Algorithm.additive`). `fast_paths` says what else
must hold. What cannot be recorded runs as it is, and nobody sees a difference.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import step_
from fedrows.data.batches import RoundInputs, drawn, local_data, round_inputs, with_keys
from fedrows.fleet import Traffic, traffic_of
from fedrows.optimizers.local_optimizer import local_optimizer
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Total, mean, take
from fedrows.server import PlainRounds, Progress
from fedrows.simulator.cuda_graphs import room
from fedrows.simulator.simulated_fleet import SimulatedFleet


class RecordedRounds:
    """Plain rounds, each as one recorded graph; as they are from the first that cannot be."""

    def __init__(self, plain: PlainRounds, fleet: SimulatedFleet) -> None:
        self.plain, self.fleet = plain, fleet
        self.failed = False  # whether it has turned out that rounds cannot be recorded
        self._recorded: _Round | None = None

    def __call__(self) -> None:
        plan, progress = self.plain.plan, self.plain.progress
        if self.failed:
            return self.plain()
        number = progress.round + 1
        selection = _Selection(self.fleet, self.fleet.draw(number, plan.clients_per_round))
        recorded = self._recorded
        if recorded is None or not recorded.fits(selection):
            try:
                self._recorded = recorded = _Round(self.fleet, plan, progress, selection)
            except RuntimeError as error:  # too little memory, or it cannot be recorded
                self.failed, self._recorded = True, None
                why = str(error).strip().splitlines()[0]
                self.fleet.notes.append(
                    f"Rounds are not recorded as a whole, which is slower: {why}"
                )
                return self.plain()
        recorded.replay(selection, number)
        progress.round = number
        count, traffic = plan.clients_per_round, recorded.traffic(selection)
        progress.bytes_down, progress.bytes_up = traffic.down / count, traffic.up / count
        return None


class _Selection:
    """A cohort, and where its rows are in each table's index; all on the host."""

    def __init__(self, fleet: SimulatedFleet, cohort: Tensor) -> None:
        self.cohort, which = cohort, cohort.numpy()
        self.index: dict[str, Index] = {}
        self.shift: list[np.ndarray] = []
        for table, index in fleet.data.index.items():
            whole = index.splits.numpy()
            starts = whole[which]
            splits = np.zeros(len(which) + 1, dtype=np.int64)
            np.cumsum(whole[which + 1] - starts, out=splits[1:])
            self.index[table] = Index(torch.empty(0), torch.from_numpy(splits))
            self.shift.append(starts - splits[:-1])
        weights = fleet.weights.numpy()[which]
        self.share = weights / weights.sum()

    def sizes(self) -> dict[str, int]:
        """How many rows of each table the cohort holds."""
        return {table: int(index.splits[-1]) for table, index in self.index.items()}


class _Round:
    """A recorded round, with room for so many rows."""

    def __init__(
        self, fleet: SimulatedFleet, plan: Plan, progress: Progress, selection: _Selection
    ) -> None:
        self.fleet, self.plan, self.progress = fleet, plan, progress
        self.device, self.tables = fleet.device, list(fleet.data.index)
        self.local = local_data(fleet.data, selection.cohort)
        self.capacity = {table: room(size) for table, size in selection.sizes().items()}
        self.lr: float | Tensor = plan.lr
        if plan.lr_changes:
            self.lr = torch.zeros((), dtype=plan.torch_dtype, device=self.device)
        known = self._facts(selection, 1)
        self.facts = torch.zeros(known.shape, dtype=torch.int64, device=self.device)
        self.graph = torch.cuda.CUDAGraph()
        self._record(known)

    def fits(self, selection: _Selection) -> bool:
        """Whether there is room for a cohort."""
        return all(size <= self.capacity[table] for table, size in selection.sizes().items())

    def replay(self, selection: _Selection, number: int) -> None:
        """Runs a round."""
        self.facts.copy_(self._facts(selection, number), non_blocking=True)
        if isinstance(self.lr, Tensor):
            self.lr.fill_(self.plan.lr_at(number))
        self.graph.replay()

    def traffic(self, selection: _Selection) -> Traffic:
        """The bytes of a round."""
        schema, dtype = self.fleet.model.schema, self.plan.torch_dtype
        return traffic_of(schema, selection.sizes(), len(selection.cohort), dtype)

    def _facts(self, selection: _Selection, number: int) -> Tensor:
        """All that tells one round from another, a row of K numbers each, on the host."""
        local = local_data(self.fleet.data, selection.cohort)
        random = self.fleet.model.random
        known = round_inputs(local, selection.index, self.plan, number, random).numpy()
        sizes = [np.full_like(selection.shift[0], size) for size in selection.sizes().values()]
        share = selection.share.view(np.int64)
        return torch.from_numpy(np.vstack([known, *selection.shift, *sizes, share]))

    def _record(self, known: Tensor) -> None:
        known[-1] = 0  # nobody has a share: running it for real, as CUDA asks for, moves nothing
        self.facts.copy_(known)
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            self._run()
        torch.cuda.current_stream(self.device).wait_stream(aside)
        with torch.cuda.graph(self.graph):
            self._run()

    def _run(self) -> None:
        """What is recorded: a round of `server.rounds`."""
        fleet, progress, count = self.fleet, self.progress, len(self.tables)
        model, algorithm, params = fleet.model, fleet.algorithm, progress.params
        known = RoundInputs(self.facts[: 4 + count], self.tables)
        shift = dict(zip(self.tables, self.facts[4 + count : 4 + 2 * count], strict=True))
        sizes = dict(zip(self.tables, self.facts[4 + 2 * count : -1], strict=True))
        share = self.facts[-1].view(torch.float64).to(self.plan.torch_dtype)
        index = {table: self._index(table, known, shift[table]) for table in self.tables}
        with torch.inference_mode(model.closed_form):
            start = take(params, index, len(share))
            here = start.map(torch.clone)
            stream = drawn(self.local, known, self.plan)
            stream = with_keys(stream, known) if model.random else stream
            more = (None, None, (), self.plan.clip, self.lr, stream)
            step_(model, algorithm, local_optimizer(self.plan), here, start, *more)
            here.add_(start, -1)
            rows, dense = mean(here, share)
            if self.plan.weight_decay or algorithm.reads_shares:
                for table, x in rows.items():  # nobody holds what is behind the cohort's own rows
                    held = torch.arange(len(x.share), device=self.device) < sizes[table][0]
                    x.share = x.share * held  # (R,)
                    x.values.mul_(held[:, None])  # (R, 1); weight decay has pulled at them
            sums = Total(rows, dense, share, float("nan"), share)
            round_ = Round(0, self.plan.lr, fleet.clients, float("nan"), self.local.clients)
            algorithm.step_(params, progress.state, sums, fleet.heat(), round_)

    def _index(self, table: str, known: RoundInputs, shift: Tensor) -> Index:
        """The cohort's index sets, and behind them entries of others."""
        whole = self.fleet.data.index[table]
        assert whole.place is not None
        assert whole.held is not None
        entries = torch.arange(self.capacity[table], device=self.device)
        owner = torch.searchsorted(known.offsets[table].contiguous(), entries, right=True) - 1
        source = (entries + shift[owner]).clamp_(max=len(whole.ids) - 1)
        position = whole.place[source]
        splits = torch.zeros(len(shift) + 1, dtype=torch.int64)
        return Index(whole.held[position], splits, position, whole.held, source, owner)
