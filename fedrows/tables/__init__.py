"""Tables of rows: a tensor in memory, or files that hold only the rows that were touched.

initial_rows   what a row is before it is touched: a function of its id
row_file       numbers in a mapped file that grows
id_map         id → position of a touched row in the files
undo_log       what rows were at the last checkpoint, written before they change
touched_rows   one table's touched rows, and everything of its shape beside them
table_folder   all tables of a run, in one folder: how they are saved and restored
sparse_table   the tensor that stands for such a table, and answers to ids
gather         a model for some examples only: their rows, and slots for their ids
"""

from fedrows.tables.gather import gathered
from fedrows.tables.initial_rows import (
    ConstantRows,
    GivenRows,
    InitialRows,
    NormalRows,
    RowsSideBySide,
    SameRow,
)
from fedrows.tables.sparse_table import SparseTable, everything, whole
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
