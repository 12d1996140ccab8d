"""CentralSGD: plain SGD on the pooled data, the line that federated algorithms are measured by.

It is FedAvg with one client that holds everything: I steps a round, each on K · B examples drawn
with replacement. That client's submodel is every row that occurs in the data, so a round costs
O(rows in use), not O(rows touched).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

from fedrows.algorithm import Algorithm, Round, State
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total


@final
@dataclass(frozen=True)
class CentralSGD(Algorithm):
    """The one client's update, as it is."""

    colour: ClassVar[int | None] = 2
    additive: ClassVar[bool] = True
    pooled: ClassVar[bool] = True

    def step_(
        self, params: Params, state: State, total: Total, heat: Mapping[str, Heat], round_: Round
    ) -> None:
        total.add_(params)
