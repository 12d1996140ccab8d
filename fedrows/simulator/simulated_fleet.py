"""The simulated fleet: all clients on this machine, the plain way.

`fast_paths` gives it faster ways to train and to cut out index sets; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.client import Assignment, PlainTrainer, Upload
from fedrows.data.batches import LocalData, local_data
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import FreshNegatives
from fedrows.data.personal import PERSONAL
from fedrows.errors import PlanError
from fedrows.fleet import NO_TRAFFIC, Traffic, clear_traffic
from fedrows.model import Model
from fedrows.nn import attention_compiled, lstm_layer
from fedrows.plan import Plan
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.seeds import COHORT, choose
from fedrows.simulator.chunks import ChunkedTrainer, Chunks


class SimulatedFleet:
    """All clients on this machine; a cohort trains together.

    trainer: how it trains, by `client.train` if not given. select: how the index sets of a cohort
    are cut out of all.
    """

    least = 0  # all of them answer

    def __init__(
        self,
        model: Model,
        algorithm: Algorithm,
        data: FederatedData,
        plan: Plan,
        trainer: ChunkedTrainer | None = None,
        select: Callable[[Index, Tensor], Index] = Index.select,
    ) -> None:
        self.model = model
        self.algorithm = algorithm
        self.plan = plan
        self.device = plan.torch_device
        self.data = data.to(self.device, plan.torch_dtype)
        self.weights = data.weights(plan.weighting, plan.weight_quantile)
        self.kept = self._nothing_kept()
        if trainer is None:
            plain = PlainTrainer(model, algorithm, plan)
            trainer = ChunkedTrainer(plain, plan.chunk, measured=False, notes=[])
        self.trainer, self._select = trainer, select
        self.notes = trainer.notes  # what turned out while training, each said once
        self.negatives = None
        check_fits(algorithm, data)
        if data.labels == "ranking":
            self.negatives = FreshNegatives(data, plan, algorithm.pooled)
        self.count_heat_(self.weights)

    @property
    def clients(self) -> int:
        """N, the number of clients."""
        return self.data.clients

    @property
    def chunks(self) -> Chunks | None:
        """How cohorts are cut; None before the first round."""
        return self.trainer.chunks

    @chunks.setter
    def chunks(self, chunks: Chunks | None) -> None:
        self.trainer.chunks = chunks

    def gather(self) -> None:
        """Nobody comes or goes."""

    def heat(self) -> Mapping[str, Heat]:
        """The heat of every table, counted exactly and once."""
        return self._heat

    def count_heat_(self, weights: Tensor) -> None:
        """Counts heat under some weights (N,): the clients', times how often each takes part."""
        self._heat = {table: heat_of(index, weights) for table, index in self.data.index.items()}
        if self.negatives is not None:
            table = self.negatives.table
            self._heat[table] = self.negatives.heat(self.data.index[table], weights)

    def draw(self, counter: int, count: int) -> Tensor:
        """The cohort of a round: `count` different clients, drawn with the seed and the counter."""
        return choose(self.plan.seed, COHORT, counter, self.clients, count)

    def open_round(self, round_: Round) -> SimulatedRound:
        """A round with its cohort, and the rows that each of its clients holds."""
        whole = self.data.index.items()
        index = {table: self._select(index, round_.cohort) for table, index in whole}
        if self.negatives is not None:
            table = self.negatives.table
            index[table] = self.negatives.rows(index[table], round_.cohort, round_.number)
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
        train = self.trainer.train if cut is None else self.trainer.train_plainly
        local = self.local(cohort) if cut is None else cut
        upload = train(Assignment(local, start, sent, kept, round_))
        slower = [*lstm_layer.notes(), *attention_compiled.notes()]
        self.notes += [note for note in slower if note not in self.notes]
        return upload

    def local(self, cohort: Tensor) -> LocalData:
        """The examples of a cohort, and where its negatives are drawn from."""
        local = local_data(self.data, cohort)
        if self.negatives is None:
            return local
        return replace(local, pools=self.negatives.pools(cohort))

    def _nothing_kept(self) -> Submodels | None:
        """What all N clients keep before they ever trained; None if the algorithm keeps nothing."""
        if not self.algorithm.keeps:
            return None
        schema, dtype = self.model.schema, self.plan.torch_dtype
        rows = {
            table: torch.zeros(
                len(self.data.index[table].ids), kind.width, dtype=dtype, device=self.device
            )
            for table, kind in schema.tables.items()
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


def check_fits(algorithm: Algorithm, data: FederatedData) -> None:
    """Raises a PlanError if an algorithm cannot train on such data."""
    if algorithm.pooled and PERSONAL in data.local:
        raise PlanError(
            f"{algorithm.name} trains on pooled data, but the model has personal parts, "
            "which need clients: leave one of them out."
        )
    if algorithm.keeps and data.labels == "ranking":
        raise PlanError(
            f"{algorithm.name} keeps a state for the rows that a client holds, but for ranking a "
            "client holds other rows in every round: choose another algorithm."
        )


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
