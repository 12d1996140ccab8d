"""A model for some examples only: the rows that they read, and slots in place of their ids.

Any model then scores them as it scores anything: it is given tables of few rows, and ids that fit.
Row 0 of a padded table stays row 0, so a mask such as `history != 0` means the same as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from fedrows.rows.params import Params
from fedrows.tables.sparse_table import SparseTable


def gathered(
    params: Params,
    columns: Mapping[str, Tensor],
    tables: Mapping[str, str],
    padded: Collection[str],
) -> tuple[Params, dict[str, Tensor]]:
    """The rows that columns of ids read, and the columns with slots; in memory nothing changes.

    tables: which table a column reads; columns that read none, such as numbers, stay as they are.
    """
    rows, slots_of = dict(params.tables), dict(columns)
    for table, source in params.tables.items():
        if not isinstance(source, SparseTable):
            continue
        names = [name for name in columns if tables.get(name) == table]
        flat = [columns[name].reshape(-1) for name in names]
        if table in padded:
            flat.append(torch.zeros(1, dtype=torch.int64, device=source.device))
        ids, slots = torch.unique(torch.cat(flat), return_inverse=True)
        rows[table] = source.index_select(0, ids)
        for name, part in zip(
            names, slots.split([len(x) for x in flat])[: len(names)], strict=True
        ):
            slots_of[name] = part.view(columns[name].shape)
    return Params(rows, params.dense), slots_of
