"""MovieLens-1M (Harper and Konstan 2015): who likes which movie, one client per user.

The paper's task: logistic regression on one-hot gender, age, movie, gender×movie and age×movie,
all rows of one table; the label is a rating of 4 or 5; a random fifth is held out. Movies are those
that somebody rated.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation, split_at_random
from fedrows.files.fetch import require
from fedrows.files.movielens_file import (
    AGES,
    GENDERS,
    RATINGS,
    SOURCE,
    USERS,
    bad_line,
    read_ratings,
    read_users,
)
from fedrows.options import check, option
from fedrows.task import Task

LIKED = 4  # stars


@dataclass(frozen=True)
class MovieLensOptions:
    """How the examples are split."""

    test_share: float = option(0.2, "Share of the ratings held out at random.", least=0, most=0.9)
    validation: float = option(
        0.0, "Share of the training examples held out for validation, at random.", least=0, most=0.9
    )
    split_seed: int = option(0, "The same seed gives the same split.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)


def load(options: MovieLensOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE), options)


def read(file: Path, options: MovieLensOptions) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    users, ratings = read_users(file), read_ratings(file)
    client, movie_id, stars = ratings.user, ratings.movie, ratings.stars
    names = np.array(sorted(users))
    position = np.searchsorted(names, client).clip(max=len(names) - 1)
    if (unknown := names[position] != client).any():
        at = int(np.argmax(unknown))
        raise bad_line(file, RATINGS, at + 1, f"user {client[at]} is not in {USERS}")
    gender, age = np.array([users[name] for name in names.tolist()]).T[:, position]

    movies, movie = np.unique(movie_id, return_inverse=True)
    columns = {  # group of rows → how many, and which of them each example reads
        "gender": (len(GENDERS), gender),
        "age": (len(AGES), age),
        "movie": (len(movies), movie),
        "gender×movie": (len(GENDERS) * len(movies), gender * len(movies) + movie),
        "age×movie": (len(AGES) * len(movies), age * len(movies) + movie),
    }
    edges = np.cumsum([0, *(rows for rows, _ in columns.values())]).tolist()
    features = np.stack([id_ for _, id_ in columns.values()], axis=1) + edges[:-1]  # (n, 5)
    test = split_at_random(len(client), options.test_share, options.split_seed)
    held = Split.random(options.validation)
    return FederatedData.build(
        name="movielens",
        client=client,
        ids={"features": features},
        label=stars >= LIKED,
        test=test,
        validation=mark_validation(held, test, client, None, options.split_seed),
        tables={"weight": edges[-1]},
        fields={"features": "weight"},
        target=("features", list(columns).index("movie")),
        groups={"weight": dict(zip(columns, pairwise(edges), strict=True))},
    )


TASK = Task(
    name="movielens",
    summary="MovieLens-1M: whether a user rates a movie 4 or 5, as in the paper.",
    options=MovieLensOptions,
    load=load,
    model="logistic",
    plan={
        "clients_per_round": 50,
        "local_steps": 10,
        "batch_size": 5,
        "lr": 0.1,
        "weighting": "examples",
        "threads": 1,  # the steps of logistic regression are too small to share
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        # Table 5 gives no τ. Of .001 and .01, FedAdam is far better with the second here.
        "fedadam": {"lr": 0.1, "server_lr": 1.0, "beta1": 0.9, "beta2": 0.99, "tau": 0.01},
    },
    source=SOURCE,
)
