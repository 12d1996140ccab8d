"""The simulated fleet: all clients on this machine, a cohort trained in chunks."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.client import Upload, train
from fedrows.data.batches import LocalData, local_data
from fedrows.data.federation import FederatedData
from fedrows.fleet import NO_TRAFFIC, Traffic, clear_traffic
from fedrows.model import Model
from fedrows.nn import fused, kernels, lstm_layer
from fedrows.nn.kernels.select import select
from fedrows.plan import Plan
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels, join
from fedrows.seeds import COHORT, choose
from fedrows.simulator.chunks import Chunks, fastest
from fedrows.simulator.graphed import Graphed


class SimulatedFleet:
    """All clients on this machine; a cohort trains together, in chunks."""

    least = 0  # all of them answer

    def __init__(self, model: Model, algorithm: Algorithm, data: FederatedData, plan: Plan) -> None:
        self.model = model
        self.algorithm = algorithm
        self.plan = plan
        self.device = plan.torch_device
        self.data = data.to(self.device, plan.torch_dtype)
        self.weights = data.weights(plan.weighting)
        self.kept = self._nothing_kept()
        self.notes: list[str] = []  # what turned out while training, each said once
        # How cohorts are cut: chosen in the first round, or given back to a resumed run.
        self.chunks: Chunks | None = None
        self._threads: tuple[int, ThreadPoolExecutor] | None = None
        self._heat = self.data.heat(plan.weighting)
        self._graphed: Graphed | None = None  # the fast path of a GPU, `client.train` recorded
        if self.device.type == "cuda" and not getattr(model, "one_by_one", False):
            self._graphed = Graphed(model, algorithm, plan)
            self.notes += fused.notes()

    @property
    def clients(self) -> int:
        return self.data.clients

    def gather(self) -> None:
        """Nobody comes or goes."""

    @property
    def fast(self) -> bool:
        """Whether training is recorded and replayed, on a GPU."""
        return self._graphed is not None

    def plain(self) -> None:
        """Leaves the fast paths out: `client.train` as it stands, to hold them against."""
        self._graphed = None

    def heat(self) -> Mapping[str, Heat]:
        return self._heat

    def draw(self, counter: int, count: int) -> Tensor:
        return choose(self.plan.seed, COHORT, counter, self.clients, count)

    def open_round(self, round_: Round) -> SimulatedRound:
        index = {}
        for table, whole in self.data.index.items():
            fast = self._graphed is not None and whole.place is not None and not kernels.missing()
            index[table] = select(whole, round_.cohort) if fast else whole.select(round_.cohort)
        return SimulatedRound(self, round_, index)

    def trained(
        self,
        cohort: Tensor,
        start: Submodels,
        sent: Submodels | None,
        round_: Round,
        cut: LocalData | None = None,
    ) -> Upload:
        """What the clients upload and what they are to keep, of which nothing is stored yet.

        cut: examples to train on in place of all that the clients have. They are others in every
        round, so nothing of their training is recorded.
        """
        kept = self._recall(cohort, start.index)
        parts = self._parts(cohort, start, sent, kept, round_, cut)
        said = [self.model.untraced, *lstm_layer.notes()]
        self.notes += [note for note in said if note is not None and note not in self.notes]
        return Upload(
            cohort,
            join(start.index, [part.update for part in parts]),
            torch.cat([part.steps for part in parts]),
            {
                name: join(start.index, [part.extra[name] for part in parts])
                for name in parts[0].extra
            },
            None if kept is None else join(kept.index, [p.kept for p in parts if p.kept]),
        )

    def _parts(
        self,
        cohort: Tensor,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        round_: Round,
        examples: LocalData | None,
    ) -> list[Upload]:
        """What the chunks of a cohort upload, in order."""

        def cut(way: Chunks) -> list[Upload]:
            bounds = way.bounds(len(cohort))
            if way.at_a_time == 1:
                return list(map(part, bounds[:-1], bounds[1:]))
            return list(self._pool(way.at_a_time).map(part, bounds[:-1], bounds[1:]))

        def part(low: int, high: int) -> Upload:
            whole = (low, high) == (0, len(cohort))
            own, its_sent, its_kept = (
                x if x is None or whole else x.slice(low, high) for x in (start, sent, kept)
            )
            assert own is not None
            if examples is None:
                local = local_data(self.data, cohort[low:high])
                return self._train(local, own, its_sent, its_kept, round_)
            local, plan = examples.slice(low, high), self.plan
            return train(self.model, self.algorithm, local, own, its_sent, its_kept, plan, round_)

        while True:
            try:
                if self.chunks is None and self.device.type == "cpu" and self.plan.chunk is None:
                    self.chunks = fastest(cut, len(cohort), torch.get_num_threads())
                elif self.chunks is None:
                    self.chunks = Chunks(self.plan.chunk or len(round_.cohort))
                return cut(self.chunks)
            except torch.OutOfMemoryError:
                if self.chunks is not None and self.chunks.clients == 1:
                    raise
                self._train_fewer(len(cohort))

    def _train_fewer(self, cohort: int) -> None:
        """Halves the chunks, after a cohort has not fitted into the memory of the GPU."""
        if self._graphed is not None:
            self._graphed.forget()
        before = cohort if self.chunks is None else min(self.chunks.clients, cohort)
        self.chunks = Chunks(-(-before // 2))
        said = f"A cohort of {cohort} does not fit into the GPU's memory: it trains in chunks of "
        self.notes = [note for note in self.notes if not note.startswith(said)]
        self.notes.append(f"{said}{self.chunks.clients}.")

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Threads that compute on one core each."""
        if self._threads is None or self._threads[0] != threads:
            pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
            self._threads = threads, pool  # one that was there ends with its last reference
        return self._threads[1]

    def _train(
        self,
        local: LocalData,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        round_: Round,
    ) -> Upload:
        """One chunk, by the fastest way there is."""
        if self._graphed is not None:
            try:
                return self._graphed.train(local, start, sent, kept, round_)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._graphed = None
                said = str(error).strip().splitlines()[0]
                self.notes.append(f"Trained without a CUDA graph, which is slower: {said}")
        return train(self.model, self.algorithm, local, start, sent, kept, self.plan, round_)

    def _nothing_kept(self) -> Submodels | None:
        """What all N clients keep before they ever trained; None if the algorithm keeps nothing."""
        if not self.algorithm.keeps:
            return None
        schema, dtype = self.model.schema, self.plan.torch_dtype
        rows = {
            table: torch.zeros(
                len(self.data.index[table].ids), its.width, dtype=dtype, device=self.device
            )
            for table, its in schema.tables.items()
            if table not in self.data.local
        }
        dense = {
            name: torch.zeros(self.clients, *shape, dtype=dtype, device=self.device)
            for name, shape in schema.dense.items()
        }
        return Submodels({table: self.data.index[table] for table in rows}, rows, dense)

    def _recall(self, cohort: Tensor, index: Mapping[str, Index]) -> Submodels | None:
        """What the cohort has kept."""
        if self.kept is None:
            return None
        who = cohort.to(self.device)
        return Submodels(
            {table: index[table] for table in self.kept.rows},
            {table: rows[index[table].source] for table, rows in self.kept.rows.items()},
            {name: dense[who] for name, dense in self.kept.dense.items()},
        )

    def remember(self, cohort: Tensor, kept: Submodels | None) -> None:
        """Stores what the cohort keeps, if it keeps anything."""
        if self.kept is None or kept is None:
            return
        for table, rows in kept.rows.items():
            self.kept.rows[table][kept.index[table].source] = rows
        for name, dense in kept.dense.items():
            self.kept.dense[name][cohort.to(self.device)] = dense


@dataclass
class SimulatedRound:
    """A round of a simulated cohort."""

    fleet: SimulatedFleet
    round: Round
    index: Mapping[str, Index]
    traffic: Traffic = NO_TRAFFIC

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        fleet, cohort = self.fleet, self.round.cohort
        upload = fleet.trained(cohort, start, sent, self.round)
        fleet.remember(upload.clients, upload.kept)
        local, schema = fleet.data.local, fleet.model.schema
        self.traffic = clear_traffic(schema, local, start, sent, upload)
        return replace(upload, kept=None)
