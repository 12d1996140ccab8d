"""Modules as users write them: plain PyTorch for one client, with small data that they can learn.

Nothing here knows of cohorts. Each animal of the zoo is a module, its data, and how it is lifted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fedrows.nn
from fedrows.data.federation import FederatedData
from fedrows.rows.ragged import ragged

USERS, ITEMS, KINDS, WORDS, LONGEST, MORE = 12, 16, 5, 20, 6, 3  # MORE: of padding, in a test


class MatrixFactorisation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, user, item):
        return (self.user(user) * self.item(item)).sum(-1) + self.bias


class FactorisationMachine(nn.Module):
    """Rendle 2010: pairs of features interact through the products of their factors."""

    def __init__(self) -> None:
        super().__init__()
        for name, rows in {"user": USERS, "item": ITEMS, "kind": KINDS}.items():
            self.add_module(f"{name}_linear", nn.Embedding(rows, 1))
            self.add_module(f"{name}_factors", nn.Embedding(rows, 4))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, user, item, kind):
        linear = self.user_linear(user) + self.item_linear(item) + self.kind_linear(kind)
        parts = [self.user_factors(user), self.item_factors(item), self.kind_factors(kind)]
        factors = torch.stack(parts, 1)  # (B, 3, 4)
        pairs = factors.sum(1).square() - factors.square().sum(1)
        return self.bias + linear.squeeze(-1) + pairs.sum(-1) / 2


class WideAndDeep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide_item, self.wide_kind = nn.Embedding(ITEMS, 1), nn.Embedding(KINDS, 1)
        self.deep_item, self.deep_kind = nn.Embedding(ITEMS, 4), nn.Embedding(KINDS, 4)
        self.deep = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, item, kind, about):
        wide = self.wide_item(item) + self.wide_kind(kind)
        deep = self.deep(torch.cat([self.deep_item(item), self.deep_kind(kind), about], 1))
        return (wide + deep)[:, 0]


class DeepFM(nn.Module):
    """Guo et al. 2017: a factorisation machine and a network over the same factors."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleDict({"item": nn.Embedding(ITEMS, 1), "kind": nn.Embedding(KINDS, 1)})
        self.second = nn.ModuleDict(
            {"item": nn.Embedding(ITEMS, 4), "kind": nn.Embedding(KINDS, 4)}
        )
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, item, kind):
        ids = {"item": item, "kind": kind}
        first = sum(self.first[name](x)[:, 0] for name, x in ids.items())
        factors = torch.stack([self.second[name](x) for name, x in ids.items()], 1)
        pairs = (factors.sum(1).square() - factors.square().sum(1)).sum(-1) / 2
        return first + pairs + self.deep(factors.flatten(1))[:, 0]


class TwoTower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 6), nn.Embedding(ITEMS, 6)
        self.left = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.right = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.warmth = nn.Parameter(torch.tensor(4.0))

    def forward(self, user, item):
        left = F.normalize(self.left(self.user(user)), dim=-1)
        right = F.normalize(self.right(self.item(item)), dim=-1)
        return self.warmth * (left * right).sum(-1)


class NCF(nn.Module):
    """He et al. 2017: a product of factors beside a network over others."""

    def __init__(self) -> None:
        super().__init__()
        self.user_product, self.item_product = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.user_deep, self.item_deep = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.deep = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.last = nn.Linear(8, 1)

    def forward(self, user, item):
        product = self.user_product(user) * self.item_product(item)
        deep = self.deep(torch.cat([self.user_deep(user), self.item_deep(item)], -1))
        return self.last(torch.cat([product, deep], -1)).squeeze(-1)


class DLRM(nn.Module):
    """Naumov et al. 2019: numbers through a network, then all pairs of products."""

    def __init__(self) -> None:
        super().__init__()
        self.item, self.kind = nn.Embedding(ITEMS, 4), nn.Embedding(KINDS, 4)
        self.bottom = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 4), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(4 + 3, 8), nn.ReLU(), nn.Linear(8, 1))
        self.register_buffer("pairs", torch.tril_indices(3, 3, offset=-1))

    def forward(self, item, kind, about):
        dense = self.bottom(about)
        parts = torch.stack([dense, self.item(item), self.kind(kind)], 1)  # (B, 3, 4)
        products = torch.bmm(parts, parts.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([dense, products], 1)).squeeze(1)


class FastText(nn.Module):
    """Joulin et al. 2017: the mean of a text's words, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, 5, padding_idx=0)
        self.classify = nn.Linear(5, 3)

    def forward(self, text):
        present = (text != 0).unsqueeze(-1)
        mean = self.word(text).sum(1) / present.sum(1).clamp(min=1)
        return self.classify(mean)


class TextCNN(nn.Module):
    """Kim 2014: windows of several widths, each filter's largest answer."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, 5, padding_idx=0)
        self.windows = nn.ModuleList([nn.Conv1d(5, 4, width, padding="same") for width in (1, 3)])
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(8, 1)

    def forward(self, text):
        x = self.word(text).transpose(1, 2)  # (B, 5, L)
        padding = (text == 0).unsqueeze(1)
        found = [F.relu(c(x)).masked_fill(padding, 0).amax(2) for c in self.windows]
        return self.last(self.drop(torch.cat(found, 1))).squeeze(1)


class GRU4Rec(nn.Module):
    """Hidasi et al. 2016: the state after a session, against the item that is offered."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(ITEMS, 6, padding_idx=0)
        self.gru = fedrows.nn.GRU(6, 6, batch_first=True)

    def forward(self, history, target):
        output, _ = self.gru(self.item(history))  # (B, L, 6)
        last = (history != 0).sum(1).clamp(min=1) - 1
        state = output[torch.arange(len(last), device=last.device), last]
        return (state * self.item(target)).sum(1)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, 8, padding_idx=0)
        self.position = nn.Embedding(LONGEST + MORE, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.last = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 1))

    def forward(self, text):
        place = torch.arange(text.shape[1], device=text.device)
        padding = text == 0
        x = self.encoder(self.word(text) + self.position(place), src_key_padding_mask=padding)
        x = x.masked_fill(padding.unsqueeze(-1), 0).sum(1) / (~padding).sum(1, keepdim=True)
        return self.last(x)[:, 0]


class HashedMLP(nn.Module):
    """Every feature of an example in one table of hashed ids."""

    def __init__(self) -> None:
        super().__init__()
        self.hashed = nn.Embedding(37, 4)
        self.mlp = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1)
        )

    def forward(self, features):
        return self.mlp(self.hashed(features)).squeeze(-1)


class Bags(nn.Module):
    """Words and items in bags, the item that is offered reading the same table."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.EmbeddingBag(ITEMS, 5, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(15, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, history, target):
        mean, offered = self.word(history), self.word(target.unsqueeze(1))
        return self.mlp(torch.cat([mean, offered, mean * offered], 1)).squeeze(1)


class TwoTablesOfOneFeature(nn.Module):
    """An item's popularity in one embedding, its taste in another; stars are the label."""

    def __init__(self) -> None:
        super().__init__()
        self.popularity, self.taste = nn.Embedding(ITEMS, 1), nn.Embedding(ITEMS, 3)
        self.user = nn.Embedding(USERS, 3)

    def forward(self, user, item):
        return self.popularity(item)[:, 0] + (self.user(user) * self.taste(item)).sum(1)


class Tagger(nn.Module):
    """The class of the middle word of a window of three."""

    def __init__(self) -> None:
        super().__init__()
        self.word = nn.Embedding(WORDS, 6)
        self.hidden = nn.Linear(18, 12)
        self.tags = nn.Linear(12, 3)

    def forward(self, window):
        hidden = torch.tanh(self.hidden(self.word(window).flatten(1)))
        return self.tags(F.dropout(hidden, 0.1, self.training))


def _owners(rng: np.random.Generator) -> np.ndarray:
    """Unequal clients, one with a single example."""
    sizes = rng.integers(6, 16, USERS)
    sizes[0] = 1
    return np.repeat(np.arange(USERS), sizes)


def _nobody(owner: np.ndarray) -> np.ndarray:
    return np.zeros(len(owner), dtype=bool)


def ratings(more: int = 0, features: str = "user item", labels: str = "binary") -> FederatedData:
    """Users of two tastes and items of two kinds: a like is a match, with a little noise."""
    rng = np.random.default_rng(0)
    user = _owners(rng)
    item = (user + rng.integers(0, 7, len(user))) % ITEMS
    noise = np.where(rng.random(len(user)) < 0.9, 1, -1)
    match = np.where((user + item) % 2 == 0, 1.0, -1.0) * noise
    about = np.stack([match + rng.normal(0, 1, len(user)), rng.normal(0, 1, len(user))], 1)
    ids = {"user": user, "item": item, "kind": (item % 2 + 2 * (user % 2)) % KINDS}
    rows = {"user": USERS, "item": ITEMS, "kind": KINDS}
    return FederatedData.build(
        client=user,
        ids={name: column for name, column in ids.items() if name in features},
        numbers={"about": about} if "about" in features else {},
        label=match if labels == "numbers" else (match > 0).astype(float),
        labels=labels,
        test=_nobody(user),
        tables={table: count for table, count in rows.items() if table in features},
    )


def texts(more: int = 0, labels: str = "binary") -> FederatedData:
    """Texts of 1 to 6 words, whose class is that of most of their words."""
    rng = np.random.default_rng(1)
    owner, classes = _owners(rng), 2 if labels == "binary" else 3
    label = rng.integers(0, classes, len(owner))
    lists = []
    for one in label:
        words = rng.integers(0, (WORDS - 1) // classes, rng.integers(1, LONGEST + 1)) * classes
        stray = rng.random(len(words)) < 0.15
        lists.append(1 + words + np.where(stray, rng.integers(0, classes, len(words)), one))
    return FederatedData.build(
        client=owner,
        ids={"text": ragged(lists, LONGEST + more)},
        label=label,
        labels=labels,
        test=_nobody(owner),
        tables={"word": WORDS},
        fields={"text": "word"},
    )


def sessions(more: int = 0, table: str = "item") -> FederatedData:
    """Items seen so far and one that is offered: taken if it is of the kind of most of them."""
    rng = np.random.default_rng(2)
    owner = _owners(rng)
    kind = rng.integers(0, 2, len(owner))
    lists = [1 + 2 * rng.integers(0, 7, rng.integers(1, LONGEST + 1)) + one for one in kind]
    target = rng.integers(1, ITEMS - 1, len(owner))
    return FederatedData.build(
        client=owner,
        ids={"history": ragged(lists, LONGEST + more), "target": target},
        label=(target - 1) % 2 == kind,
        test=_nobody(owner),
        tables={table: ITEMS},
        fields={"history": table, "target": table},
    )


def hashed(more: int = 0) -> FederatedData:
    """Three features an example, hashed into one table, collisions included."""
    rng = np.random.default_rng(3)
    owner = _owners(rng)
    raw = rng.integers(0, 9, (len(owner), 3))
    return FederatedData.build(
        client=owner,
        ids={"features": (raw * 31 + np.arange(3) * 1_009) % 37},
        label=raw.sum(1) > 12,
        test=_nobody(owner),
        tables={"hashed": 37},
        fields={"features": "hashed"},
    )


def windows(more: int = 0) -> FederatedData:
    """Three words; the tag is a matter of the middle one."""
    rng = np.random.default_rng(4)
    owner = _owners(rng)
    words = rng.integers(0, WORDS, (len(owner), 3))
    return FederatedData.build(
        client=owner,
        ids={"window": words},
        label=words[:, 1] % 3,
        labels="classes",
        test=_nobody(owner),
        tables={"word": WORDS},
        fields={"window": "word"},
    )


@dataclass
class Animal:
    """A module, its data (with more padding, if asked), and how it is lifted over them."""

    make: Callable[[], nn.Module]
    data: Callable[..., FederatedData]
    embeddings: dict[str, str | list[str]] = field(default_factory=dict)
    dense: tuple[str, ...] = ()
    lr: float = 0.3

    def module(self) -> nn.Module:
        torch.manual_seed(0)
        return self.make()


def _both(*tables: str, first: str, second: str) -> dict[str, str | list[str]]:
    return {table: [first.format(table), second.format(table)] for table in tables}


ZOO: dict[str, Animal] = {
    "matrix factorisation": Animal(MatrixFactorisation, ratings),
    "factorisation machine": Animal(
        FactorisationMachine,
        partial(ratings, features="user item kind"),
        _both("user", "item", "kind", first="{}_linear", second="{}_factors"),
        lr=0.1,
    ),
    "wide & deep": Animal(
        WideAndDeep,
        partial(ratings, features="item kind about"),
        _both("item", "kind", first="wide_{}", second="deep_{}"),
    ),
    "DeepFM": Animal(
        DeepFM,
        partial(ratings, features="item kind"),
        _both("item", "kind", first="first.{}", second="second.{}"),
        lr=0.1,
    ),
    "two-tower": Animal(TwoTower, ratings),
    "NCF": Animal(NCF, ratings, _both("user", "item", first="{}_product", second="{}_deep")),
    "DLRM": Animal(DLRM, partial(ratings, features="item kind about")),
    "fastText": Animal(FastText, partial(texts, labels="classes")),
    "text CNN": Animal(TextCNN, texts),
    "GRU4Rec": Animal(GRU4Rec, sessions),
    "transformer": Animal(Transformer, texts, dense=("position",), lr=0.1),
    "MLP on hashed ids": Animal(HashedMLP, hashed, lr=0.1),
    "EmbeddingBag": Animal(Bags, partial(sessions, table="word")),
    "two tables of one feature": Animal(
        TwoTablesOfOneFeature,
        partial(ratings, labels="numbers"),
        {"item": ["popularity", "taste"]},
        lr=0.1,
    ),
    "multi-class tagger": Animal(Tagger, windows),
}
WITH_LISTS = ["fastText", "text CNN", "GRU4Rec", "transformer", "EmbeddingBag"]
