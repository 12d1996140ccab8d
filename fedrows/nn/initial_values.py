"""Where a model starts from, as a function of a seed: the same numbers on every machine.

PyTorch's layers draw theirs from its global generator, in the order in which they are made. Here a
number depends on (seed, the parameter's name, its position) alone.
"""

from __future__ import annotations

from math import prod, sqrt

import torch
from torch import Tensor, nn

from fedrows.nn.recurrent import GRU, LSTM
from fedrows.seeds import START, bits, key, normal, uniform
from fedrows.tables.initial_rows import InitialRows, NormalRows, UniformRows

_START = "fedrows_start"  # an attribute, so that it is copied and pickled with its embedding


def start_(module: nn.Module, seed: int, spread: float = 1.0) -> None:
    """Draws the numbers of all layers anew, from the distributions that PyTorch uses.

    Embeddings      N(0, spread²), 0 in the padding row; PyTorch's spread is 1. One on the device
                    "meta" has no numbers: each row is drawn, the same, when it is first read
    LSTM, GRU       U(±1/√hidden)
    linear, conv    U(±1/√inputs), the bias too
    All other layers, such as normalisations, keep what they were made with.
    """
    for path, part in module.named_modules():
        name = f"{path}." if path else ""
        if isinstance(part, nn.Embedding) and part.weight.is_meta:
            part.__dict__[_START] = _drawn(part, f"{name}weight", seed, spread)
        elif isinstance(part, nn.Embedding | nn.EmbeddingBag):
            _fill_(part.weight, normal(_bits(seed, f"{name}weight", part.weight)) * spread)
            if part.padding_idx is not None:
                _fill_(part.weight[part.padding_idx], torch.zeros(part.embedding_dim))
        elif isinstance(part, LSTM | GRU):
            for own, x in part.named_parameters():
                _fill_even_(x, 1 / sqrt(part.hidden_size), seed, name + own)
        elif isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            bound = 1 / sqrt(prod(part.weight.shape[1:]))
            for own, x in part.named_parameters(recurse=False):
                _fill_even_(x, bound, seed, name + own)


def start_glorot_(module: nn.Module, seed: int) -> None:
    """Draws the numbers of embeddings and linear layers anew, from Glorot's uniform distribution.

    Weights      U(±√(6 / (rows + columns))), 0 in the padding row of an embedding
    Biases       0
    Glorot and Bengio (AISTATS 2010) derive it for layers. Keras has it as the default of its dense
    layers, and TensorFlow 1 of every variable, embeddings included. All other layers keep what they
    were made with.
    """
    for path, part in module.named_modules():
        name = f"{path}.weight" if path else "weight"
        if isinstance(part, nn.Embedding):
            rows = _even_rows(part, name, seed)
            if part.weight.is_meta:
                part.__dict__[_START] = rows
            else:
                _fill_(part.weight, rows(torch.arange(part.num_embeddings)))
        elif isinstance(part, nn.Linear):
            _fill_even_(part.weight, sqrt(6 / sum(part.weight.shape)), seed, name)
            if part.bias is not None:
                _fill_(part.bias, torch.zeros_like(part.bias))


def start_of(part: nn.Embedding, name: str) -> InitialRows:
    """The start values of an embedding without numbers: as `start_` has said, or from N(0, 1)."""
    chosen: InitialRows | None = part.__dict__.get(_START)
    return _drawn(part, name, seed=0, spread=1.0) if chosen is None else chosen


def _drawn(part: nn.Embedding, name: str, seed: int, spread: float) -> InitialRows:
    return NormalRows(seed, name, part.embedding_dim, spread, part.padding_idx, part.weight.dtype)


def _even_rows(part: nn.Embedding, name: str, seed: int) -> InitialRows:
    bound = sqrt(6 / (part.num_embeddings + part.embedding_dim))
    width, padding = part.embedding_dim, part.padding_idx
    return UniformRows(seed, name, width, bound, padding, part.weight.dtype)


def _fill_even_(x: Tensor, bound: float, seed: int, name: str) -> None:
    """Numbers from U(−bound, bound)."""
    _fill_(x, (uniform(_bits(seed, name, x)) * 2 - 1) * bound)


def _fill_(x: Tensor, values: Tensor) -> None:
    with torch.no_grad():
        x.copy_(values.view(x.shape))


def _bits(seed: int, name: str, x: Tensor) -> Tensor:
    """64 random bits for each number of a parameter: (n,), on the CPU."""
    return bits(key(seed, START, *name.encode()), torch.arange(x.numel()))
