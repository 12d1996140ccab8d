"""Taobao's UserBehavior (Alibaba, Tianchi data set 649): who buys what, one client per user.

A public stand-in for the paper's log of Alibaba, which is private: a positive example is a
purchase, and what it must be told from is drawn, for nobody recorded what was shown. Two forms:

    official   UserBehavior.csv: user,item,category,behavior,timestamp without a header; behavior is
               pv (a click), cart, fav or buy; 25 November to 3 December 2017, Beijing time. A
               twentieth of the million users is taken, as many as the paper has; the history is
               what the user did before, of any behavior, the last 100; the last day is held out.
               The behavior that makes a positive can be chosen. Lines of another time are left out.
    buy-cart   taobao_buy_cart.csv.gz: user,item,behavior,split with that header; behavior is buy or
               cart, split is train or test (one purchase of each user). There being no order, the
               history is all that the user put into the cart, at most 100.

Negatives, one for each positive, are drawn with replacement in proportion to the number of training
positives that an item has, so that in training an item's popularity alone says nothing of the label
(AUC 0.50). In the test set it does: the held-out purchases are of rarer items, partly because they
are missing from that number, and rarity alone has an AUC of 0.58 in the buy-cart file. Negatives
are a function of the seed. None is an item that its user has anywhere in the file, in training or
test. A purchase is often in the cart before, and no negative ever is: the history of a positive and
of its negatives is therefore without the positive's own item. Row 0 of the item table is padding.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.data.histories import build_with_histories, dispersion_with, histories, starts_of
from fedrows.errors import DataError
from fedrows.files.fetch import Source
from fedrows.files.text_files import TextFile, find, shown
from fedrows.options import check, option
from fedrows.rows.ragged import Ragged
from fedrows.seeds import MAKE, below, bits, key, uniform
from fedrows.task import Task

MEMBER = "UserBehavior.csv"
FORMS = {
    "official": (f"{MEMBER}.zip", MEMBER, f"{MEMBER}.gz"),
    "buy-cart": ("taobao_buy_cart.csv.gz", "taobao_buy_cart.csv"),
}
BEHAVIOURS = ("pv", "cart", "fav", "buy")
DAY = 86_400
START, END = 1_511_539_200, 1_512_316_800  # 25 November and 4 December 2017, 0:00 in Beijing
HEADER = b"user,item,behavior,split"
TRIES = 50  # before the items that a user does not have are listed

# What is drawn; each has a stream of its own.
_TRAIN, _TEST, _USERS = range(3)

_NUMBER = rb"[0-9]{1,9}+"
_OFFICIAL = re.compile(
    rb"(?:%b,%b,%b,(?:pv|cart|fav|buy),-?[0-9]{1,18}+\n)*+" % (_NUMBER, _NUMBER, _NUMBER)
)
_BUY_CART = re.compile(rb"(?:%b,%b,(?:buy,train|buy,test|cart,train)\n)*+" % (_NUMBER, _NUMBER))


@dataclass(frozen=True)
class TaobaoOptions:
    """Which users and behaviours count, how far histories reach, and what negatives are drawn."""

    form: str = option(
        "auto",
        "Which file to read: the official one, the buy-cart one, or the first that is there.",
        choices=("auto", *FORMS),
    )
    history: int = option(100, "Longest history: the last N items; 0 for none.", least=0)
    negatives: int = option(1, "Negatives for each positive of training.", least=1)
    test_negatives: int = option(1, "Negatives for each positive of the test set.", least=1)
    positive: str = option(
        "buy", "In the official file, the behaviour that makes a positive.", choices=BEHAVIOURS
    )
    user_share: float = option(
        0.05, "In the official file, the share of users taken, at random.", above=0, most=1
    )
    seed: int = option(
        0, "The same seed gives the same users and negatives.", least=0, most=2**63 - 1
    )
    skip_bad: bool = option(False, "Leave out lines that cannot be read, and say how many.")

    def __post_init__(self) -> None:
        check(self)


def load(options: TaobaoOptions) -> FederatedData:
    """The examples of all clients, from the file in the data folder."""
    form, file = find(SOURCE, FORMS, options.form)
    return read(file, form, options)


def read(file: Path, form: str, options: TaobaoOptions) -> FederatedData:
    """The examples of all clients, from a file anywhere that has one of the forms."""
    text = TextFile(file, member=MEMBER, skip_bad=options.skip_bad)
    if form == "official":
        return _with_negatives(*_official(text, options), options)
    return _with_negatives(*_buy_cart(text, options), options)


@dataclass(frozen=True)
class Positives:
    """What people bought, with their histories, and all that they have anything to do with."""

    user: np.ndarray  # (p,), places in `users`
    item: np.ndarray  # (p,), rows from 1
    test: np.ndarray  # (p,) bool
    history: Ragged  # p lists
    pairs: np.ndarray  # user · rows + item of everything in the file, sorted
    users: np.ndarray  # (N,), the file's numbers
    items: np.ndarray  # (rows − 1,), the file's numbers

    @property
    def rows(self) -> int:
        """Of the item table."""
        return len(self.items) + 1

    def have(self, user: np.ndarray, item: np.ndarray) -> np.ndarray:
        """Whether each user has the item already."""
        wanted = user * self.rows + item
        position = np.searchsorted(self.pairs, wanted).clip(max=len(self.pairs) - 1)
        return self.pairs[position] == wanted


def _with_negatives(
    positives: Positives, notes: tuple[str, ...], options: TaobaoOptions
) -> FederatedData:
    """The examples: each positive, and its negatives behind it."""
    count, test = len(positives.user), positives.test
    if not (~test).any():
        raise DataError("There is not a single training purchase: check the file or the options.")
    popularity = np.bincount(positives.item[~test], minlength=positives.rows)
    of, item = [np.arange(count)], [positives.item]  # whose example, about which item
    for stream, part, times in (
        (_TRAIN, np.flatnonzero(~test), options.negatives),
        (_TEST, np.flatnonzero(test), options.test_negatives),
    ):
        of.append(np.repeat(part, times))
        item.append(_draw(positives, positives.user[of[-1]], popularity, options.seed, stream))
    positive, items = np.concatenate(of), np.concatenate(item)
    order = np.argsort(positive, kind="stable")
    client, held = positives.user[positive], test[positive]
    history = positives.history.pick(torch.from_numpy(positive[order]))
    return build_with_histories(
        {"user": client[order], "item": items[order], "history": history},
        name="taobao",
        client=positives.users[client[order]],
        label=order < count,
        test=held[order],
        tables={"user": len(positives.users), "item": positives.rows},
        vocabulary={"user": positives.users, "item": positives.items},
        notes=(*notes, _dispersions(positives, client, items, held)),
    )


def _draw(
    positives: Positives, user: np.ndarray, popularity: np.ndarray, seed: int, stream: int
) -> np.ndarray:
    """For every user in the array an item that this user does not have, by popularity."""
    edges = np.cumsum(popularity)
    drawn = np.zeros(len(user), dtype=np.int64)
    left = np.arange(len(user))
    for attempt in range(TRIES):
        random = bits(key(seed, MAKE, stream, attempt), torch.from_numpy(left))
        position = below(random, int(edges[-1])).numpy()
        drawn[left] = np.searchsorted(edges, position, side="right")
        left = left[positives.have(user[left], drawn[left])]
        if not len(left):
            return drawn
    every = np.flatnonzero(popularity)
    for example in left.tolist():  # of users that have almost every popular item
        others = every[~positives.have(np.full(len(every), user[example]), every)]
        if not len(others):
            raise DataError(
                f"User {positives.users[user[example]]} has every item that is bought in "
                "training: no negative can be drawn for it."
            )
        edges = np.cumsum(popularity[others])
        random = bits(key(seed, MAKE, stream, TRIES), torch.tensor([example]))
        drawn[example] = others[
            np.searchsorted(edges, int(below(random, int(edges[-1]))), side="right")
        ]
    return drawn


def _dispersions(
    positives: Positives, client: np.ndarray, item: np.ndarray, held: np.ndarray
) -> str:
    """Heat dispersion over items, histories included, before and after negatives were added."""

    def with_histories(user: np.ndarray, item: np.ndarray, of: np.ndarray) -> float:
        history = positives.history.pick(torch.from_numpy(np.flatnonzero(of)))
        return dispersion_with(user, item, positives.user[of], history)

    train, every = ~positives.test, np.ones(len(positives.test), dtype=bool)
    return (
        "Heat dispersion over items in training: "
        f"{with_histories(positives.user[train], positives.item[train], train):,g} before "
        f"negatives are added, {with_histories(client[~held], item[~held], train):,g} after; "
        f"in all data {with_histories(positives.user, positives.item, every):,g} and "
        f"{with_histories(client, item, every):,g}."
    )


def _positives(
    user: np.ndarray,
    item: np.ndarray,
    chosen: np.ndarray,
    test: np.ndarray,
    past: np.ndarray,
    most: int,
) -> Positives:
    """The chosen rows of a log that is sorted by user, with the rows of `past` as history.

    A row's history is those of its user's past rows that come before it in the log.
    """
    users, owner = np.unique(user, return_inverse=True)
    items, row = np.unique(item, return_inverse=True)
    row = row + 1
    before = np.concatenate([[0], np.cumsum(past)])[:-1]
    size = before - before[starts_of(owner)]
    history = histories(row[past], before[chosen], size[chosen], most)
    return Positives(
        owner[chosen],
        row[chosen],
        test[chosen],
        _without(history, row[chosen]),
        np.unique(owner * (len(items) + 1) + row),
        users,
        items,
    )


def _without(history: Ragged, item: np.ndarray) -> Ragged:
    """Every list without the one item that stands beside it."""
    values, sizes = history.values.numpy(), history.sizes.numpy()
    owner = np.repeat(np.arange(len(sizes)), sizes)
    keep = values != item[owner]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(owner[keep], minlength=len(sizes)))])
    return Ragged(torch.from_numpy(values[keep]), torch.from_numpy(offsets), history.length)


def _buy_cart(text: TextFile, options: TaobaoOptions) -> tuple[Positives, tuple[str, ...]]:
    """The file of purchases and carts; carts are put before purchases, there being no order."""
    codes = {b"buy,train": b"0", b"buy,test": b"1", b"cart,train": b"2"}
    user, item, kind = _table(text.matching(_BUY_CART, _wrong_buy_cart, HEADER), codes, 3, text)
    order = np.lexsort((kind != 2, user))  # stable
    user, item, kind = user[order], item[order], kind[order]
    return (
        _positives(user, item, kind != 2, kind == 1, kind == 2, options.history),
        text.notes,
    )


def _official(text: TextFile, options: TaobaoOptions) -> tuple[Positives, tuple[str, ...]]:
    """The file of all behaviours, of a share of the users, in the order of time."""
    codes = {name.encode(): str(code).encode() for code, name in enumerate(BEHAVIOURS)}
    strange = 0

    def kept(columns: np.ndarray) -> np.ndarray:
        nonlocal strange
        if options.user_share < 1:
            random = bits(key(options.seed, MAKE, _USERS), torch.from_numpy(columns[0].copy()))
            columns = columns[:, uniform(random).numpy() < options.user_share]
        inside = (columns[4] >= START) & (columns[4] < END)
        strange += int((~inside).sum())
        return columns[:, inside]

    blocks = text.matching(_OFFICIAL, _wrong_official)
    user, item, _, kind, time = _table(blocks, codes, 5, text, kept)
    order = np.lexsort((time, user))  # stable: of equal times the file's order
    user, item, kind, time = user[order], item[order], kind[order], time[order]
    positive = kind == BEHAVIOURS.index(options.positive)
    if not positive.any():
        raise DataError(
            f"No line of {text.file} has behaviour {options.positive!r} and a user that was taken: "
            "choose another, or a larger user-share."
        )
    notes = text.notes
    if strange:
        what = "1 line" if strange == 1 else f"{strange:,} lines"
        notes += (f"{what} of another time than 25 November to 3 December 2017 left out.",)
    past = np.ones(len(user), dtype=bool)
    return _positives(user, item, positive, time >= END - DAY, past, options.history), notes


def _table(
    blocks: Iterator[bytes],
    codes: Mapping[bytes, bytes],
    width: int,
    text: TextFile,
    kept: Callable[[np.ndarray], np.ndarray] = lambda columns: columns,
) -> np.ndarray:
    """The columns of right lines as numbers, words replaced by their codes: (width, n)."""
    columns = [np.empty((width, 0), dtype=np.int64)]
    for block in blocks:
        for word, code in codes.items():
            block = block.replace(word, code)
        plain = block.translate(bytes.maketrans(b",\n", b"  "))
        numbers = np.fromstring(plain, dtype=np.int64, sep=" ") if plain else np.empty(0, np.int64)
        columns.append(kept(numbers.reshape(-1, width).T))
    table = np.concatenate(columns, axis=1)
    if not table.size:
        raise DataError(f"There is not a single line in {text.file} that can be used.")
    return table


def _wrong_buy_cart(line: str) -> str:
    """Why a line cannot be of the file of purchases and carts."""
    parts = line.split(",")
    if what := _wrong_start(line, parts, 4, ("user", "item")):
        return what
    if parts[2] not in ("buy", "cart"):
        return f"behavior {shown(parts[2])} is not buy or cart"
    return f"split {shown(parts[3])} of a {parts[2]} is not " + (
        "train or test" if parts[2] == "buy" else "train"
    )


def _wrong_official(line: str) -> str:
    """Why a line cannot be of the official file."""
    parts = line.split(",")
    if what := _wrong_start(line, parts, 5, ("user", "item", "category")):
        return what
    if parts[3] not in BEHAVIOURS:
        return f"behavior {shown(parts[3])} is not one of {', '.join(BEHAVIOURS)}"
    return f"timestamp {shown(parts[4])} is not a whole number of seconds"


def _wrong_start(line: str, parts: Sequence[str], count: int, names: Sequence[str]) -> str | None:
    """Why a line has not the right number of fields, or not numbers in the first of them."""
    if len(parts) != count:
        return f"{shown(line)} has {len(parts)} fields, not {count}"
    for name, value in zip(names, parts, strict=False):
        if not re.fullmatch("[0-9]{1,9}", value):
            return f"{name} {shown(value)} is not a whole number of at most 9 digits"
    return None


SOURCE = Source(
    name="taobao",
    url="https://alicloud-dev.oss-cn-hangzhou.aliyuncs.com/UserBehavior.csv.zip",
    file=f"{MEMBER}.zip",
    folder="taobao",
    licence="Tianchi's terms, for research and not for commerce: "
    "see https://tianchi.aliyun.com/dataset/649, where it is published.",
)

TASK = Task(
    name="taobao",
    summary="Taobao: whether a user buys an item; a public stand-in for the paper's Alibaba log.",
    options=TaobaoOptions,
    load=load,
    model="din",
    plan={
        "clients_per_round": 100,
        "local_steps": 10,
        "batch_size": 32,
        "lr": 1.0,
        "clip": 5.0,  # not in the paper: what its authors' code for Amazon does
        "weighting": "examples",
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        "fedadam": {"lr": 1.0, "server_lr": 0.001, "beta1": 0.9, "beta2": 0.99},
        "fedsubavg": {"lr": 0.3},
        "holdersmean": {"lr": 0.3},
        "steppedmean": {"lr": 0.3},
    },
    source=SOURCE,
)
