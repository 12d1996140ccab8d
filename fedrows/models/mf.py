"""Matrix factorisation: what a user is like times what an item is like, and a bias of each.

    score(u, m) = b + b_u + b_m + ⟨p_u, q_m⟩          Koren, Bell and Volinsky 2009, equation 4

A user's row is its bias and its factors, and so is an item's. The user's row stays on its client if
the data name its table in `local`. An example has one item (B,), or a list of candidates (B, C) of
which each gets a score; candidates (1, C) are scored for all users at once, as one matrix product.

Biases start from 0 and factors from N(0, 0.1²), as functions of the seed. Were all factors 0 too,
none would ever move: the gradient of one side is the other. Factors have a ridge, see `Ridged`: a
client fits its own row to few examples, and would learn them by heart.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.ridged import Ridged
from fedrows.model import Biases, Loss
from fedrows.nn.initial_values import start_
from fedrows.options import check, option, takes

FACTORS = 16
SPREAD = 0.1  # of the factors at the start
RIDGE = 0.03  # on the factors that an example reads, for binary labels


class MatrixFactorisation(nn.Module):
    """The model of one client; `names` are the fields that hold the user and the item."""

    def __init__(
        self,
        users: int,
        items: int,
        factors: int = FACTORS,
        names: tuple[str, str] = ("user", "item"),
        padded: tuple[bool, bool] = (False, False),
    ) -> None:
        super().__init__()
        self.names = names
        no_user, no_item = (0 if is_padded else None for is_padded in padded)
        self.user_bias = nn.Embedding(users, 1, padding_idx=no_user)
        self.user_factors = nn.Embedding(users, factors, padding_idx=no_user)
        self.item_bias = nn.Embedding(items, 1, padding_idx=no_item)
        self.item_factors = nn.Embedding(items, factors, padding_idx=no_item)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, **fields: Tensor) -> Tensor:
        user, item = (fields[name] for name in self.names)  # (B,), and (B,) or (B, C) or (1, C)
        level = self.user_bias(user) + self.bias  # (B, 1)
        p, q = self.user_factors(user), self.item_factors(item)  # (B, f), (B, f) or (B, C, f)
        if item.dim() == 1:
            return (p * q).sum(-1) + (self.item_bias(item) + level).squeeze(-1)
        return torch.einsum("bf,bcf->bc", p, q) + self.item_bias(item).squeeze(-1) + level


@dataclass(frozen=True)
class MatrixFactorisationOptions:
    """How large the rows are, and how they are held back."""

    factors: int = option(FACTORS, "Factors in a row, beside its bias.", least=1, most=4096)
    ridge: float | None = option(
        None, f"Ridge on the factors; none: {RIDGE} for binary labels, else 0.", least=0
    )

    def __post_init__(self) -> None:
        check(self)


@takes(MatrixFactorisationOptions)
def build(
    data: FederatedData,
    seed: int = 0,
    factors: int = FACTORS,
    ridge: float | None = None,
    loss: Loss | None = None,
) -> Lifted:
    """Matrix factorisation for data with two fields: an item (the target), and a user."""
    item = "item" if data.target is None else data.target[0]
    others = [name for name in (*data.fields, *data.train.numbers) if name != item]
    if len(others) != 1 or others[0] not in data.fields or item not in data.fields:
        known = ", ".join([*data.fields, *data.train.numbers])
        raise ModelError(
            f"Matrix factorisation reads a user and an item, but the data have {known}: give them "
            "two fields, and name the item's in `target`."
        )
    names = (others[0], item)
    users, items = (data.fields[name] for name in names)
    if users == items:
        raise ModelError(
            f"Matrix factorisation has a table of users and one of items, but {names[0]} and "
            f"{names[1]} both read {items}: give each a table of its own."
        )
    padded = users in data.padded, items in data.padded
    module = MatrixFactorisation(data.tables[users], data.tables[items], factors, names, padded)
    start_(module, seed, SPREAD)
    for part in (module.user_bias, module.item_bias):
        nn.init.zeros_(part.weight)
    tables = {users: ["user_bias", "user_factors"], items: ["item_bias", "item_factors"]}
    if ridge is None:
        ridge = RIDGE if data.labels == "binary" else 0.0
    # A ridge on factors, not on biases.
    model = Ridged(module, data, tables, ridge, {users: 1, items: 1}, loss=loss)
    model.shares_candidates = True
    model.biases = Biases("bias", {users: 0, items: 0})
    return model
