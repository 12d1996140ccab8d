"""MovieLens-1M as implicit feedback: which movie does a user rate next? One client per user.

Every rating is a positive, whatever its stars. Nobody says which movies are negatives: clients draw
those themselves, afresh in every round. The last rating of each user is the test, the one before it
validation, and all others are for training. Of ratings in the same second the later line of the
file is the later one.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrows.data.federation import FederatedData
from fedrows.data.leave_one_out import leave_one_out
from fedrows.files.fetch import require
from fedrows.files.movielens_file import SOURCE, read_ratings
from fedrows.options import check
from fedrows.task import Task


@dataclass(frozen=True)
class MovieLensRankOptions:
    """There is one split, and nothing to choose."""

    def __post_init__(self) -> None:
        check(self)


def load(options: MovieLensRankOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE))


def read(file: Path) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    ratings = read_ratings(file)
    return leave_one_out(ratings.user, ratings.movie, ratings.time, name="movielens-rank")


TASK = Task(
    name="movielens-rank",
    summary="MovieLens-1M: which movie a user rates next, ranked against the others.",
    options=MovieLensRankOptions,
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
    source=SOURCE,
)
