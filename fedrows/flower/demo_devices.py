"""The devices of a demo: which clients they are, and what each browser tab is given.

A tab gets the training examples of its client, and the client's test examples as candidates to
rank. Nobody trains on those, so the page can show how many of its recommendations are right. It
also asks for the candidates' rows, as an app does for the films that it may recommend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.files import fetch, movielens_file
from fedrows.rows.ragged import Ragged

OTHERS = 192  # clients beside the devices, on an ordinary node
EXAMPLES = (30, 120)  # of a device, if the data have such clients: its list can be looked through
CANDIDATES = 8  # the fewest

Title = Callable[[int], str]


def chosen_clients(data: FederatedData, devices: int) -> tuple[Tensor, Tensor]:
    """The clients that are devices, and those beside them."""
    if data.clients < devices:
        raise FedrowsError(
            f"--devices is {devices}, but {data.name} has {data.clients} clients only: ask for "
            "fewer."
        )
    tests = data.test.splits.diff()[: data.clients]
    fits = (data.sizes >= EXAMPLES[0]) & (data.sizes <= EXAMPLES[1]) & (tests >= CANDIDATES)
    order = torch.argsort(fits.logical_not().to(torch.int8), stable=True)
    among = order[: max(int(fits.sum()), devices)]
    own = among[torch.arange(devices) * len(among) // devices]
    rest = torch.ones(data.clients, dtype=torch.bool)
    rest[own] = False
    others = rest.nonzero().view(-1)
    count = min(OTHERS, len(others))
    return own, others[torch.arange(count) * len(others) // max(count, 1)]


def title_of(data: FederatedData) -> Title:
    """What an item is called: a film's title, or its place in the data."""
    assert data.target is not None
    table = data.fields[data.target[0]]
    words = data.vocabulary.get(table)
    if data.name.startswith("movielens") and words is not None:
        titles = movielens_file.read_titles(fetch.require(movielens_file.SOURCE))
        return lambda id_: _spoken(titles.get(int(words[id_]), f"Film {words[id_]}"))
    groups = data.groups.get(table, {"item": (0, data.tables[table])})

    def name(id_: int) -> str:
        kind, (first, _) = next(x for x in groups.items() if x[1][0] <= id_ < x[1][1])
        return f"{kind.capitalize()} {id_ - first + 1}"

    return name


def _spoken(title: str) -> str:
    """A title as one says it: `The Sixth Sense (1999)` for `Sixth Sense, The (1999)`."""
    return re.sub(r"^(.*), (The|A|An|La|Le|Il|Das|Der|Die)( \(.*)$", r"\2 \1\3", title)


def given_to(data: FederatedData, client: int, called: str, title: Title) -> dict[str, Any]:
    """What the tab of a client gets: its examples, and candidates to rank."""
    who = torch.tensor([client])
    train, test = data.train.of(who), data.test.of(who)
    candidates = _columns(test)
    also: dict[str, list[int]] = {}
    for field, entries in candidates.items():
        if data.fields[field] not in data.local:
            flat = {id_ for entry in entries for id_ in _listed(entry)}
            also[data.fields[field]] = sorted(flat | set(also.get(data.fields[field], [])))
    return {
        "called": called,
        "ids": _columns(train),
        "numbers": {name: x.tolist() for name, x in train.numbers.items()},
        "label": train.label.tolist(),
        "titles": [title(int(id_)) for id_ in data.targets(train)],
        "also": also,
        "candidates": {
            "ids": candidates,
            "titles": [title(int(id_)) for id_ in data.targets(test)],
            "liked": (test.label > 0).tolist(),
        },
    }


def _columns(examples: Examples) -> dict[str, Sequence[Any]]:
    """The ids of examples by field, as lists."""
    columns: dict[str, Sequence[Any]] = {}
    for name, column in examples.ids.items():
        if isinstance(column, Ragged):
            ends = column.offsets.tolist()
            columns[name] = [
                column.values[ends[i] : ends[i + 1]].tolist() for i in range(len(column))
            ]
        else:
            columns[name] = column.tolist()
    return columns


def _listed(entry: Any) -> list[int]:
    return entry if isinstance(entry, list) else [entry]
