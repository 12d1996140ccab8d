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

Where an example has a list of the items that its client liked before it, as a history has, `beside`
takes the positives from there. The list of a held-out example also has what the client liked since
its last training example. What it has rated since then and is not in the list was not liked: such
items count as negatives. No label of a held-out example is read for this.
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
from fedrows.rows.ragged import Column, Ragged, look_up

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


def with_labels_beside(
    data: FederatedData, name: str = "beside", liked: str | None = None
) -> FederatedData:
    """The same data with (n, 1) numbers in all examples: how clients rated what is near in id.

    liked: a field with lists of the items that the client liked before an example. It then says
    which items near the example's were liked, and which of those that a held-out example comes
    after were not. Without it training labels alone do. It helps where items are numbered in an
    order that means something. Who sees which labels is as in `with_recent_labels`.
    """
    prior = _check(data, name)
    if data.target is None:
        raise DataError(f"Examples of {data.name} are about no item, so nothing stands beside it.")
    if liked is not None and data.fields.get(liked) != data.fields[data.target[0]]:
        raise DataError(
            f"Field {liked!r} of {data.name} does not list items as {data.target[0]!r} has them: "
            "name a field with the items that a client liked."
        )
    train = data.train
    before, after = running_log_odds(train.label, train.splits, [1.0], prior)
    late = _of_all_clients(data, after)
    general = float(torch.logit(torch.tensor(prior, dtype=torch.float64)))
    parts = [train, data.validation, data.test]
    ids = [data.targets(part).double() for part in parts]
    beside = [torch.zeros(len(part), 1, dtype=torch.float64) for part in parts]
    listed = [None if liked is None else _near_in(part.ids[liked], at)
              for part, at in zip(parts, ids, strict=True)]  # fmt: skip
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
            positives, negatives = share @ label, share @ (1 - label)
            if (known := listed[number]) is not None:
                positives = known[rows]
                negatives = negatives + _passed_over(data, number, rows, client, str(liked))
            examples = positives + negatives
            beside[number][rows, 0] = torch.logit(
                (positives + PSEUDO_BESIDE * level) / (examples + PSEUDO_BESIDE)
            ) - torch.logit(level)
    return _with_numbers(data, name, beside)


def _near_in(lists: Column, item: Tensor) -> Tensor:
    """Σ e^(−g/5) over the items that each list has, g being how far their ids are apart: (n,)."""
    near = item.new_zeros(len(item))
    if isinstance(lists, Ragged):
        owner = torch.repeat_interleave(lists.sizes)
        apart = (lists.values - item[owner]).abs()
        return near.index_add_(0, owner, torch.exp(-apart / REACH))
    share = torch.exp(-(lists - item.unsqueeze(1)).abs() / REACH)
    return torch.where(lists == 0, 0.0, share).sum(1)  # id 0 fills lists up


def _passed_over(
    data: FederatedData, number: int, rows: slice, client: int, liked: str
) -> Tensor | float:
    """Σ e^(−g/5) over what a client has rated since training, but has not in an example's list.

    number: of the part that the examples are in: 1 for validation, 2 for test, which comes later.
    """
    if number == 0:
        return 0.0
    held = [(part, _rows(part, client)) for part in (data.validation, data.test)][:number]
    items = torch.cat([data.targets(part)[own] for part, own in held])  # (j,), in their order
    part, own = held[-1]
    item = data.targets(part)[own]  # (m,), the last of them
    lists = look_up(part.ids[liked], torch.arange(rows.start, rows.stop))  # (m, L)
    before = torch.ones(len(item), len(items)).tril(len(items) - len(item) - 1)  # (m, j)
    was_liked = (lists.unsqueeze(2) == items).any(1)  # (m, j)
    share = torch.exp(-(item.unsqueeze(1) - items).abs().double() / REACH)
    return (share * before * ~was_liked).sum(1)


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
