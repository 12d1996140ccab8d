"""The secure sum of heat: its end is told to everybody, and a second count needs everybody.

The first one may also count labels, for a counted start.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import torch

from fedrows.data.label_counts import LabelCounts
from fedrows.privacy import secure_sum
from fedrows.privacy.heat_of_mode import counter_names
from fedrows.privacy.ledger import Entry
from fedrows.privacy.protocol import LastRequests, ProtocolError, ServerHalf
from fedrows.rows.heat import Heat

R = TypeVar("R")


def closed(
    half: ServerHalf[secure_sum.SumResult],
) -> ServerHalf[secure_sum.SumResult]:
    """A sum that tells its clients when it is over, so that they forget it."""
    total = yield from half
    yield LastRequests(dict.fromkeys(total.answering, b""))
    return total


def whole(half: ServerHalf[R]) -> ServerHalf[R]:
    """A protocol that ends before anything is opened if a client falls silent.

    A second count of heat that lacks somebody would show that somebody's rows by its difference.
    """
    request = next(half)
    everybody = request.keys()
    while not (gone := sorted(everybody - request.keys())):
        replies = yield request
        try:
            request = half.send(replies)
        except StopIteration as end:
            return end.value
    raise ProtocolError(f"Client {gone[0]} dropped out, and the count needs everybody.")


def label_entries(table: str) -> list[Entry]:
    """What the exact totals of both counters of a counted start write into the ledger."""
    return [Entry("totals/value", name, 0, math.inf) for name in counter_names(table)]


def labels_from(sums: np.ndarray, table: str, heat: Heat) -> LabelCounts:
    """Both counters out of a secure sum (2 · rows,), for the rows that anybody holds.

    A node that lies can set a total to any word, so totals are bounded by the clients in the sum.
    """
    have, like = torch.from_numpy(sums.astype(np.int64)).double().view(2, -1)[:, heat.ids]
    return LabelCounts(table, heat.ids, have.clamp(0, heat.total), like.clamp(0, heat.total))
