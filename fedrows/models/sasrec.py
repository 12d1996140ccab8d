"""Causal self-attention over a client's own history (SASRec: Kang and McAuley, ICDM 2018).

    x_0 = a learned beginning, x_l = v[history_l] + position[how many items back]
    x  ← x + attention(norm(x)), causal        x ← x + W₂ relu(W₁ norm(x))        once per block
    score(c) = ⟨norm(x_last), v[c]⟩ + b[c]      for the candidates c: output and input are tied

As published, but for three things. Positions are counted from the end, so that the last item has
the same one in a history of any length. A beginning stands in front of every history, so that an
empty one has something to attend to. An item has a bias. Every example predicts its own item from
what came before it.

Start values are functions of the seed: vectors and positions from N(0, 0.05²), biases from 0, dense
layers from U(±1/√inputs) as PyTorch's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.model import Loss
from fedrows.nn import TiedOutput
from fedrows.nn.initial_values import start_
from fedrows.options import check, option, takes
from fedrows.rows.ragged import Ragged

WIDTH, BLOCKS, DROPOUT = 32, 1, 0.2
SPREAD = 0.05  # of the vectors at the start


class Block(nn.Module):
    """A block of causal self-attention and a network of each position's own."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.both = nn.Linear(width, 3 * width)  # queries, keys and values
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        # x (B, T, w), seen (B, T, T) → (B, T, w)
        # Dense layers get two dimensions: a product of three is one per example under vmap.
        shape = x.shape
        parts = self.both(self.first_norm(x).flatten(0, 1))  # (B·T, 3w)
        query, key, value = parts.view(*shape[:2], -1).chunk(3, -1)  # (B, T, w) each
        scores = query @ key.mT / sqrt(shape[-1])  # (B, T, T)
        scores = torch.where(seen, scores, torch.finfo(x.dtype).min)
        x = x + self.dropout(scores.softmax(-1) @ value)
        hidden = torch.relu(self.inner(self.second_norm(x).flatten(0, 1)))  # (B·T, w)
        return x + self.dropout(self.outer(hidden)).view(shape)


class SASRec(nn.Module):
    """The model of one client; `names` are the fields that hold the item and the history."""

    def __init__(
        self,
        items: int,
        length: int,
        width: int = WIDTH,
        blocks: int = BLOCKS,
        dropout: float = DROPOUT,
        names: tuple[str, str] = ("item", "history"),
    ) -> None:
        super().__init__()
        self.names = names
        self.item_bias = nn.Embedding(items, 1, padding_idx=0)
        self.item_vectors = nn.Embedding(items, width, padding_idx=0)
        self.position = nn.Embedding(length + 1, width)  # 0: the last item
        self.beginning = nn.Parameter(torch.zeros(width))
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.dropout = nn.Dropout(dropout)
        self.norm, self.output = nn.LayerNorm(width), TiedOutput()

    def forward(self, **fields: Tensor) -> Tensor:
        candidates, history = (fields[name] for name in self.names)  # (B, C) or (B,), (B, L)
        state = self.state(history)  # (B, w)
        many = candidates if candidates.dim() == 2 else candidates.unsqueeze(1)  # (B, C)
        bias = self.item_bias(many).squeeze(-1)
        scores: Tensor = self.output(state, self.item_vectors(many), bias)  # (B, C)
        return scores if candidates.dim() == 2 else scores.squeeze(1)

    def state(self, history: Tensor) -> Tensor:
        """What a history comes to: (B, L) → (B, w)."""
        position = torch.arange(history.shape[1] + 1, device=history.device)  # (T,), T = L + 1
        size = (history != 0).sum(1, keepdim=True)  # (B, 1), which is also the last place
        back = torch.clamp(size - position, min=0)  # (B, T)
        x = self.item_vectors(history)  # (B, L, w)
        beginning = self.beginning.expand(x.shape[0], 1, x.shape[2])
        x = self.dropout(torch.cat([beginning, x], 1) + self.position(back))  # (B, T, w)
        causal = position <= position.unsqueeze(1)  # (T, T)
        seen = causal & (position <= size).unsqueeze(1)  # (B, T, T)
        for block in self.blocks:
            x = block(x, seen)
        last = (position == size).unsqueeze(2)  # (B, T, 1)
        return self.norm(torch.where(last, x, 0).sum(1))


@dataclass(frozen=True)
class SASRecOptions:
    """How large the network is."""

    width: int = option(WIDTH, "Numbers in the vector of an item.", least=1, most=4096)
    blocks: int = option(BLOCKS, "Blocks of self-attention.", least=1, most=64)
    dropout: float = option(DROPOUT, "Share of numbers that a step leaves out.", least=0, most=0.9)

    def __post_init__(self) -> None:
        check(self)


@takes(SASRecOptions)
def build(
    data: FederatedData,
    seed: int = 0,
    width: int = WIDTH,
    blocks: int = BLOCKS,
    dropout: float = DROPOUT,
    loss: Loss | None = None,
) -> Lifted:
    """SASRec for data with two fields of one table: an item (the target), and a history."""
    item = "item" if data.target is None else data.target[0]
    others = [name for name in (*data.fields, *data.train.numbers) if name != item]
    column = data.train.ids.get(others[0]) if len(others) == 1 else None
    if not isinstance(column, Ragged) or data.fields[others[0]] != data.fields[item]:
        known = ", ".join([*data.fields, *data.train.numbers])
        raise ModelError(
            f"SASRec reads an item and a history of items of the same table, but the data have "
            f"{known}: give them these two fields, and name the item's in `target`."
        )
    table = data.fields[item]
    names = (item, others[0])
    module = SASRec(data.tables[table], column.length, width, blocks, dropout, names)
    start_(module, seed, SPREAD)
    nn.init.zeros_(module.item_bias.weight)
    tables = {table: ["item_bias", "item_vectors"]}
    model = Lifted(module, data, tables, loss, dense=["position"])
    model.shares_candidates = True
    return model
