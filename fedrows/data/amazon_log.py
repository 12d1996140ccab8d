"""Amazon Electronics (McAuley et al. 2015): whether a review gives five stars, a client per user.

An example is a user, an item, and the items that the user gave five stars before, for users with at
least 40 reviews; what was written after second 1,385,000,000 (21 November 2013) is held out. Three
forms of the data are read:

    reviews   reviews_Electronics_5.json.gz: a JSON object a line, with reviewerID, asin, overall
              and unixReviewTime; users and items with at least 5 reviews each (5-core)
    ratings   ratings_Electronics.csv: user,item,rating,timestamp, of everybody; the 5-core is taken
              here, by dropping users and items with fewer than 5 until all have so many
    authors   authors_train.tsv.gz: label, user, item, history between tabs, the history's items
              between commas, 0 for none: the training rows of the paper's authors, a user's in the
              order of time. Of each client the last fifth is held out. Histories are as they stand,
              even the few that are longer than the positives before them.

Reviews of one second (Amazon's are dated by the day) keep the order of the file. A history is cut
to its last 100 items. Row 0 of the item table is padding: S(i) and the heat are without it. In
authors' files ids are the file's own, elsewhere numbers in the order of the names.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation
from fedrows.errors import DataError
from fedrows.files.fetch import Source
from fedrows.files.text_files import TextFile, find, shown
from fedrows.options import check, option
from fedrows.rows.ragged import Ragged, histories

REVIEWS, RATINGS = "reviews_Electronics_5.json", "ratings_Electronics.csv"
FORMS = {
    "reviews": (f"{REVIEWS}.gz", REVIEWS),
    "ratings": (RATINGS, f"{RATINGS}.gz"),
    "authors": ("authors_train.tsv.gz", "authors_train.tsv"),
}
LIKED = 5  # stars

_ID = rb"[!-+\--~]{1,32}+"  # any signs but a comma
_RATINGS = re.compile(rb"(?:%b,%b,[1-5](?:\.0)?,[0-9]{1,18}+\n)*+" % (_ID, _ID))
_AUTHORS = re.compile(
    rb"(?:[01]\t[0-9]{1,9}+\t[1-9][0-9]{0,8}+\t(?:0|[1-9][0-9]{0,8}+(?:,[1-9][0-9]{0,8}+)*+)\n)*+"
)


@dataclass(frozen=True)
class AmazonOptions:
    """Which clients are kept, how far histories reach, and what is held out."""

    form: str = option(
        "auto",
        "Which file to read: reviews, ratings, the authors' rows, or the first that is there.",
        choices=("auto", *FORMS),
    )
    history: int = option(100, "Longest history: the last N items; 0 for none.", least=0)
    fewest_samples: int = option(
        40, "Fewest reviews of a client; the authors' rows are taken as they are.", least=1
    )
    core: int = option(
        5,
        "In a ratings file, leave out users and items with fewer ratings, until none is left.",
        least=1,
    )
    test_after: int = option(
        1_385_000_000,
        "Reviews after this Unix time are held out; not in the authors' rows.",
        least=0,
    )
    test_share: float = option(
        0.2,
        "In the authors' rows, the share that is held out: the last ones of each client.",
        least=0,
        most=0.9,
    )
    validation: float = option(
        0.0,
        "Share of the training examples held out for validation: the latest.",
        least=0,
        most=0.9,
    )
    skip_bad: bool = option(False, "Leave out lines that cannot be read, and say how many.")

    def __post_init__(self) -> None:
        check(self)


def load(options: AmazonOptions) -> FederatedData:
    """The examples of the clients, from the file in the data folder."""
    form, file = find(SOURCE, FORMS, options.form)
    return read(file, form, options)


def read(file: Path, form: str, options: AmazonOptions) -> FederatedData:
    """The examples of the clients, from a file anywhere that has one of the forms."""
    text = TextFile(file, skip_bad=options.skip_bad)
    if form == "authors":
        return _from_authors(text, options)
    log = _reviews(text) if form == "reviews" else _core(_ratings(text), options.core)
    return _from_log(log, text, options)


@dataclass(frozen=True)
class RatingLog:
    """Who rated what, when, and whether with five stars, in the file's order."""

    user: np.ndarray  # (n,), places in `users`
    item: np.ndarray  # (n,), places in `items`
    liked: np.ndarray  # (n,) bool
    time: np.ndarray  # (n,), in seconds
    users: np.ndarray  # names
    items: np.ndarray

    def keep(self, chosen: np.ndarray) -> RatingLog:
        """Some of the ratings."""
        return replace(
            self,
            user=self.user[chosen],
            item=self.item[chosen],
            liked=self.liked[chosen],
            time=self.time[chosen],
        )


def _from_log(log: RatingLog, text: TextFile, options: AmazonOptions) -> FederatedData:
    busy = np.bincount(log.user, minlength=len(log.users)) >= options.fewest_samples
    log = log.keep(busy[log.user])
    if not len(log.user):
        raise DataError(
            f"No user in {text.file} has {options.fewest_samples} reviews: "
            "choose a lower fewest-samples."
        )
    order = np.lexsort((log.time, log.user))  # stable: equal times stay in the file's order
    log = log.keep(order)
    names, client = np.unique(log.users[log.user], return_inverse=True)
    items, item = np.unique(log.items[log.item], return_inverse=True)
    item = item + 1
    before = np.concatenate([[0], np.cumsum(log.liked)])[:-1]  # positives before, of all users
    own = before - before[np.searchsorted(log.user, log.user)]  # of the same user
    history = histories(item[log.liked], before, own, options.history)
    test = log.time > options.test_after
    held = Split.latest(options.validation, "time")
    validation = mark_validation(held, test, client, log.time, 0)
    return _build(
        {"user": client, "item": item, "history": history},
        name="amazon",
        client=names[client],
        label=log.liked,
        test=test,
        validation=validation,
        tables={"user": len(names), "item": len(items) + 1},
        vocabulary={"user": names, "item": items},
        notes=(*text.notes, *_facts(client, item, history, test, ~(test | validation))),
    )


def _from_authors(text: TextFile, options: AmazonOptions) -> FederatedData:
    numbers, sizes = _numbers(text)
    ends = np.cumsum(sizes)
    at = ends - sizes
    label, user, item = numbers[at], numbers[at + 1], numbers[at + 2]
    size = np.where(numbers[at + 3] == 0, 0, sizes - 3)
    history = histories(numbers, ends, size, options.history)
    _, owner = np.unique(user, return_inverse=True)
    rows = int(max(item.max(), history.values.max() if len(history.values) else 0)) + 1
    test = Split.last(options.test_share).mark(owner, None, 0)
    held = Split.last(float(options.validation))
    validation = mark_validation(held, test, owner, None, 0)
    share = (
        f"The authors' training rows, of each client the last {options.test_share:.0%} held out."
    )
    return _build(
        {"user": user, "item": item, "history": history},
        name="amazon",
        client=user,
        label=label,
        test=test,
        validation=validation,
        tables={"user": int(user.max()) + 1, "item": rows},
        notes=(*text.notes, share, *_facts(user, item, history, test, ~(test | validation))),
    )


def _build(ids: Mapping[str, np.ndarray | Ragged], **columns: Any) -> FederatedData:
    """Examples about an item, with the fields user, item and history; histories are of items."""
    fields = {"user": "user", "item": "item", "history": "item"}
    return FederatedData.build(ids=ids, fields=fields, target=("item", None), **columns)


def _facts(
    user: np.ndarray, item: np.ndarray, history: Ragged, test: np.ndarray, train: np.ndarray
) -> list[str]:
    """What the paper says of the data and what a test set must own up to."""
    readers = np.concatenate([user, np.repeat(user, history.sizes.numpy())])
    alone = dispersion(user, item)
    both = dispersion(readers, np.concatenate([item, history.values.numpy()]))
    facts = [f"Heat dispersion over items in all data: {alone:g}; with histories {both:g}."]
    if test.any():
        new = ~np.isin(item[test], item[train])
        facts.append(
            f"{int(new.sum()):,} of {len(new):,} test examples ({new.mean():.0%}) are about an "
            "item that no training example is about."
        )
    return facts


def dispersion(client: np.ndarray, item: np.ndarray) -> float:
    """max n_m / min n_m over items, n_m being the number of clients that have the item."""
    rows = int(item.max()) + 1
    pairs = np.sort(client * rows + item)
    pairs = pairs[np.diff(pairs, prepend=-1) > 0]  # np.unique's way of hashing takes far longer
    _, counts = np.unique(pairs % rows, return_counts=True)
    return float(counts.max() / counts.min())


def _reviews(text: TextFile) -> RatingLog:
    """A file of JSON objects."""
    users, items = _numbering(), _numbering()
    user, item, liked, time = [], [], [], []
    for number, line in text.lines():
        try:
            review = json.loads(line)
        except json.JSONDecodeError as error:
            text.bad(number, f"{shown(line)} is no whole JSON object ({_why(error)})")
            continue
        if what := _wrong_review(review):
            text.bad(number, what)
            continue
        user.append(users[review["reviewerID"]])
        item.append(items[review["asin"]])
        liked.append(review["overall"] == LIKED)
        time.append(review["unixReviewTime"])
    return RatingLog(
        np.array(user, dtype=np.int64),
        np.array(item, dtype=np.int64),
        np.array(liked, dtype=bool),
        np.array(time, dtype=np.int64),
        np.array(list(users)),
        np.array(list(items)),
    )


def _why(error: json.JSONDecodeError) -> str:
    return f"{error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"


def _wrong_review(review: Any) -> str | None:
    """Why a JSON value cannot be a review."""
    if not isinstance(review, dict):
        return f"{shown(json.dumps(review))} is no object"
    for name in ("reviewerID", "asin", "overall", "unixReviewTime"):
        if name not in review:
            return f"the object has no {name}"
    for name in ("reviewerID", "asin"):
        if not isinstance(review[name], str) or not review[name]:
            return f"{name} {review[name]!r} is no text"
    stars, time = review["overall"], review["unixReviewTime"]
    if isinstance(stars, bool) or stars not in (1, 2, 3, 4, 5):
        return f"overall {stars!r} is not from 1 to 5"
    if isinstance(time, bool) or not isinstance(time, int) or abs(time) >= 2**62:
        return f"unixReviewTime {time!r} is not a whole number of seconds"
    return None


def _ratings(text: TextFile) -> RatingLog:
    """A file of ratings between commas."""
    users, items = _numbering(), _numbering()
    columns: list[list[np.ndarray]] = []
    for block in text.matching(_RATINGS, _wrong_rating):
        parts = block.replace(b"\n", b",").split(b",")[:-1]
        columns.append(
            [
                np.array([users[name] for name in parts[0::4]], dtype=np.int64),
                np.array([items[name] for name in parts[1::4]], dtype=np.int64),
                np.array([stars[0] == ord(str(LIKED)) for stars in parts[2::4]], dtype=bool),
                np.array(parts[3::4], dtype="S18").astype(np.int64),
            ]
        )
    user, item, liked, time = (np.concatenate(pieces) for pieces in zip(*columns, strict=True))
    names = (
        np.array([name.decode() for name in numbered], dtype=str) for numbered in (users, items)
    )
    return RatingLog(user, item, liked, time, *names)


def _wrong_rating(line: str) -> str:
    """Why a line cannot be a rating."""
    parts = line.split(",")
    if len(parts) != 4:
        return f"{shown(line)} has {len(parts)} fields, not 4"
    for name, value in zip(("user", "item"), parts, strict=False):
        if not re.fullmatch("[!-~]{1,32}", value):
            return f"{name} {shown(value)} is no id of 1 to 32 letters and digits"
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?", parts[2]):
        return f"rating {shown(parts[2])} is not a number"
    if not re.fullmatch(r"[1-5](\.0)?", parts[2]):
        return f"rating {parts[2]} is not from 1 to 5"
    return f"timestamp {shown(parts[3])} is not a whole number of seconds"


def _core(log: RatingLog, least: int) -> RatingLog:
    """What is left when users and items with too few ratings are dropped until none is left."""
    while True:
        few = (np.bincount(log.user)[log.user] < least) | (np.bincount(log.item)[log.item] < least)
        if not few.any():
            return log
        log = log.keep(~few)


def _numbers(text: TextFile) -> tuple[np.ndarray, np.ndarray]:
    """All numbers of the authors' rows, one after another, and how many each row has."""
    numbers, sizes = [], []
    for block in text.matching(_AUTHORS, _wrong_row):
        signs = np.frombuffer(block, dtype=np.uint8)
        ends = np.flatnonzero(signs == ord("\n"))
        commas = np.searchsorted(np.flatnonzero(signs == ord(",")), ends)
        sizes.append(4 + np.diff(commas, prepend=0))
        plain = block.translate(bytes.maketrans(b"\t,\n", b"   "))
        numbers.append(np.fromstring(plain, dtype=np.int64, sep=" "))
    if not sum(map(len, sizes)):
        raise DataError(f"There is not a single row in {text.file} that can be read.")
    return np.concatenate(numbers), np.concatenate(sizes)


def _wrong_row(line: str) -> str:
    """Why a line cannot be one of the authors' rows."""
    parts = line.split("\t")
    if len(parts) != 4:
        return f"{shown(line)} has {len(parts)} fields, not 4"
    label, user, item, history = parts
    if label not in ("0", "1"):
        return f"label {shown(label)} is not 0 or 1"
    if not re.fullmatch("[0-9]{1,9}", user):
        return f"user {shown(user)} is not a whole number"
    if not re.fullmatch("[1-9][0-9]{0,8}", item):
        return f"item {shown(item)} is not a whole number above 0"
    return f"history {shown(history)} is not 0 or item numbers between commas"


def _numbering() -> defaultdict[Any, int]:
    """Names → 0, 1, 2 … in the order in which they are first asked for."""
    numbers: defaultdict[Any, int] = defaultdict()
    numbers.default_factory = numbers.__len__
    return numbers


SOURCE = Source(
    name="amazon",
    url="https://snap.stanford.edu/data/amazon/productGraph/categoryFiles/"
    "reviews_Electronics_5.json.gz",
    file=f"{REVIEWS}.gz",
    folder="amazon",
    licence="None stated: published for research by McAuley et al. (2015), to be cited.",
    size=495_854_086,
)
