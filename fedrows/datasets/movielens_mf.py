"""MovieLens-1M as a recommender: the paper's examples, with a row for every user and every movie.

The label, a rating of 4 or 5, and the test examples are those of the task `movielens`. An example
is a user and a movie. The table of users is local: a user's bias and factors stay on its client. A
tenth of the other examples is kept for validation.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation, split_at_random
from fedrows.files.fetch import require
from fedrows.files.movielens_file import SOURCE, read_ratings
from fedrows.options import check, option
from fedrows.task import Task

LIKED = 4  # stars


@dataclass(frozen=True)
class MovieLensMFOptions:
    """How the examples are split."""

    test_share: float = option(0.2, "Share of the ratings held out at random.", least=0, most=0.9)
    validation: float = option(
        0.1, "Share of the other ratings that is kept for validation, at random.", least=0, most=0.9
    )
    split_seed: int = option(0, "The same seed gives the same split.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)


def load(options: MovieLensMFOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE), options)


def read(file: Path, options: MovieLensMFOptions) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    ratings = read_ratings(file)
    users, user = np.unique(ratings.user, return_inverse=True)
    movies, movie = np.unique(ratings.movie, return_inverse=True)
    test = split_at_random(len(user), options.test_share, options.split_seed)
    held = Split.random(options.validation)
    return FederatedData.build(
        name="movielens-mf",
        client=ratings.user,
        ids={"user": user, "item": movie},
        label=ratings.stars >= LIKED,
        test=test,
        validation=mark_validation(held, test, user, None, options.split_seed),
        tables={"user": len(users), "item": len(movies)},
        local=["user"],
        target=("item", None),
        vocabulary={"user": users, "item": movies},
    )


TASK = Task(
    name="movielens-mf",
    summary="MovieLens-1M: whether a user rates a movie 4 or 5, with a row per user and per movie.",
    options=MovieLensMFOptions,
    load=load,
    model="mf",
    plan={
        "rounds": 400,
        "clients_per_round": 500,
        "local_steps": 20,
        "batch_size": 32,
        "lr": 8.0,  # of a batch of 32, an item has one example: its gradient is small
        "lr_schedule": "cosine",
        "weighting": "examples",
        "evaluate_every": 50,
        "start": "counted",
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        "fedavg": {"lr": 16.0},
        "fedsubavg": {"cap": "cohort", "lr": 16.0},
        "fedadam": {"server_lr": 0.03, "lazy": True},
    },
    source=SOURCE,
)
