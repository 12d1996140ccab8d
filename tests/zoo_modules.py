"""Modules as users write them: plain PyTorch for one client. Nothing here knows of cohorts."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import fedrows.nn

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
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
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
