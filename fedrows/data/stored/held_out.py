"""Which rows of a streamed table are held out.

A split over all clients is worked out beforehand, a byte per row. One that goes by a row alone is
worked out batch by batch, and one that goes by each client's examples part by part. A validation
split over all clients must know every test example, so the columns of both splits are then in
memory once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedrows.data.column_checks import as_marks
from fedrows.data.column_layout import Layout
from fedrows.data.splits import Split, as_times, check_apart, mark_validation
from fedrows.data.stored.parquet_table import ParquetTable, as_numpy, numbers_of
from fedrows.data.stored.spill import OWNER, Spill, Spilled


class HeldOutRows:
    """The marks of rows, as columns of a spill: those that are known before the parts are."""

    def __init__(self, table: ParquetTable, layout: Layout, names: Any) -> None:
        self.splits = {"test": layout.test_split, "validation": layout.validation_split}
        self._seed = layout.seed
        self._whole: dict[str, np.ndarray] = {}  # (rows,), of splits over all clients
        if not any(split.over_all for split in self.splits.values()):
            return
        owner = np.empty(table.rows, dtype=bool)  # nobody asks who it is
        test, validation = layout.test_split, layout.validation_split
        if test.by_client and validation.over_all:
            batches = table.batches([layout.client])
            owner = np.concatenate([numbers_of(b[layout.client], names) for _, b in batches])
        if test.over_all or validation.over_all:
            self._whole["test"] = test.mark(owner, _whole(table, test), layout.seed)
        if validation.over_all:
            self._whole["validation"] = mark_validation(
                validation, self._whole["test"], owner, _whole(table, validation), layout.seed
            )

    def columns(
        self, batch: Mapping[str, Any], first: int, owner: np.ndarray
    ) -> dict[str, Spilled]:
        """What a batch's parts need to know: marks, or the times that marks will go by."""
        columns: dict[str, Spilled] = {}
        for name, split in self.splits.items():
            if split.takes_nothing and name == "validation":
                continue
            by = None if split.column is None else as_numpy(batch[split.column])
            if name in self._whole:
                columns[name] = self._whole[name][first : first + len(owner)]
            elif split.by_client:
                if by is not None:
                    columns[f"{name} time"] = as_times(split.column or "", by)
            elif split.kind == "given":
                assert by is not None
                columns[name] = as_marks(split.column or "", by, first)
            else:
                columns[name] = split.mark(owner, by, self._seed)
        return columns


def held_out(
    layout: Layout, spill: Spill, part: int, columns: Mapping[str, Spilled]
) -> tuple[np.ndarray, np.ndarray]:
    """Which examples of a part are for test, and which for validation: (n,) bool each."""
    owner = as_array(columns[OWNER]) - spill.clients(part)[0]

    def times(name: str) -> np.ndarray | None:
        return as_array(columns[f"{name} time"]) if f"{name} time" in columns else None

    if "test" in columns:
        test = as_array(columns["test"])
    else:
        test = layout.test_split.mark(owner, times("test"), layout.seed)
    split = layout.validation_split
    if "validation" not in columns:
        return test, mark_validation(split, test, owner, times("validation"), layout.seed)
    validation = as_array(columns["validation"])
    if split.kind == "given":
        check_apart(validation, test, f"Column {split.column!r}")
    return test, validation & ~test


def as_array(raw: Spilled) -> np.ndarray:
    """A column that holds no lists."""
    assert isinstance(raw, np.ndarray)
    return raw


def _whole(table: ParquetTable, split: Split) -> np.ndarray | None:
    """The whole column that a split goes by: (rows,)."""
    if split.column is None:
        return None
    return np.concatenate([as_numpy(b[split.column]) for _, b in table.batches([split.column])])
