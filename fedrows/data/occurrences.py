"""Which rows of a cohort's block occur in its batches of a round: one bit for every row.

Batches follow from (seed, round, client), so nothing of the training itself is needed. A row can
occur and not move, where steps cancel; so what a client sends cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrows.data.batches import LocalData, batches
from fedrows.plan import Plan
from fedrows.rows.index import Index


def occurred(
    local: LocalData, index: Mapping[str, Index], plan: Plan, round_: int
) -> dict[str, Tensor]:
    """Whether each entry of an index occurs in its client's batches, by shared table: (R,) bool.

    An example of weight 0 has no say in a batch, so its rows do not occur by it.
    """
    shared = {table: rows for table, rows in index.items() if table not in local.local}
    marks = {  # one more than there are entries, for places of −1, which mean nothing
        table: torch.zeros(len(rows.ids) + 1, dtype=torch.bool, device=rows.ids.device)
        for table, rows in shared.items()
    }
    for batch in batches(local, index, plan, round_):
        for name, places in batch.ids.items():
            if local.fields[name] not in shared:
                continue
            if batch.weight is not None:
                deep = [1] * (places.dim() - batch.weight.dim())
                real = (batch.weight > 0).view(*batch.weight.shape, *deep)  # (K, B) or (K, B, 1)
                places = torch.where(real, places, -1)
            marks[local.fields[name]][places] = True
    return {table: x[:-1] for table, x in marks.items()}
