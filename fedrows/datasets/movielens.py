"""MovieLens-1M (Harper and Konstan 2015): who likes which movie, one client per user.

The paper's task: logistic regression on one-hot gender, age, movie, gender×movie and age×movie,
all rows of one table; the label is a rating of 4 or 5; a random fifth is held out. Movies are those
that somebody rated. Reads the official ml-1m.zip as it is published:

    ml-1m/users.dat     UserID::Gender::Age::Occupation::Zip-code
    ml-1m/ratings.dat   UserID::MovieID::Rating::Timestamp
"""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.splits import split_at_random
from fedrows.errors import DataError
from fedrows.files.fetch import Source, require
from fedrows.options import check, option
from fedrows.task import Task

USERS, RATINGS = "ml-1m/users.dat", "ml-1m/ratings.dat"
GENDERS = {"F": 0, "M": 1}
AGES = {"1": 0, "18": 1, "25": 2, "35": 3, "45": 4, "50": 5, "56": 6}  # the youngest of a range
LIKED = 4  # stars

# As many whole, right lines as there are; possessive (+), so that a million of them go by fast.
_RATINGS = re.compile(rb"(?:[0-9]{1,9}+::[0-9]{1,9}+::[1-5]::[0-9]{1,18}+\n)*+")


@dataclass(frozen=True)
class MovieLensOptions:
    """How the examples are split."""

    test_share: float = option(0.2, "Share of the ratings held out at random.", least=0, most=0.9)
    split_seed: int = option(0, "The same seed gives the same split.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)


def load(options: MovieLensOptions) -> FederatedData:
    """The examples of all users, from the file in the data folder."""
    return read(require(SOURCE), options)


def read(file: Path, options: MovieLensOptions) -> FederatedData:
    """The examples of all users, from an ml-1m.zip anywhere."""
    users = _users(file, _member(file, USERS))
    client, movie_id, stars = _ratings(file, _member(file, RATINGS))
    names = np.array(sorted(users))
    position = np.searchsorted(names, client).clip(max=len(names) - 1)
    if (unknown := names[position] != client).any():
        at = int(np.argmax(unknown))
        raise _bad_line(file, RATINGS, at + 1, f"user {client[at]} is not in {USERS}")
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
    return FederatedData.build(
        name="movielens",
        client=client,
        ids={"features": features},
        label=stars >= LIKED,
        test=split_at_random(len(client), options.test_share, options.split_seed),
        tables={"weight": edges[-1]},
        fields={"features": "weight"},
        target=("features", list(columns).index("movie")),
        groups={"weight": dict(zip(columns, pairwise(edges), strict=True))},
    )


def _member(file: Path, member: str) -> bytes:
    """What one member of the zip holds, lines ending in \\n."""
    try:
        with zipfile.ZipFile(file) as archive:
            text = archive.read(member)
    except FileNotFoundError:
        raise DataError(f"There is no file {file}.") from None
    except KeyError:
        raise DataError(f"{file} has no member {member}: it is not the official file.") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        raise DataError(
            f"{member} cannot be read from {file} ({str(error).rstrip('.')}): "
            f"if the file is damaged, run `fedrows data fetch {SOURCE.name} --force`."
        ) from error
    text = text.replace(b"\r\n", b"\n")
    if not text.strip():
        raise DataError(f"{member} in {file} is empty.")
    return text if text.endswith(b"\n") else text + b"\n"


def _users(file: Path, text: bytes) -> dict[int, tuple[int, int]]:
    """User id → (gender, age), both as numbers from 0."""
    users = {}
    for number, line in enumerate(text.decode("latin-1").removesuffix("\n").split("\n"), 1):
        parts = line.split("::")
        if len(parts) != 5:
            raise _bad_line(file, USERS, number, f"{line!r} has {len(parts)} fields, not 5")
        user, gender, age, *_ = parts
        if not re.fullmatch("[0-9]{1,9}", user):
            raise _bad_line(file, USERS, number, f"user {user!r} is not a whole number")
        if gender not in GENDERS:
            raise _bad_line(file, USERS, number, f"gender {gender!r} is not F or M")
        if age not in AGES:
            raise _bad_line(file, USERS, number, f"age {age!r} is not one of {', '.join(AGES)}")
        users[int(user)] = GENDERS[gender], AGES[age]
    return users


def _ratings(file: Path, text: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The columns user id, movie id and stars, each (n,), in the file's order."""
    right = _RATINGS.match(text)
    assert right is not None  # it matches no line at all, if need be
    if right.end() < len(text):
        number = text.count(b"\n", 0, right.end()) + 1
        line = text[right.end() : text.index(b"\n", right.end())].decode("latin-1")
        raise _bad_line(file, RATINGS, number, _what_is_wrong(line))
    table = np.fromstring(text.replace(b"::", b" "), dtype=np.int64, sep=" ").reshape(-1, 4)
    user, movie, stars, _ = table.T
    return user, movie, stars


def _what_is_wrong(line: str) -> str:
    """Why a line cannot be a rating."""
    parts = line.split("::")
    if len(parts) != 4:
        return f"{line!r} has {len(parts)} fields, not 4"
    for name, value in zip(("user", "movie", "rating", "timestamp"), parts, strict=True):
        if not re.fullmatch("[0-9]{1,18}", value):
            return f"{name} {value!r} is not a whole number"
    if parts[2] not in ("1", "2", "3", "4", "5"):
        return f"rating {parts[2]!r} is not from 1 to 5"
    return f"{line!r} has too large a number"


def _bad_line(file: Path, member: str, number: int, what: str) -> DataError:
    return DataError(f"Line {number} of {member} in {file} cannot be right: {what}.")


SOURCE = Source(
    name="movielens",
    url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    file="ml-1m.zip",
    folder="movielens-1m",
    licence="Research use only: acknowledge GroupLens, do not redistribute, and ask before any "
    "commercial use.",
    size=5_917_549,
    checksum="c4d9eecfca2ab87c1945afe126590906",
    kind="md5",
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
        "fedadam": {"lr": 0.1, "server_lr": 1.0, "beta1": 0.9, "beta2": 0.99},
    },
    source=SOURCE,
)
