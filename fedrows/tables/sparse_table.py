"""A tensor that stands for a table whose rows are not all in memory, and answers to ids.

It has the shape, the dtype and the device of the whole table, and serves what rounds need: rows by
their ids, rows put back, rows added to, and a table of the same shape that starts from a constant.
An operation that would read or move every row is refused.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fedrows.errors import PlanError
from fedrows.rows.params import Params
from fedrows.tables.initial_rows import ConstantRows, InitialRows
from fedrows.tables.touched_rows import MappedRows

aten = torch.ops.aten
_TOGETHER = 2**16  # rows that are made at once


class RowSource(Protocol):
    """Rows that are read by id, wherever they are."""

    def read(self, ids: Tensor) -> Tensor:
        """The rows of some ids (R,), on the CPU."""

    def touched(self) -> Tensor:
        """The ids of the rows that are no longer as they started, sorted."""


class SparseTable(Tensor):
    """A table of which only the touched rows exist."""

    rows: RowSource
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, rows: RowSource, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> SparseTable:
        made: SparseTable = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=dtype, device=device
        )
        made.rows = rows
        return made

    @classmethod
    def of(cls, rows: MappedRows, device: torch.device) -> SparseTable:
        """The tensor of one table's rows in files."""
        shape = (rows.table.rows, *rows.file.tail)
        return cls(rows, shape, rows.file.dtype, device)

    @classmethod
    def untouched(cls, start: InitialRows, rows: int) -> SparseTable:
        """A table that is for reading only, every row as it starts."""
        some = start(torch.arange(1))
        return cls(_Untouched(start), (rows, *some.shape[1:]), some.dtype, some.device)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        served = _SERVED.get(func)
        if served is None or not isinstance(args[0], SparseTable):
            table = next(x for x in args if isinstance(x, SparseTable))
            raise _refused(table, func.__name__.partition(".")[0])
        return served(*args, **(kwargs or {}))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"SparseTable{tuple(self.shape)}, {len(self.rows.touched())} rows touched"


@dataclass(frozen=True)
class _Untouched:
    """Rows that are as they start."""

    start: InitialRows

    def read(self, ids: Tensor) -> Tensor:
        """The start values of some rows."""
        return self.start(ids)

    def touched(self) -> Tensor:
        """No ids."""
        return torch.zeros(0, dtype=torch.int64)


def everything(table: Tensor) -> Any:
    """What to index a table with to get all rows that may have moved."""
    return table.rows.touched().to(table.device) if isinstance(table, SparseTable) else slice(None)


def whole(table: Tensor) -> Tensor:
    """The table as a plain tensor; one that does not fit into memory is refused."""
    if not isinstance(table, SparseTable):
        return table
    _check_fits(table)
    made = torch.empty(table.shape, dtype=table.dtype)
    for low in range(0, len(table), _TOGETHER):
        ids = torch.arange(low, min(low + _TOGETHER, len(table)))
        made[low : low + len(ids)] = table.rows.read(ids)
    return made.to(table.device)


def _check_fits(table: SparseTable) -> None:
    """Raises a PlanError if a table is larger than the memory of this machine."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if table.nbytes > memory:
        advice = (
            "keep its touched rows only, with --tables mapped"
            if isinstance(table.rows, _Untouched)
            else "read its rows by their ids"
        )
        raise PlanError(
            f"A table of {len(table):,} rows takes {table.nbytes / 2**30:,.0f} GiB, but this "
            f"machine has {memory / 2**30:,.0f}: {advice}."
        )


def _read(table: SparseTable, ids: Tensor) -> Tensor:
    return table.rows.read(_checked(table, ids)).to(table.device, non_blocking=True)


def _select(table: SparseTable, dim: int, ids: Tensor) -> Tensor:
    if dim != 0:
        raise _refused(table, "index_select over columns")
    return _read(table, ids)


def _get(table: SparseTable, index: list[Tensor]) -> Tensor:
    return _read(table, _only(table, index))


def _put(
    table: SparseTable, index: list[Tensor], values: Tensor, accumulate: bool = False
) -> SparseTable:
    ids = _checked(table, _only(table, index))
    if accumulate:
        _writable(table).add(ids, values.cpu())
    else:
        _writable(table).write(ids, values.to("cpu", table.dtype))
    return table


def _add(
    table: SparseTable, dim: int, ids: Tensor, values: Tensor, alpha: float = 1
) -> SparseTable:
    if dim != 0:
        raise _refused(table, "index_add_ over columns")
    values = values.cpu()
    _writable(table).add(_checked(table, ids), values if alpha == 1 else values * alpha)
    return table


def _zeros_like(table: SparseTable, *, dtype: torch.dtype | None = None, **_: Any) -> SparseTable:
    return _beside(table, 0.0, tuple(table.shape[1:]), dtype)


def _full_like(
    table: SparseTable, value: float, *, dtype: torch.dtype | None = None, **_: Any
) -> SparseTable:
    return _beside(table, value, tuple(table.shape[1:]), dtype)


def _new_zeros(
    table: SparseTable, size: list[int], *, dtype: torch.dtype | None = None, **_: Any
) -> Tensor:
    """A table beside this one if it has as many rows, and a plain tensor if not."""
    if size and size[0] == len(table):
        return _beside(table, 0.0, tuple(size[1:]), dtype)
    return torch.zeros(size, dtype=dtype or table.dtype, device=table.device)


_SERVED: dict[Any, Callable[..., Any]] = {
    aten.index_select.default: _select,
    aten.index.Tensor: _get,
    aten.index_put_.default: _put,
    aten.index_add_.default: _add,
    aten.zeros_like.default: _zeros_like,
    aten.full_like.default: _full_like,
    aten.new_zeros.default: _new_zeros,
    aten.detach.default: lambda table: table,
}


def _beside(
    table: SparseTable, value: float, tail: tuple[int, ...], dtype: torch.dtype | None
) -> SparseTable:
    """A table of as many rows, kept where this one's are, that starts from a constant."""
    dtype = dtype or table.dtype
    start = ConstantRows(value, tail, dtype)
    rows = MappedRows(_writable(table).table, start, tail, dtype)
    return SparseTable.of(rows, table.device)


def _writable(table: SparseTable) -> MappedRows:
    if not isinstance(table.rows, MappedRows):
        raise PlanError("These rows are for reading: change those of the run itself.")
    return table.rows


def _only(table: SparseTable, index: list[Tensor]) -> Tensor:
    if len(index) != 1 or index[0].dtype != torch.int64 or index[0].dim() != 1:
        raise _refused(table, "an index other than one list of ids")
    return index[0]


def _checked(table: SparseTable, ids: Tensor) -> Tensor:
    """The ids on the CPU, all of them rows of the table."""
    ids = ids.cpu()
    if len(ids):
        low, high = torch.aminmax(ids)
        if int(low) < 0 or int(high) >= len(table):
            wrong = int(low) if int(low) < 0 else int(high)
            raise IndexError(f"There is no row {wrong} in a table of {len(table):,} rows.")
    return ids


def _refused(table: SparseTable, what: str) -> PlanError:
    return PlanError(
        f"{what} would go through all {len(table):,} rows of a table that keeps the touched ones "
        "only: ask for rows by their ids, or keep the tables in memory."
    )


def gathered(
    params: Params,
    columns: Mapping[str, Tensor],
    tables: Mapping[str, str],
    padded: Collection[str],
) -> tuple[Params, dict[str, Tensor]]:
    """A model for some examples: the rows that they read, and slots in place of their ids.

    Any model then scores them as it scores anything: it is given tables of few rows, and ids that
    fit. Row 0 of a padded table stays row 0, so a mask such as `history != 0` means the same as
    ever. Tables in memory do not change. tables: which table a column reads; columns that read
    none, such as numbers, stay as they are.
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
