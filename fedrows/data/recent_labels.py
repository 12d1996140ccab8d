"""How a client has rated lately: running means of its own past labels, as numbers of each example.

For every decay d, over the labels y_j of the client's training examples before an example, k of
which lie between the two:

    s = Σ_j d^k · y_j     w = Σ_j d^k
    logit((s + a·p) / (w + a)) − logit(p)

With d = 1 this is how the client has rated so far, and with less what it rated last counts more.
a = 5 pseudo-examples at the prior p keep short pasts tame, as in a counted start. A client works it
out from p and from labels that it has, so nothing is sent.
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

DECAYS = (0.9, 0.98, 1.0)


def with_recent_labels(
    data: FederatedData, name: str = "lately", decays: Sequence[float] = DECAYS
) -> FederatedData:
    """The same data with (n, decays) numbers in all examples: the past of their clients.

    A training example sees labels of training examples before it, in the order of the data. A
    validation or test example sees all of its client's training labels and no other: hold out the
    last examples of a client. p is the share of positives over all training examples.
    """
    if data.labels != "binary":
        raise DataError(
            f"The labels of {data.name} are {data.labels}, but a mean of past labels wants binary "
            "ones: leave it out."
        )
    if name in data.fields or name in data.train.numbers:
        raise DataError(f"{data.name} has a field {name!r} already: give the numbers another name.")
    prior = float(data.train.label.double().mean().clamp(1e-6, 1 - 1e-6))
    before, after = running_log_odds(data.train.label, data.train.splits, decays, prior)
    late = after.new_zeros(len(data.test.splits) - 1, len(decays))  # 0: nothing is known
    late[: data.clients] = after

    def with_past(examples: Examples, past: Tensor) -> Examples:
        return replace(examples, numbers={**examples.numbers, name: past.to(torch.float32)})

    encoder = data.encoder
    if encoder is not None:
        encoder = replace(encoder, numbers={**encoder.numbers, name: len(decays)})
    return replace(
        data,
        train=with_past(data.train, before),
        validation=with_past(data.validation, late[data.validation.owner]),
        test=with_past(data.test, late[data.test.owner]),
        encoder=encoder,
    )


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
