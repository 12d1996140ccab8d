"""A sentence's polarity from its words, as in the paper: embedding 25, two LSTM layers of 100.

    score = w · (the upper layer's output at the last word) + b;  a text without words has output 0

Start values are functions of the seed: embeddings from N(0, 1), LSTM weights from U(±1/√100),
the last layer from U(±1/√100), all as PyTorch's own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.nn import LSTM
from fedrows.nn.initial_values import start_

WIDTH, HIDDEN, LAYERS = 25, 100, 2


class Text(nn.Module):
    """The model of one client; texts are in the one field of the data, filled up with 0."""

    def __init__(self, rows: int, field: str, padded: bool = True) -> None:
        super().__init__()
        self.field, self.padded = field, padded
        self.token = nn.Embedding(rows, WIDTH, padding_idx=0 if padded else None)
        self.lstm = LSTM(WIDTH, HIDDEN, LAYERS, batch_first=True)
        self.output = nn.Linear(HIDDEN, 1)

    def forward(self, **fields: Tensor) -> Tensor:
        ids = fields[self.field]  # (B, T)
        hidden, _ = self.lstm(self.token(ids))  # (B, T, H)
        real = ids != 0 if self.padded else torch.ones_like(ids, dtype=torch.bool)
        position = torch.arange(ids.shape[1], device=ids.device)
        end = torch.where(real, position, -1).amax(1, keepdim=True)  # (B, 1): −1 without words
        last = torch.where((position == end).unsqueeze(2), hidden, 0).sum(1)  # (B, H)
        return self.output(last).squeeze(1)


def build(data: FederatedData, seed: int = 0) -> Lifted:
    """The LSTM for data whose one field is a text: a list of words a table has rows for."""
    if len(data.fields) != 1 or data.train.numbers:
        known = ", ".join([*data.fields, *data.train.numbers])
        raise ModelError(f"The LSTM reads one field, a list of words, but the data have {known}.")
    ((field, table),) = data.fields.items()
    module = Text(data.tables[table], field, table in data.padded)
    start_(module, seed)
    return Lifted(module, data, {table: "token"})
