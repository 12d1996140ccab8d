"""The heat of a private deployment: its secure sum, and the file that keeps it.

The end of a sum is told to everybody. The first one may also count labels, for a counted start. A
second one needs everybody, and counts that were made are never made again: the difference of two
exact counts shows whoever was in one of them only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedrows.data.label_counts import LabelCounts
from fedrows.errors import RunFolderError
from fedrows.files.whole import write_private
from fedrows.privacy import secure_sum
from fedrows.privacy.heat_counts import Member
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


def save_heat(
    path: Path,
    heat: Mapping[str, Heat],
    counts: Sequence[frozenset[Member]],
    labels: LabelCounts | None = None,
) -> None:
    """Writes the heat of every table, the clients of every count, and what labels came to."""
    tensors: dict[str, Tensor] = {}
    if labels is not None:
        counters = {"ids": labels.ids, "have": labels.examples, "like": labels.positives}
        tensors |= {f"labels/{name}": x.clone() for name, x in counters.items()}
    for table, counted in heat.items():
        tensors[f"{table}/ids"], tensors[f"{table}/counts"] = counted.ids, counted.counts
    totals = {table: counted.total for table, counted in heat.items()}
    facts = {
        "totals": totals,
        "counted": [sorted(count, key=str) for count in counts],
        "labels": None if labels is None else labels.table,
    }
    write_private(path, safetensors.torch.save(tensors, {"fedrows": json.dumps(facts)}))


def load_heat(
    path: Path,
) -> tuple[dict[str, Heat], list[frozenset[Member]], LabelCounts | None]:
    """What `save_heat` has written."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["fedrows"])
            heat = {
                table: Heat(
                    file.get_tensor(f"{table}/ids"), file.get_tensor(f"{table}/counts"), total
                )
                for table, total in facts["totals"].items()
            }
            labels = None
            if facts["labels"] is not None:
                parts = (file.get_tensor(f"labels/{name}") for name in ("ids", "have", "like"))
                labels = LabelCounts(facts["labels"], *parts)
        counts = [frozenset((node, name) for node, name in each) for each in facts["counted"]]
    except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        raise RunFolderError(
            f"The heat in {path} cannot be read ({error}): restore the file, since counting again "
            "would show more."
        ) from error
    return heat, counts, labels
