"""What a client does in a round: I local steps from the submodel it was sent.

The same function trains one client on a device (K = 1) and a simulated cohort of thousands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.data.batches import Batch, LocalData, batches, occurred, steps_of
from fedrows.model import Model
from fedrows.optimizers.local_optimizer import LocalOptimizer, local_optimizer
from fedrows.plan import Plan
from fedrows.rows.params import Submodels


@dataclass(frozen=True)
class Assignment:
    """What K clients train on in a round, and from where."""

    local: LocalData  # their examples
    start: Submodels  # where they start from
    sent: Submodels | None  # what the algorithm sends in addition
    kept: Submodels | None  # what they have kept of earlier rounds
    round: Round

    def slice(self, low: int, high: int) -> Assignment:
        """The same for the clients low … high−1, as views."""
        sent, kept = (None if x is None else x.slice(low, high) for x in (self.sent, self.kept))
        own = self.local.slice(low, high), self.start.slice(low, high)
        return Assignment(*own, sent, kept, self.round)


@dataclass
class Upload:
    """What K clients send back, and what they keep to themselves."""

    clients: Tensor  # (K,), the numbers of the clients that answered
    update: Submodels  # Δ_k = where the client ended − where it started
    steps: Tensor  # (K,), the local steps taken, on the CPU
    extra: dict[str, Submodels]
    kept: Submodels | None
    weights: Tensor | None = None  # of what was sent; None: those of the clients
    occurred: dict[str, Tensor] | None = None  # by shared table (R,), if the algorithm needs it


class Trainer(Protocol):
    """A way to train K clients: the plain one, or one that wraps it to be faster."""

    @property
    def plain(self) -> PlainTrainer:
        """The plain one, which serves any examples."""

    def train(self, given: Assignment) -> Upload:
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

    def train(self, given: Assignment) -> Upload:
        return train(self.model, self.algorithm, self.plan, given)

    def forget(self) -> None:
        """It keeps nothing."""


def train(model: Model, algorithm: Algorithm, plan: Plan, given: Assignment) -> Upload:
    """Trains K clients side by side, each on its own examples and its own copy of its rows."""
    local, start, lr = given.local, given.start, given.round.lr
    stream = batches(local, start.index, plan, given.round.number, model.random)
    with torch.inference_mode(model.closed_form):  # less to do for every operation
        here, more = start.map(torch.clone), (given.sent, given.kept)
        optimizer = local_optimizer(plan)
        step_(model, algorithm, optimizer, here, start, *more, local.local, plan.clip, lr, stream)
        here.add_(start, -1)
        return upload(algorithm, plan, given, here)


def step_(
    model: Model,
    algorithm: Algorithm,
    optimizer: LocalOptimizer,
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
    own_start, shared = start.without(private), here.without(private)
    for batch in stream:
        gradient = model.gradient(here, batch)
        if clip is not None:
            # Before the algorithm's own terms: a clipped drift would no longer be known.
            gradient.scale_((clip / gradient.norms().clamp(min=1e-12)).clamp(max=1))
        algorithm.adjust_(gradient.without(private), shared, own_start, sent, kept)
        optimizer.step_(here, gradient, batch.active, lr)


def upload(algorithm: Algorithm, plan: Plan, given: Assignment, update: Submodels) -> Upload:
    """What goes back after the last step."""
    local, shared = given.local, update.without(given.local.local)
    steps = steps_of(local, plan).to(torch.float64)
    extra, kept = algorithm.finish(shared, given.sent, given.kept, given.round.lr, steps)
    marks = None
    if algorithm.needs_occurred:
        marks = occurred(local, given.start.index, plan, given.round.number)
    return Upload(local.clients, update, steps, extra, kept, occurred=marks)
