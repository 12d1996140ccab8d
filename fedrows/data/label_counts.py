"""How many clients have each item, and how many like it: what a counted start is made of.

    n_m   clients with a training example about item m
    p_m   those of them for whom at least half of these examples are positive
    p     Σ p_m / Σ n_m, the prior

    item m     logit((p_m + a·p) / (n_m + a)) − logit(p)
    client i   logit((positives of i + a·p) / (examples of i + a)) − logit(p)

A client counts once for an item, so n_m and p_m are counts of index sets, as heat is: whatever
counts heat counts them too. What belongs to a client is worked out by the client, from the prior
and its own examples, and never leaves it. a = 5 pseudo-examples at the prior keep small counts
tame. An item is what an example is about (`FederatedData.target`).

Where items are numbered in an order that means something, what stands beside an item tells about
it. The prior of item m is then p moved by half the mean of its neighbours' log-odds:

    logit(p'_m) = logit(p) + ½ · mean over 0 < |k| ≤ near of (the log-odds of item m + k)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.rows.index import Index

PSEUDO = 5.0  # a


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """The two counters, for the rows of the items."""

    table: str
    ids: Tensor  # (H,), sorted rows of the table
    examples: Tensor  # (H,) float64, n_m; an estimate may be any number
    positives: Tensor  # (H,) float64, p_m, likewise

    @property
    def prior(self) -> float:
        """The share of positives over all items, away from 0 and 1."""
        examples, positives = float(self.examples.sum()), float(self.positives.sum())
        return min(max(positives / max(examples, 1.0), 1e-6), 1 - 1e-6)

    def log_odds(self, pseudo: float = PSEUDO) -> Tensor:
        """How far each item's log-odds are from the prior's: (H,)."""
        return log_odds(*self._possible(), self.prior, pseudo)

    def log_odds_near(self, rows: int, near: int, pseudo: float = PSEUDO) -> Tensor:
        """The same for all rows of the table, pulled towards `near` items on each side: (rows,).

        Rows without a count start where their neighbours are, halved.
        """
        level, examples, positives = self.examples.new_zeros(3, rows)
        level[self.ids] = self.log_odds(pseudo)
        positives[self.ids], examples[self.ids] = self._possible()
        sums = torch.cumsum(functional.pad(level, (near + 1, near)), 0)  # (rows + 2·near + 1,)
        beside = (sums[2 * near + 1 :] - sums[:rows] - level) / (2 * near)
        general = torch.logit(torch.tensor(self.prior, dtype=level.dtype))
        return log_odds(
            positives, examples, self.prior, pseudo, torch.sigmoid(general + beside / 2)
        )

    def _possible(self) -> tuple[Tensor, Tensor]:
        """Positives and examples, estimates moved to what counts can be: (H,) each."""
        examples = self.examples.clamp(min=0)
        return torch.minimum(self.positives.clamp(min=0), examples), examples


def log_odds(
    positives: Tensor,
    examples: Tensor,
    prior: float,
    pseudo: float = PSEUDO,
    towards: Tensor | None = None,
) -> Tensor:
    """How far log-odds are from the prior's, small counts being pulled towards it.

    towards: the priors that they are pulled towards instead.
    """
    share = (positives + pseudo * (prior if towards is None else towards)) / (examples + pseudo)
    level = torch.tensor(prior, dtype=torch.float64)
    return torch.logit(share, eps=1e-6) - torch.logit(level, eps=1e-6)


def items_of(data: FederatedData) -> str:
    """The table of the items whose labels are counted; a DataError if there can be none."""
    if data.labels != "binary" or data.target is None:
        what = f"labels are {data.labels}" if data.labels != "binary" else "examples have no target"
        raise DataError(
            f"The {what} in {data.name}, so there are no positives of an item to count: start "
            "from zero."
        )
    return data.fields[data.target[0]]


def label_sets(data: FederatedData) -> tuple[Index, Index]:
    """The items that each client has training examples about, and those of them that it likes.

    Both are index sets among the rows that anybody holds, as the heat's are.
    """
    held = data.index[items_of(data)].held
    assert held is not None, "data that were built have it"
    ids, owner, label = data.targets(data.train), data.train.owner, data.train.label
    position = torch.searchsorted(held, ids).clamp(max=len(held) - 1)
    real = held[position] == ids  # id 0 of a padded table is nothing
    pairs = owner[real] * len(held) + position[real]
    unique, entry = torch.unique(pairs, return_inverse=True)
    examples = torch.bincount(entry, minlength=len(unique))
    positives = torch.bincount(entry, label[real].double(), minlength=len(unique))
    return (
        _index(unique, held, data.clients),
        _index(unique[2 * positives >= examples], held, data.clients),
    )


def client_log_odds(data: FederatedData, prior: float, pseudo: float = PSEUDO) -> Tensor:
    """How far each client's log-odds are from the prior's, worked out where they lie: (N,)."""
    label = data.train.label.double()
    positives = torch.bincount(data.train.owner, label, minlength=data.clients)
    return log_odds(positives.cpu(), data.sizes.double(), prior, pseudo)


def _index(pairs: Tensor, held: Tensor, clients: int) -> Index:
    """The index sets behind owner · H + place, sorted."""
    owner, position = pairs // len(held), pairs % len(held)
    splits = torch.searchsorted(owner.contiguous().cpu(), torch.arange(clients + 1))
    return Index(held[position], splits, position, held)
