"""Where the clients are: the one seam between a server and the devices it trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.batches import local_data
from fedrows.client import Upload, train
from fedrows.data import FederatedData
from fedrows.heat import Heat
from fedrows.index import Index
from fedrows.model import Model
from fedrows.params import Submodels, join
from fedrows.plan import Plan


class Fleet(Protocol):
    """N clients, somewhere: what a server may ask of them."""

    @property
    def clients(self) -> int:
        """N, the number of clients."""

    @property
    def weights(self) -> Tensor:
        """w_i, by the plan's weighting: (N,) float64."""

    @property
    def least(self) -> int:
        """How many answers make a round; with fewer it is asked for again."""

    def gather(self) -> None:
        """Takes in what has changed since the last round: who came, who left, whose data did."""

    def heat(self) -> Mapping[str, Heat]:
        """The heat of every table, under the same weights."""

    def index_sets(self, cohort: Tensor) -> Mapping[str, Index]:
        """S(i) of some clients, in every table."""

    def train(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        """What the clients make of the submodels they are sent."""


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
        self._heat = self.data.heat(plan.weighting)

    @property
    def clients(self) -> int:
        return self.data.clients

    def gather(self) -> None:
        """Nobody comes or goes."""

    def heat(self) -> Mapping[str, Heat]:
        return self._heat

    def index_sets(self, cohort: Tensor) -> Mapping[str, Index]:
        return {table: index.select(cohort) for table, index in self.data.index.items()}

    def train(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        chunk = self.plan.chunk or len(cohort)
        kept = self._recall(cohort, start.index)
        parts = []
        for low in range(0, len(cohort), chunk):
            high = min(low + chunk, len(cohort))
            whole = (low, high) == (0, len(cohort))
            own, its_sent, its_kept = (
                x if x is None or whole else x.slice(low, high) for x in (start, sent, kept)
            )
            assert own is not None
            local = local_data(self.data, cohort[low:high])
            parts.append(
                train(self.model, self.algorithm, local, own, its_sent, its_kept, self.plan, round_)
            )
        upload = Upload(
            cohort,
            join(start.index, [part.update for part in parts]),
            torch.cat([part.steps for part in parts]),
            {
                name: join(start.index, [part.extra[name] for part in parts])
                for name in parts[0].extra
            },
            None,
        )
        if kept is not None:
            self._remember(cohort, join(start.index, [p.kept for p in parts if p.kept is not None]))
        return upload

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

    def _remember(self, cohort: Tensor, kept: Submodels) -> None:
        """Stores what the cohort keeps."""
        assert self.kept is not None
        for table, rows in kept.rows.items():
            self.kept.rows[table][kept.index[table].source] = rows
        for name, dense in kept.dense.items():
            self.kept.dense[name][cohort.to(self.device)] = dense
