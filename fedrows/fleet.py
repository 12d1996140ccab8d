"""The fleet: the interface between a server and the clients that it trains on.

A server draws a cohort and opens a round for it. The open round has the rows that the clients ask
for, trains them, and knows how many bytes have travelled.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema


@dataclass(frozen=True)
class Traffic:
    """The bytes of a round, of all its clients together."""

    down: float = 0.0
    up: float = 0.0


NO_TRAFFIC = Traffic()


class OpenRound(Protocol):
    """A round of some cohort, from the moment its clients have said which rows they want."""

    @property
    def index(self) -> Mapping[str, Index]:
        """The rows that each client of the cohort asks for, in every table."""

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        """Sends the clients their submodels, and returns what they make of them."""

    @property
    def traffic(self) -> Traffic:
        """The bytes that have travelled, once the clients have trained."""


class Fleet(Protocol):
    """N clients, somewhere: what a server may ask of them."""

    @property
    def clients(self) -> int:
        """N, the number of clients."""

    @property
    def weights(self) -> Tensor:
        """w_i, by the plan's weighting: (N,) float64."""

    @property
    def least(self) -> int:
        """How many answers make a round; with fewer it is asked for again."""

    def gather(self) -> None:
        """Takes in what has changed since the last round: who came, who left, whose data did."""

    def heat(self) -> Mapping[str, Heat]:
        """The heat of every table, under the same weights."""

    def draw(self, counter: int, count: int) -> Tensor:
        """Draws a cohort of so many different clients, ascending; each counter has another."""

    def open_round(self, round_: Round) -> OpenRound:
        """Asks the clients of a round's cohort for the rows they want; may run a protocol."""


def clear_traffic(
    schema: Schema,
    local: Collection[str],
    start: Submodels,
    sent: Submodels | None,
    upload: Upload,
) -> Traffic:
    """The bytes of a round in the clear: the numbers both ways, and the ids that were asked for.

    Rows of local tables stay with their clients.
    """
    start, update = start.without(local), upload.update.without(local)
    ids = sum(
        len(index.ids) * id_bytes(schema.tables[table].rows) for table, index in start.index.items()
    )
    marks = sum((len(x) + 7) // 8 for x in (upload.occurred or {}).values())  # a bit for each row
    up = _bytes(update, *upload.extra.values()) + ids + marks
    return Traffic(_bytes(start, sent), up)


def traffic_of(
    schema: Schema, rows: Mapping[str, int], clients: int, dtype: torch.dtype
) -> Traffic:
    """The same by the number of rows in each table, if only the model and updates travel."""
    numbers = clients * schema.dense_size
    ids = 0
    for table, count in rows.items():
        numbers += count * schema.tables[table].width
        ids += count * id_bytes(schema.tables[table].rows)
    return Traffic(numbers * dtype.itemsize, numbers * dtype.itemsize + ids)


def id_bytes(rows: int) -> int:
    """What the id of a row weighs in an index set, in a table of so many rows."""
    return 4 if rows <= 2**32 else 8


def _bytes(*parts: Submodels | None) -> int:
    """What the numbers of some submodels weigh."""
    return sum(
        x.nbytes
        for part in parts
        if part is not None
        for x in (*part.rows.values(), *part.dense.values())
    )
