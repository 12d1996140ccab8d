"""MovieLens-1M as implicit feedback: which movie does a user rate next? One client per user.

Every rating is a positive, whatever its stars. Nobody says which movies are negatives: clients draw
those themselves, afresh in every round. The last rating of each user is the test, the one before it
validation, and all others are for training. Of ratings in the same second the later line of the
file is the later one.

An example has the user's earlier movies in place of the user: no row belongs to one client alone,
and a model trained on some users serves any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrows.data.federation import FederatedData
from fedrows.data.leave_one_out import leave_one_out
from fedrows.files.fetch import require
from fedrows.files.movielens_file import SOURCE, read_ratings
from fedrows.options import check, option
from fedrows.task import Task


@dataclass(frozen=True)
class MovieLensRankOptions:
    """What an example has beside the movie."""

    history: int = option(
        20, "How many of the user's earlier movies an example has, the last.", least=1, most=1_000
    )

    def __post_init__(self) -> None:
        check(self)


def load(options: MovieLensRankOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE), options)


def read(file: Path, options: MovieLensRankOptions) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    ratings = read_ratings(file)
    columns = (ratings.user, ratings.movie, ratings.time)
    return leave_one_out(*columns, history=options.history, name="movielens-rank")


TASK = Task(
    name="movielens-rank",
    summary="MovieLens-1M: which movie a user rates next, by self-attention over earlier ones.",
    options=MovieLensRankOptions,
    load=load,
    model="sasrec",
    plan={
        "rounds": 600,
        "clients_per_round": 200,
        "local_steps": 10,
        "batch_size": 16,
        "optimizer": "adam",
        "lr": 0.008,
        "weighting": "uniform",
        "negatives": 4,
        "negatives_pool": 100,
        "evaluate_every": 50,
    },
    algorithms={
        "fedavg": {"lr": 0.032},
        "fedsubavg": {"cap": "cohort"},
        "fedadam": {"server_lr": 0.01, "tau": 0.0001},
    },
    source=SOURCE,
)
