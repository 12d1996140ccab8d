"""The heat of a private deployment on disk, and which clients were in which count of it.

Counts that were made are never made again: the difference of two exact counts shows whoever was in
one of them only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
from torch import Tensor

from fedrows.data.label_counts import LabelCounts
from fedrows.errors import RunFolderError
from fedrows.files.whole import write_private
from fedrows.privacy.heat_counts import Member
from fedrows.rows.heat import Heat


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
    for table, one in heat.items():
        tensors[f"{table}/ids"], tensors[f"{table}/counts"] = one.ids, one.counts
    totals = {table: one.total for table, one in heat.items()}
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
