"""Where rows live: a tensor in memory, or files in which only the rows that were touched exist.

starts   what a row is before it is touched: a function of its id
column   numbers in a mapped file that grows
places   id → place: where a touched row is kept
undo     what rows were at the last checkpoint, written before they change
kept     one table's touched rows, and everything of its shape beside them
shelf    all tables of a run, in one folder: how they are saved and brought back
table    the face of it all: a tensor that answers to ids
gather   a model for some examples only: their rows, and slots for their ids
"""

from fedrows.tables.gather import gathered
from fedrows.tables.shelf import Mark, Shelf
from fedrows.tables.starts import Beside, Constant, Drawn, Given, Start
from fedrows.tables.table import SparseTable, everything, whole

__all__ = [
    "Beside",
    "Constant",
    "Drawn",
    "Given",
    "Mark",
    "Shelf",
    "SparseTable",
    "Start",
    "everything",
    "gathered",
    "whole",
]
