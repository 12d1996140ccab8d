"""The algorithm contract, the same for the simulator and for a client on a device.

A round, and where an algorithm may have its say:

    server   settle_   brings the rows that are about to be read up to date (lazy forms)
    server   send      what goes to the clients beside the model
    client   adjust_   changes the local gradient, after clipping (prox term, control variate)
    client   finish    what the client returns beside its update, and what it keeps
    server   step_     turns the total of the updates into the next model

The defaults are FedAvg's. An algorithm is one final class in `algorithms/`, a frozen dataclass of
its options; shared maths is a function, never a parent. State goes in and comes out: an instance
holds options only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedrows.errors import PlanError
from fedrows.options import check
from fedrows.plan import Plan
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, Total

State = dict[str, Params]  # what a server remembers beside the model, by name


def number_per_row(params: Params) -> dict[str, Tensor]:
    """A float64 for every row of every table, 0 at first: (rows,) each."""
    return {t: x.new_zeros(len(x), dtype=torch.float64) for t, x in params.tables.items()}


def single_number(params: Params) -> Tensor:
    """A float64 on the model's device, 0 at first: ()."""
    some = next(iter((*params.tables.values(), *params.dense.values())))
    return some.new_zeros((), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Round:
    """The facts of one round that any side may use."""

    number: int  # counted from 1
    lr: float  # the local learning rate
    clients: int  # N
    weight: float  # Σ w_i over all N clients
    cohort: Tensor  # (K,), the clients' numbers


@dataclass(frozen=True)
class Algorithm(ABC):
    """What every algorithm is; the hooks that are not overridden do what FedAvg does.

    The class attributes are its facts: the rest of the package goes by them, never by names.
    """

    # How reports show it.
    title: ClassVar[str] = ""  # as people write it; the class's name if empty
    colour: ClassVar[int | None] = None  # of report/page.css, 0 to 11; None: the next free one

    # What `step_` does.
    # Additive: no more than adding the corrected mean to the rows it has. Such a step must not read
    # `round_` or keep a state, and the algorithm must not have `send` or `finish`.
    additive: ClassVar[bool] = False
    uses_heat: ClassVar[bool] = False  # reads the heat; the other algorithms may be given none
    reads_shares: ClassVar[bool] = False  # if additive: reads the shares of a row's present holders
    # Defaults of options over a network, where heat is what clients claim; simulations have none.
    deployed: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    # What it counts on at the client: steps of −lr · gradient, with no state of an optimiser.
    plain_steps: ClassVar[bool] = False

    # What it needs of a fleet.
    pooled: ClassVar[bool] = False  # all data in one place, to train on in batches of K · B
    summable: ClassVar[bool] = False  # the sum of the updates, and no client's own
    # If not summable: what comes nearest to it with secure sums, for the message that refuses it.
    nearest_summable: ClassVar[str] = ""
    keeps: ClassVar[bool] = False  # clients keep a state shaped like their submodel, zero at first
    returns: ClassVar[tuple[str, ...]] = ()  # what `finish` sends beside the update, by name
    # What `finish` gives, for devices without Python: {"extra": {name: sum}, "kept": sum}, where a
    # sum has a factor for each of update, sent and kept. Empty: no device can do it.
    finish_on_device: ClassVar[Mapping[str, Any]] = MappingProxyType({})

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        """The name on the command line: the class's, in lower case."""
        return type(self).__name__.lower()

    @classmethod
    def shown(cls) -> str:
        """The name that reports show."""
        return cls.title or cls.__name__

    def check_plan(self, plan: Plan) -> None:
        """Raises a PlanError if clients are to train in a way that the algorithm rules out."""
        if self.plain_steps and plan.optimizer != "sgd":
            raise PlanError(
                f"optimizer is {plan.optimizer!r}, but {self.name} counts on plain SGD at the "
                "clients: choose optimizer sgd, or another algorithm."
            )

    def for_cohorts(self, clients: int) -> Algorithm:
        """The algorithm with what depends on the size of a cohort filled in."""
        return self

    @property
    def lags(self) -> bool:
        """Whether steps on rows that no client reads are delayed, until `settle_` makes them."""
        return False

    @property
    def sweeps(self) -> bool:
        """Whether a step moves rows that nobody holds, and so costs the whole table."""
        return False

    @property
    def needs_occurred(self) -> bool:
        """Whether clients are to say which rows occurred in their batches (`RowTotal.occurred`)."""
        return False

    def start(self, params: Params) -> State:
        """What the server remembers before the first round."""
        return {}

    def settle_(
        self, params: Params, state: State, index: Mapping[str, Index] | None, round_: int
    ) -> None:
        """Brings the rows of an index, or all rows, to where they stand before round `round_`."""

    def send(self, state: State, index: Mapping[str, Index], clients: int) -> Submodels | None:
        """What the clients get beside the model."""
        return None

    def adjust_(
        self,
        gradient: Submodels,
        local: Submodels,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
    ) -> None:
        """Changes the local gradient before it is used."""

    def finish(
        self,
        update: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        lr: float,
        steps: Tensor,
    ) -> tuple[dict[str, Submodels], Submodels | None]:
        """What clients return beside their update, and what they keep for the next time."""
        return {}, kept

    def correction(
        self,
        index: Mapping[str, Index],
        heat: Mapping[str, Heat],
        dtype: torch.dtype,
        share: Tensor | None = None,
    ) -> dict[str, Tensor] | None:
        """What every entry of an update is multiplied by at the server; None: by nothing.

        share: of each client in the mean (K,), the index being that of these clients. If it is not
        given, the result is the largest factor that a row can get.
        """
        return None

    def largest_correction(self, heat: Mapping[str, Heat]) -> float:
        """The largest factor that `correction` gives any row of the heat; at least 1."""
        index = {}
        for table, x in heat.items():
            ids = torch.cat([x.ids, x.ids.new_tensor([-1])]) if x.rest else x.ids  # −1: any other
            index[table] = Index(ids, torch.tensor([0, len(ids)]))
        factors = self.correction(index, heat, torch.float64) or {}
        return max([1.0, *(float(x.max()) for x in factors.values() if len(x))])

    @abstractmethod
    def step_(
        self,
        params: Params,
        state: State,
        total: Total,
        heat: Mapping[str, Heat],
        round_: Round,
    ) -> None:
        """Turns the total of the cohort's updates into the next model and state."""
