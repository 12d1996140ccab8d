"""What a client's own past labels say about an example: two kinds of numbers, log-odds both.

    lately   how the client has rated before: what it rated last counts more
    beside   how it has rated items with ids near this one's, against how it rates in general

Both are weighted means over the labels y_j of the client's training examples before an example. For
`lately`, k of these lie between the two, and there is a number for every decay d. For `beside`, the
ids of the two items are g apart, and q is the mean of `lately` with d = 1.

    lately   logit((Σ d^k · y_j + a·p) / (Σ d^k + a)) − logit(p)                a = 5
    beside   logit((Σ e^(−g/5) · y_j + b·q) / (Σ e^(−g/5) + b)) − logit(q)      b = 2

Pseudo-examples at the prior p, or at q, keep short pasts tame. A client works all of it out from p
and from labels that it has, so nothing is sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import log_odds
from fedrows.errors import DataError

DECAYS = (0.9, 0.98, 1.0)  # how fast each running count forgets; 1 forgets nothing
REACH = 5.0  # ids that are so far apart count e⁻¹
PSEUDO_BESIDE = 2.0  # b


def with_recent_labels(
    data: FederatedData, name: str = "lately", decays: Sequence[float] = DECAYS
) -> FederatedData:
    """The same data with (n, decays) numbers in all examples: how their clients have rated.

    A training example sees labels of training examples before it, in the order of the data. A
    validation or test example sees all of its client's training labels and no other: hold out the
    last examples of a client. p is the share of positives over all training examples.
    """
    prior = _check(data, name)
    before, after = running_log_odds(data.train.label, data.train.splits, decays, prior)
    late = _of_all_clients(data, after)
    parts = [before, late[data.validation.owner], late[data.test.owner]]
    return _with_numbers(data, name, parts)


def with_labels_beside(data: FederatedData, name: str = "beside") -> FederatedData:
    """The same data with (n, 1) numbers in all examples: how clients rated what is near in id.

    It helps where items are numbered in an order that means something. Who sees which labels is as
    in `with_recent_labels`.
    """
    prior = _check(data, name)
    if data.target is None:
        raise DataError(f"Examples of {data.name} are about no item, so nothing stands beside it.")
    train = data.train
    before, after = running_log_odds(train.label, train.splits, [1.0], prior)
    late = _of_all_clients(data, after)
    general = float(torch.logit(torch.tensor(prior, dtype=torch.float64)))
    parts = [train, data.validation, data.test]
    ids = [data.targets(part).double() for part in parts]
    beside = [torch.zeros(len(part), 1, dtype=torch.float64) for part in parts]
    for client in range(data.clients):
        own = _rows(train, client)
        seen, label = ids[0][own], train.label[own].double()
        for number, part in enumerate(parts):
            rows = _rows(part, client)
            share = torch.exp(-(ids[number][rows].unsqueeze(1) - seen).abs() / REACH)  # (m, n)
            level = late[client].expand(len(share), 1)
            if part is train:
                share, level = share.tril(-1), before[own]
            level = torch.sigmoid(general + level.squeeze(1))  # (m,)
            beside[number][rows, 0] = torch.logit(
                (share @ label + PSEUDO_BESIDE * level) / (share.sum(1) + PSEUDO_BESIDE)
            ) - torch.logit(level)
    return _with_numbers(data, name, beside)


def running_log_odds(
    label: Tensor, splits: Tensor, decays: Sequence[float], prior: float
) -> tuple[Tensor, Tensor]:
    """How a client has rated before each of its examples (n, D), and after all of them (N, D)."""
    first, sizes = splits[:-1], splits.diff()
    decay = torch.tensor(decays, dtype=torch.float64)
    positives = torch.zeros(len(sizes), len(decay), dtype=torch.float64)
    examples = torch.zeros_like(positives)
    before = torch.zeros(len(label), len(decay), dtype=torch.float64)
    for k in range(int(sizes.max())):
        clients = (sizes > k).nonzero().flatten()  # those with a k-th example
        rows = first[clients] + k
        before[rows] = log_odds(positives[clients], examples[clients], prior)
        positives[clients] = positives[clients] * decay + label[rows].double().unsqueeze(1)
        examples[clients] = examples[clients] * decay + 1
    return before, log_odds(positives, examples, prior)


def _check(data: FederatedData, name: str) -> float:
    """The prior p; a DataError if labels have no log-odds, or the name is taken."""
    if data.labels != "binary":
        raise DataError(
            f"The labels of {data.name} are {data.labels}, but a mean of past labels wants binary "
            "ones: leave it out."
        )
    if name in data.fields or name in data.train.numbers:
        raise DataError(f"{data.name} has a field {name!r} already: give the numbers another name.")
    return float(data.train.label.double().mean().clamp(1e-6, 1 - 1e-6))


def _of_all_clients(data: FederatedData, trained: Tensor) -> Tensor:
    """What is known of the N clients, and 0 for those without training examples: (clients, D)."""
    late = trained.new_zeros(len(data.test.splits) - 1, trained.shape[1])
    late[: data.clients] = trained
    return late


def _rows(examples: Examples, client: int) -> slice:
    """Where the examples of a client are."""
    return slice(int(examples.splits[client]), int(examples.splits[client + 1]))


def _with_numbers(data: FederatedData, name: str, columns: Sequence[Tensor]) -> FederatedData:
    """The data with a column (n, D) in their training, validation and test examples."""
    train, validation, test = (
        replace(part, numbers={**part.numbers, name: column.to(torch.float32)})
        for part, column in zip((data.train, data.validation, data.test), columns, strict=True)
    )
    encoder = data.encoder
    if encoder is not None:
        encoder = replace(encoder, numbers={**encoder.numbers, name: columns[0].shape[1]})
    return replace(data, train=train, validation=validation, test=test, encoder=encoder)
