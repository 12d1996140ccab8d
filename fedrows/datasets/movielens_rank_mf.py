"""The task movielens-rank for matrix factorisation: an example has the user in place of a history.

The same positives, split and negatives. A user's row is local. The learning rates are those of this
model, which is why it is a task of its own.
"""

from __future__ import annotations

from pathlib import Path

from fedrows.data.federation import FederatedData
from fedrows.data.leave_one_out import leave_one_out
from fedrows.files.fetch import require
from fedrows.files.movielens_file import SOURCE, read_ratings
from fedrows.options import NoOptions
from fedrows.task import Task


def load(options: NoOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE))


def read(file: Path) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    ratings = read_ratings(file)
    return leave_one_out(ratings.user, ratings.movie, ratings.time, name="movielens-rank-mf")


TASK = Task(
    name="movielens-rank-mf",
    summary="MovieLens-1M: which movie a user rates next, by matrix factorisation.",
    options=NoOptions,
    load=load,
    model="mf",
    plan={
        "rounds": 600,
        "clients_per_round": 500,
        "local_steps": 20,
        "batch_size": 32,
        "lr": 4.0,
        "weighting": "uniform",
        "negatives": 4,
        "negatives_pool": 100,
        "evaluate_every": 50,
    },
    algorithms={"fedavg": {"lr": 16.0}, "fedsubavg": {"cap": "cohort"}},
    source=SOURCE,
)
