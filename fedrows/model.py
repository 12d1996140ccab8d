"""The interface of a model: K submodels go in, K gradients come out.

A cohort's rows and dense tensors are disjoint between clients, so the gradient of the *sum* of the
K losses is the stack of the K gradients: one backward pass, and no client's gradient of a whole
table is ever built. `Lifted` does that for any plain module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from fedrows.data.batches import Batch
from fedrows.data.examples import Examples
from fedrows.rows.params import Params, Submodels
from fedrows.rows.schema import Schema
from fedrows.tables import GivenRows, InitialRows

Loss = Callable[[Tensor, Tensor], Tensor]


def logistic_loss(scores: Tensor, label: Tensor) -> Tensor:
    """The cross-entropy of every example, its score being a logit."""
    return F.binary_cross_entropy_with_logits(scores, label, reduction="none")


def class_loss(scores: Tensor, label: Tensor) -> Tensor:
    """The cross-entropy of every example, its scores being logits of the classes: (…, C)."""
    return F.cross_entropy(scores.movedim(-1, 1), label, reduction="none")


def square_loss(scores: Tensor, label: Tensor) -> Tensor:
    """Half the square of every example's error."""
    return (scores - label).square() / 2


def sampled_softmax_loss(scores: Tensor, label: Tensor) -> Tensor:
    """The cross-entropy of column 0, the positive, among an example's candidates: (…, C) → (…).

    Column 0 competes with the negatives that were drawn. They are drawn evenly, so each stands for
    as many items as any other, and no score needs a correction.
    """
    return torch.logsumexp(scores, -1) - scores[..., 0]


def candidates_loss(scores: Tensor, label: Tensor) -> Tensor:
    """The binary cross-entropy of an example's candidates, their mean: (…, C) → (…).

    Column 0 is the positive.
    """
    return (F.softplus(scores).sum(-1) - scores[..., 0]) / scores.shape[-1]


def pairwise_loss(scores: Tensor, label: Tensor) -> Tensor:
    """−log σ(positive − negative), its mean over the negatives of an example: (…, C) → (…).

    Bayesian personalised ranking (Rendle et al., UAI 2009).
    """
    return F.softplus(scores[..., 1:] - scores[..., :1]).mean(-1)


def sigmoid(scores: Tensor) -> Tensor:
    """σ of every score, each the same whichever others stand beside it.

    On a CPU by way of float64. In float32 PyTorch takes the last scores of a tensor, too few for a
    vector register, another way than the rest: a client would depend on who trains with it.
    """
    return scores.double().sigmoid().to(scores.dtype) if scores.is_cpu else scores.sigmoid()


LOSSES: dict[str, Loss] = {
    "binary": logistic_loss,
    "classes": class_loss,
    "numbers": square_loss,
    "ranking": sampled_softmax_loss,
}
RANKING_LOSSES: dict[str, Loss] = {
    "softmax": sampled_softmax_loss,
    "binary": candidates_loss,
    "pairwise": pairwise_loss,
}


@dataclass(frozen=True)
class Biases:
    """The numbers of a model that are added to a score as they are: log-odds can start there."""

    general: str  # the dense tensor, of one number, that is in every score
    columns: Mapping[str, int]  # table → the column of its rows that is in the scores of a row


class Model(ABC):
    """A model over a cohort: K submodels go in, K gradients come out."""

    schema: Schema
    closed_form: bool = False  # gradients without autograd: local training then records nothing
    note: str | None = None  # what a user should know about how it trains
    random: bool = False  # steps draw randomness of their own: dropout
    one_by_one: bool = False  # clients train one after another, in a step that cannot be recorded
    options: Mapping[str, Any] = {}  # that it was built with, if the catalogue built it
    biases: Biases | None = None  # where a counted start goes, if the model has such numbers
    loss: Loss = staticmethod(logistic_loss)  # (scores, label) → a loss per example
    # Whether `scores` takes candidates (1, C) as those of all n examples, and gives (n, C).
    shares_candidates: bool = False

    @abstractmethod
    def start(self) -> Params:
        """The numbers that training starts from."""

    def initial_rows(self) -> tuple[Mapping[str, InitialRows], Mapping[str, Tensor]]:
        """The same, row by row, for tables that are not in memory, and the dense tensors."""
        params = self.start()
        return {table: GivenRows(rows) for table, rows in params.tables.items()}, params.dense

    @abstractmethod
    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        """The whole model's score of each example: (n,). Feature ids go in, not slots."""

    def calibrate(self, params: Params, examples: Examples) -> None:
        """Measures on a fixed sample what evaluation needs to know: moments of normalisation."""

    @abstractmethod
    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        """Each client's gradient of its mean loss over its own batch."""
