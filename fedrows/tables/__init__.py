"""Tables of rows: a tensor in memory, or files that hold only the rows that were touched."""

from fedrows.tables.initial_rows import (
    ConstantRows,
    GivenRows,
    InitialRows,
    NormalRows,
    RowsSideBySide,
    SameRow,
)
from fedrows.tables.sparse_table import SparseTable, everything, gathered, whole
from fedrows.tables.table_folder import SavePoint, TableFolder

__all__ = [
    "RowsSideBySide",
    "SameRow",
    "ConstantRows",
    "NormalRows",
    "GivenRows",
    "SavePoint",
    "TableFolder",
    "SparseTable",
    "InitialRows",
    "everything",
    "gathered",
    "whole",
]
