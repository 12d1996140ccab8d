"""The Deep Interest Network (Zhou et al., KDD 2018) as a module of one client.

    a(q, k)    = 80-40-1 with sigmoids over [q, k, q−k, q·k], for target q and history item k
    attention  = Σ_l softmax_l(a(q, k_l)) · k_l over the real items of the history
    score      = 200-80-1 with Dice over [user, q, Σ_l k_l, q · Σ_l k_l, attention]

Embeddings are 18 wide; target and history read one item table. The attention unit has sigmoids, as
DIN's published code does (its paper draws PReLU or Dice there), and no scaling before the softmax.
An empty history sums and attends to 0. Dice's ε is 1e−3 (see there).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.nn import attention_compiled, fused, step_context
from fedrows.nn.attention import AttentionPooling
from fedrows.nn.kernels import attention
from fedrows.nn.norm import Dice

WIDTH = 18


class AttentionUnit(nn.Module):
    """How much each item of a history matters for a target: 80-40-1 over [q, k, q−k, q·k].

    For one target the first layer is linear in k, so it is applied as a matrix of the target's own,

        W [q, k, q−k, q·k] = (W₂ − W₃ + W₄·diag(q)) k + (W₁ + W₃) q,

    a quarter of the work per history item, and no list is ever four times as wide.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(4 * width, 80)
        self.second = nn.Linear(80, 40)
        self.third = nn.Linear(40, 1)
        self.pool = AttentionPooling()

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        # q (B, w), k (B, L, w) → (B, L)
        of_q, of_k, of_gap, of_product = self.first.weight.chunk(4, 1)  # (80, w) each
        matrix = (of_k - of_gap) + of_product * q.unsqueeze(1)  # (B, 80, w)
        shift = q @ (of_q + of_gap).mT + self.first.bias  # (B, 80)
        hidden = torch.sigmoid(k @ matrix.mT + shift.unsqueeze(1))  # (B, L, 80)
        # Two dimensions: a product of three is one per example when clients' weights differ.
        hidden = torch.sigmoid(self.second(hidden.flatten(0, 1)))  # (B·L, 40)
        return self.third(hidden).view(k.shape[:2])

    def attend(self, q: Tensor, k: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of a list, weighted by a softmax of the scores, and its sum: (B, w) each."""
        if self._has_kernel(k):
            # Without the last bias, which adds the same to all scores of a list.
            layers = (x for part in (self.first, self.second) for x in (part.weight, part.bias))
            own = (q, k, mask, *layers, self.third.weight.squeeze(0))
            results = fused.AttentionStep.apply(*(x.unsqueeze(0) for x in own))
            return results[0].squeeze(0), results[1].squeeze(0)
        share = self.pool.shares(self(q, k), mask)
        both = torch.stack([share, mask.to(k.dtype)], 1) @ k  # (B, 2, L) @ (B, L, w)
        return both[:, 0], both[:, 1]

    def _has_kernel(self, k: Tensor) -> bool:
        if k.is_cuda:
            return fused.usable(k) and attention.fits(k.shape[1], k.shape[2], 80, 40)
        # In training only: scoring uses all cores, and a graph of it has PyTorch's operations.
        return step_context.current() is not None and attention_compiled.usable(k)


class DIN(nn.Module):
    """The model of one client; `names` are the fields that hold user, item and history."""

    def __init__(
        self,
        users: int,
        items: int,
        names: tuple[str, str, str] = ("user", "item", "history"),
        padded_users: bool = False,
    ) -> None:
        super().__init__()
        self.names = names
        self.user = nn.Embedding(users, WIDTH, padding_idx=0 if padded_users else None)
        self.item = nn.Embedding(items, WIDTH, padding_idx=0)
        self.unit = AttentionUnit(WIDTH)
        self.first, self.first_dice = nn.Linear(5 * WIDTH, 200), Dice(200)
        self.second, self.second_dice = nn.Linear(200, 80), Dice(80)
        self.third = nn.Linear(80, 1)

    def forward(self, **fields: Tensor) -> Tensor:
        user, item, history = (fields[name] for name in self.names)  # (B,), (B,), (B, L)
        q, k = self.item(item), self.item(history)  # (B, w), (B, L, w)
        pooled, total = self.unit.attend(q, k, history != 0)
        x = torch.cat([self.user(user), q, total, q * total, pooled], 1)  # (B, 5w)
        x = self.first_dice(self.first(x))
        x = self.second_dice(self.second(x))
        return self.third(x).squeeze(1)


def tables_of(
    data: FederatedData, names: tuple[str, str, str], numbers: Sequence[str] = ()
) -> tuple[str, str]:
    """The tables that the fields of user, item and history read: of users, and of items.

    numbers: the fields that a part beside DIN reads.
    """
    user, item, history = names
    read = [*names, *numbers]
    if set(read) != {*data.fields, *data.train.numbers}:
        known = ", ".join([*data.fields, *data.train.numbers])
        raise ModelError(f"DIN reads the fields {', '.join(read)}, but the data have {known}.")
    users, items = data.fields[user], data.fields[item]
    if data.fields[history] != items or users == items:
        raise ModelError(
            f"DIN has one table for {item} and {history} and one for {user}, but they read "
            f"{items}, {data.fields[history]} and {users}."
        )
    if items not in data.padded:
        raise ModelError(
            f"In DIN id 0 of table {items!r} fills a history up: name the table in `padded`."
        )
    return users, items
