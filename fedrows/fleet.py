"""Where the clients are: the one seam between a server and the devices it trains on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


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
