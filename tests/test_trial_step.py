"""What cannot be lifted over a cohort is refused, in one sentence, when the model is built."""

from __future__ import annotations

import pytest
import torch
from nets import (
    Around,
    Branching,
    Dropping,
    Net,
    Normed,
    Recurrent,
    Renamed,
    Twice,
    federation,
    positive,
)
from torch import nn

from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted


class Stray(Net):
    def __init__(self, kind: type = nn.Embedding) -> None:
        super().__init__()
        self.extra = kind(4, 2)


class Column(Net):
    def forward(self, item, kind):
        return self.layer(self.features(item, kind))  # (B, 1)


class Pair(Net):
    def forward(self, item, kind):
        return super().forward(item, kind), item


class Deaf(Net):
    def forward(self, kind):
        return self.kind(kind)[:, 0]


class Detached(Net):
    def forward(self, item, kind):
        return super().forward(item, kind).detach()


class Tied(Net):
    """The item table is the weight of a dense layer too, which no client holds whole."""

    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Linear(3, 5, bias=False)
        self.output.weight = self.item.weight

    def forward(self, item, kind):
        return self.output(self.item(item).mean(1)).sum(1) + self.kind(kind)[:, 0]


class Noise(nn.Module):
    def forward(self, x):
        return x * torch.empty_like(x).exponential_() if self.training else x


class Counting(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, item, kind):
        if self.training:
            self.seen += 1
        return super().forward(item, kind)


class Offsets(Net):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.EmbeddingBag(5, 3)

    def features(self, item, kind):
        offsets = torch.arange(0, item.numel(), item.shape[1])
        return torch.cat([self.item(item.reshape(-1), offsets), self.kind(kind)], 1)


REFUSED = {
    "wrong number of rows": (Net(6), {}, ["'item'", "6 rows", "has 5"]),
    "missing embedding": (nn.Linear(2, 2), {}, ["'item'", "none", "`embeddings`"]),
    "missing where mapped": (Renamed(), {"kind": "kinds"}, ["'item'", "inner.item, kinds"]),
    "not an embedding": (Net(), {"item": "layer"}, ["'layer'", "Linear", "nn.Embedding"]),
    "mapping of no table": (Net(), {"itme": "item"}, ["'itme'", "item, kind"]),
    "frozen embedding": (Net().requires_grad_(False), {}, ["'item'", "frozen"]),
    "stray embedding": (Stray(), {}, ["'extra'", "item, kind"]),
    "stray bag": (Stray(nn.EmbeddingBag), {}, ["'extra'"]),
    "padding": (Net(padding_idx=0), {}, ["'item'", "padding_idx"]),
    "largest norm": (Net(max_norm=1.0), {}, ["'item'", "max_norm"]),
    "sparse gradients": (Net(sparse=True), {}, ["'item'", "sparse"]),
    "scores in a column": (Column(), {}, ["Column", "shape (2, 1)", "shape (2,)"]),
    "two results": (Pair(), {}, ["Pair", "tuple"]),
    "nn.LSTM": (Recurrent(), {}, ["'lstm'", "nn.LSTM", "fedrows.nn.LSTM", "one_by_one=True"]),
    "nn.GRU": (Around(nn.GRU(5, 5)), {}, ["'deep.1.change'", "fedrows.nn.GRU", "one_by_one=True"]),
    "nn.RNNCell": (Around(nn.RNNCell(5, 5)), {}, ["'deep.1.change'", "fedrows.nn.GRU"]),
    "batch norm": (Normed(), {}, ["'norm'", "running statistics", "fedrows.nn.BatchNorm"]),
    "bags by offsets": (Offsets(), {}, ["'item' (EmbeddingBag)", "offsets", "(B, L)"]),
    "a field that forward lacks": (Deaf(), {}, ["Deaf", "item, kind by name"]),
    "no gradient": (Detached(), {}, ["Detached", "grad"]),
    "tied weights": (Tied(), {}, ["'item'", "output.weight"]),
    "a branch on the data": (
        Branching(),
        {},
        ["Branching (line", "nets.py", "torch.where", "one_by_one=True"],
    ),
    "a number taken out": (
        Around(lambda x: x * x.sum().item()),
        {},
        ["'deep.1'", "Inner", "torch.where", "one_by_one=True"],
    ),
    "a mask as an index": (Around(positive), {}, ["'deep.1'", "torch.where", "one_by_one=True"]),
    "no batching rule": (
        Around(
            lambda x: torch.ops.aten.lstm_cell(x, [x, x], x.new_ones(20, 5), x.new_ones(20, 5))[0]
        ),
        {},
        ["'deep.1'", "aten::lstm_cell", "one_by_one=True"],
    ),
    "a random number": (
        Around(Noise()),
        {},
        ["'deep.1.change'", "global generator", "torch.rand_like"],
    ),
    "random scores": (Around(torch.randn_like), {}, ["Around", "global generator"]),
    "a buffer that training changes": (Counting(), {}, ["'seen'"]),
    "a mistake in forward": (
        Around(lambda x: x @ x),
        {},
        ["'deep.1'", "RuntimeError", "item, kind"],
    ),
    "no embedding for a table": (Net(), {"item": []}, ["'item'", "at least one"]),
}


@pytest.mark.parametrize(("module", "embeddings", "names"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_lifted_is_refused_in_one_sentence(module, embeddings, names):
    with pytest.raises(ModelError) as caught:
        Lifted(module, federation(), embeddings)
    said = str(caught.value)
    assert "\n" not in said
    assert said.endswith(".")
    assert all(name in said for name in names), said


def test_two_tables_in_one_embedding_are_refused():
    module = Net()
    del module.kind
    with pytest.raises(ModelError, match=r"'item' .*both|both .*'item'"):
        Lifted(module, federation(kinds=5), {"kind": "item"})


def test_an_embedding_of_two_tables_is_refused_in_a_list_too():
    with pytest.raises(ModelError, match="both mapped to embedding 'factors'"):
        Lifted(Twice(), federation(5), {"item": ["item", "factors"], "kind": ["factors"]})


def test_a_loss_that_is_not_per_example_is_refused():
    with pytest.raises(ModelError, match="loss"):
        Lifted(Net(), federation(), loss=lambda scores, label: (scores - label).square().mean())


def test_recurrent_dropout_is_refused_one_by_one():
    """It would draw from torch's global generator."""
    module = Recurrent()
    module.lstm = nn.LSTM(3, 3, num_layers=2, dropout=0.5, batch_first=True)
    with pytest.raises(ModelError, match="global generator"):
        Lifted(module, federation(), one_by_one=True)


def test_an_operation_that_is_lifted_by_a_loop_is_noted():
    model = Lifted(Around(lambda x: x + x.detach().histc(4).sum()), federation())
    assert "aten::histc" in model.note
    assert Lifted(Net(), federation()).note is None


def test_only_a_module_that_needs_replacements_pays_for_them():
    data = federation()
    assert Lifted(Net(), data)._replaced is None
    assert not Lifted(Net(), data).random
    dropping = Lifted(Dropping(), data)
    assert dropping._replaced is not None
    assert dropping.random
    bags = Lifted(Twice(bag=True), data, {"item": ["item", "factors"]})
    assert bags._replaced is not None
    assert not bags.random


def test_lifting_copies_no_table():
    """A table may be most of the memory: only `start` may copy it."""
    module = Net()
    model = Lifted(module, federation())
    assert model.start().tables["item"].data_ptr() != module.item.weight.data_ptr()
    copies = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lifted, "start", lambda self: copies.append(self) or 1 / 0)
        Lifted(Net(), federation())
    assert copies == []
