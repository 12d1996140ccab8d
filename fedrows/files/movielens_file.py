"""The official ml-1m.zip of MovieLens-1M (Harper and Konstan 2015), as it is published.

ml-1m/users.dat     UserID::Gender::Age::Occupation::Zip-code
ml-1m/ratings.dat   UserID::MovieID::Rating::Timestamp
ml-1m/movies.dat    MovieID::Title::Genres
"""

from __future__ import annotations

import re
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrows.errors import DataError
from fedrows.files.fetch import Source

USERS, RATINGS, MOVIES = "ml-1m/users.dat", "ml-1m/ratings.dat", "ml-1m/movies.dat"
GENDERS = {"F": 0, "M": 1}
AGES = {"1": 0, "18": 1, "25": 2, "35": 3, "45": 4, "50": 5, "56": 6}  # the youngest of a range

# As many whole, right lines as there are; possessive (+), so that a million of them go by fast.
_RATINGS = re.compile(rb"(?:[0-9]{1,9}+::[0-9]{1,9}+::[1-5]::[0-9]{1,18}+\n)*+")


@dataclass(frozen=True, eq=False)
class Ratings:
    """The columns of ratings.dat, each (n,), in the file's order."""

    user: np.ndarray
    movie: np.ndarray
    stars: np.ndarray
    time: np.ndarray  # seconds


def read_users(file: Path) -> dict[int, tuple[int, int]]:
    """User id → (gender, age), both as numbers from 0."""
    users = {}
    for number, line in enumerate(_lines(file, USERS), 1):
        parts = line.split("::")
        if len(parts) != 5:
            raise bad_line(file, USERS, number, f"{line!r} has {len(parts)} fields, not 5")
        user, gender, age, *_ = parts
        if not re.fullmatch("[0-9]{1,9}", user):
            raise bad_line(file, USERS, number, f"user {user!r} is not a whole number")
        if gender not in GENDERS:
            raise bad_line(file, USERS, number, f"gender {gender!r} is not F or M")
        if age not in AGES:
            raise bad_line(file, USERS, number, f"age {age!r} is not one of {', '.join(AGES)}")
        users[int(user)] = GENDERS[gender], AGES[age]
    return users


def read_ratings(file: Path) -> Ratings:
    """All ratings."""
    text = _member(file, RATINGS)
    right = _RATINGS.match(text)
    assert right is not None  # it matches no line at all, if need be
    if right.end() < len(text):
        number = text.count(b"\n", 0, right.end()) + 1
        line = text[right.end() : text.index(b"\n", right.end())].decode("latin-1")
        raise bad_line(file, RATINGS, number, _what_is_wrong(line))
    table = np.fromstring(text.replace(b"::", b" "), dtype=np.int64, sep=" ").reshape(-1, 4)
    return Ratings(*table.T)


def read_titles(file: Path) -> dict[int, str]:
    """Movie id → title, such as `Fargo (1996)`."""
    titles = {}
    for number, line in enumerate(_lines(file, MOVIES), 1):
        movie, *title = line.split("::")
        if len(title) != 2 or not re.fullmatch("[0-9]{1,9}", movie):
            raise bad_line(file, MOVIES, number, f"{line!r} is not a movie, its title and genres")
        titles[int(movie)] = title[0]
    return titles


def _lines(file: Path, member: str) -> list[str]:
    return _member(file, member).decode("latin-1").removesuffix("\n").split("\n")


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


def bad_line(file: Path, member: str, number: int, what: str) -> DataError:
    """The error of a line that cannot be right."""
    return DataError(f"Line {number} of {member} in {file} cannot be right: {what}.")


SOURCE = Source(
    name="movielens",
    url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
    file="ml-1m.zip",
    folder="movielens-1m",
    licence="Research use only: acknowledge GroupLens, do not redistribute, and ask before any "
    "commercial use.",
    size=5_917_549,
    # GroupLens publishes an MD5. This is the SHA-256 of the archive that has it.
    checksum="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
)
