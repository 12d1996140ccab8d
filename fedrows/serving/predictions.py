"""What a served model answers with, and whom it was adapted to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Predictions:
    """The scores of some rows, in their order."""

    scores: np.ndarray  # (n,): logits of binary labels, else numbers; (n, C): logits of classes
    probabilities: np.ndarray | None  # in the same shape; None where labels are numbers
    notes: tuple[str, ...] = ()  # what is worth knowing, such as how many values were unknown


@dataclass(frozen=True, eq=False)
class Recommendations:
    """Items, best first."""

    items: list[Any]
    scores: np.ndarray  # (k,)
    probabilities: np.ndarray | None  # (k,); None where labels are numbers
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class AdaptedTo:
    """The one client that a model was adapted to."""

    client: Any  # its name; None if its examples had none
    values: Mapping[str, frozenset[str]]  # column → the texts that its local tables were fitted to


def predictions(scores: Tensor, labels: str, notes: tuple[str, ...]) -> Predictions:
    """Scores with their probabilities, which numbers have none of."""
    chances = None
    if labels == "binary":
        chances = scores.sigmoid().numpy()
    elif labels == "classes":
        chances = scores.softmax(-1).numpy()
    return Predictions(scores.numpy(), chances, notes)
