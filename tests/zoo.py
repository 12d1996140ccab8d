"""The zoo: modules as users write them, small data that they can learn, and how they are lifted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import nn
from zoo_modules import (
    DLRM,
    ITEMS,
    KINDS,
    LONGEST,
    NCF,
    USERS,
    WORDS,
    Bags,
    DeepFM,
    FactorisationMachine,
    FastText,
    GRU4Rec,
    HashedMLP,
    MatrixFactorisation,
    Tagger,
    TextCNN,
    Transformer,
    TwoTablesOfOneFeature,
    TwoTower,
    WideAndDeep,
)

from fedrows.data.federation import FederatedData
from fedrows.rows.ragged import ragged


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
