"""What a client does in a round: I local SGD steps from the submodel it was sent.

The same function trains one client on a device (K = 1) and a simulated cohort of thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.data.batches import Batch, LocalData, batches, steps_of
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Submodels


@dataclass
class Upload:
    """What K clients send back, and what they keep to themselves."""

    clients: Tensor  # (K,), the numbers of the clients that answered
    update: Submodels  # Δ_k = where the client ended − where it started
    steps: Tensor  # (K,), the local steps taken, on the CPU
    extra: dict[str, Submodels]
    kept: Submodels | None
    weights: Tensor | None = None  # of what was sent; None: those of the clients


class Trainer(Protocol):
    """A way to train K clients: the plain one, or one that wraps it to be faster."""

    @property
    def plain(self) -> PlainTrainer:
        """The plain one, which serves any examples."""

    def train(
        self,
        local: LocalData,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        round_: Round,
    ) -> Upload:
        """What `train` gives."""

    def forget(self) -> None:
        """Gives back memory that is only kept to be faster."""


@dataclass(frozen=True)
class PlainTrainer:
    """`train`, for one model, algorithm and plan."""

    model: Model
    algorithm: Algorithm
    plan: Plan

    @property
    def plain(self) -> PlainTrainer:
        return self

    def train(
        self,
        local: LocalData,
        start: Submodels,
        sent: Submodels | None,
        kept: Submodels | None,
        round_: Round,
    ) -> Upload:
        return train(self.model, self.algorithm, local, start, sent, kept, self.plan, round_)

    def forget(self) -> None:
        """It keeps nothing."""


def train(
    model: Model,
    algorithm: Algorithm,
    local: LocalData,
    start: Submodels,
    sent: Submodels | None,
    kept: Submodels | None,
    plan: Plan,
    round_: Round,
) -> Upload:
    """Trains K clients side by side, each on its own examples and its own copy of its rows."""
    stream = batches(local, start.index, plan, round_.number, model.random)
    with torch.inference_mode(model.closed_form):  # less to do for every operation
        here = start.map(torch.clone)
        step_(model, algorithm, here, start, sent, kept, local.local, plan.clip, round_.lr, stream)
        here.add_(start, -1)
        return upload(algorithm, local, here, sent, kept, plan, round_)


def step_(
    model: Model,
    algorithm: Algorithm,
    here: Submodels,
    start: Submodels,
    sent: Submodels | None,
    kept: Submodels | None,
    private: Collection[str],
    clip: float | None,
    lr: float | Tensor,
    stream: Iterable[Batch],
) -> None:
    """Takes a local step on every batch, from where the clients are; `private` tables stay theirs.

    Nothing in here waits for a GPU or looks at a number on it, so that it can be recorded.
    """
    own_start, shared, down = start.without(private), here.without(private), -lr
    for batch in stream:
        gradient = model.gradient(here, batch)
        if clip is not None:
            # Before the algorithm's own terms: a clipped drift would no longer be known.
            gradient.scale_((clip / gradient.norms().clamp(min=1e-12)).clamp(max=1))
        algorithm.adjust_(gradient.without(private), shared, own_start, sent, kept)
        if batch.active is not None:
            gradient.scale_(batch.active)  # the whole step, the algorithm's own terms included
        here.add_(gradient, down)


def upload(
    algorithm: Algorithm,
    local: LocalData,
    update: Submodels,
    sent: Submodels | None,
    kept: Submodels | None,
    plan: Plan,
    round_: Round,
) -> Upload:
    """What goes back after the last step."""
    steps = steps_of(local, plan).to(torch.float64)
    extra, kept = algorithm.finish(update.without(local.local), sent, kept, round_.lr, steps)
    return Upload(local.clients, update, steps, extra, kept)
