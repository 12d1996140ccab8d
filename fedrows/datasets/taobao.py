"""Taobao's UserBehavior (Alibaba, Tianchi data set 649): is what stands in the cart also bought?

An example is a pair of a user and an item that the user put into the cart or bought: positive if
it was bought, negative if it was only put into the cart. Both labels were observed, so nothing is
drawn. One client per user. The data stand in for the paper's log of Alibaba, which is private. Two
forms are read:

    official   UserBehavior.csv: user,item,category,behavior,timestamp without a header; behavior is
               pv (a click), cart, fav or buy; 25 November to 3 December 2017, Beijing time. A
               twentieth of the million users is taken, as many as the paper has. Clicks, favourites
               and lines of another time are left out. A pair is of the moment of its last line, and
               the pairs of the last day are held out: no label of training was seen on that day.
    buy-cart   taobao_buy_cart.csv.gz: user,item,behavior,split with that header; behavior is buy or
               cart, split is train or test. There being no time, a random fifth of the pairs is
               held out. The file's own split is not used: it holds out purchases only.

The fields are the user, whose row stays on its client (a local table), the item, and the length of
the user's list: how many training pairs there are of this user. Who has many buys few of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation, split_at_random
from fedrows.errors import DataError
from fedrows.files.fetch import Source
from fedrows.files.text_files import TextFile, find, shown
from fedrows.options import check, option
from fedrows.seeds import MAKE, bits, key, uniform
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
LISTS = 20  # rows for the lengths of lists: the last is for more than 2⁸ training pairs

_USERS = 2  # the stream that users are drawn from

_NUMBER = rb"[0-9]{1,9}+"
_OFFICIAL = re.compile(
    rb"(?:%b,%b,%b,(?:pv|cart|fav|buy),-?[0-9]{1,18}+\n)*+" % (_NUMBER, _NUMBER, _NUMBER)
)
_BUY_CART = re.compile(rb"(?:%b,%b,(?:buy,train|buy,test|cart,train)\n)*+" % (_NUMBER, _NUMBER))


@dataclass(frozen=True)
class TaobaoOptions:
    """Which file is read, which users take part, and what is held out."""

    form: str = option(
        "auto",
        "Which file to read: the official one, the buy-cart one, or the first that is there.",
        choices=("auto", *FORMS),
    )
    user_share: float = option(
        0.05, "In the official file, the share of users taken, at random.", above=0, most=1
    )
    test_share: float = option(
        0.2, "In the buy-cart file, the share of pairs held out at random.", least=0, most=0.9
    )
    validation: float = option(
        0.1, "Share of the other pairs that is kept for validation.", least=0, most=0.9
    )
    seed: int = option(0, "The same seed gives the same users and splits.", least=0, most=2**63 - 1)
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
        pairs, notes = _official(text, options)
        assert pairs.time is not None
        test = pairs.time >= END - DAY
        held = Split.latest(options.validation, "timestamp")
    else:
        pairs, notes = _buy_cart(text), text.notes
        test = split_at_random(len(pairs.user), options.test_share, options.seed)
        held = Split.random(options.validation)
    users, owner = np.unique(pairs.user, return_inverse=True)
    items, row = np.unique(pairs.item, return_inverse=True)
    validation = mark_validation(held, test, owner, pairs.time, options.seed)
    trained = np.bincount(owner[~(test | validation)], minlength=len(users))  # of each user
    return FederatedData.build(
        name="taobao",
        client=pairs.user,
        ids={"user": owner, "item": row, "list": _class_of(trained)[owner]},
        label=pairs.bought,
        test=test,
        validation=validation,
        tables={"user": len(users), "item": len(items), "list": LISTS},
        local=["user"],
        target=("item", None),
        vocabulary={"user": users, "item": items},
        notes=notes,
    )


def _class_of(sizes: np.ndarray) -> np.ndarray:
    """The row of a list of so many training pairs: two rows for every doubling; 0: none."""
    return np.minimum(np.floor(2 * np.log2(np.maximum(sizes, 0.5)) + 2), LISTS - 1).astype(np.int64)


@dataclass(frozen=True)
class Pairs:
    """Who had what in the cart or bought it, every pair once, sorted by user and item."""

    user: np.ndarray  # (n,), the file's numbers
    item: np.ndarray  # (n,), likewise
    bought: np.ndarray  # (n,) bool
    time: np.ndarray | None = None  # (n,), of the last line about the pair


def _pairs(
    user: np.ndarray, item: np.ndarray, bought: np.ndarray, time: np.ndarray | None = None
) -> Pairs:
    """The pairs behind the lines of a log, each bought if any of its lines says so."""
    order = np.lexsort((item, user))
    user, item = user[order], item[order]
    first = np.ones(len(user), dtype=bool)
    first[1:] = (np.diff(user) != 0) | (np.diff(item) != 0)
    starts = np.flatnonzero(first)
    return Pairs(
        user[starts],
        item[starts],
        np.logical_or.reduceat(bought[order], starts),
        None if time is None else np.maximum.reduceat(time[order], starts),
    )


def _buy_cart(text: TextFile) -> Pairs:
    """The pairs in the file of purchases and carts."""
    codes = {b"buy,train": b"0", b"buy,test": b"1", b"cart,train": b"2"}
    user, item, kind = _table(text.matching(_BUY_CART, _wrong_buy_cart, HEADER), codes, 3, text)
    return _pairs(user, item, kind != 2)


def _official(text: TextFile, options: TaobaoOptions) -> tuple[Pairs, tuple[str, ...]]:
    """The pairs in the file of all behaviours, of a share of the users, and what is odd."""
    codes = {name.encode(): str(code).encode() for code, name in enumerate(BEHAVIOURS)}
    cart, buy = BEHAVIOURS.index("cart"), BEHAVIOURS.index("buy")
    strange = 0

    def choose_lines(columns: np.ndarray) -> np.ndarray:
        nonlocal strange
        if options.user_share < 1:
            random = bits(key(options.seed, MAKE, _USERS), torch.from_numpy(columns[0].copy()))
            columns = columns[:, uniform(random).numpy() < options.user_share]
        inside = (columns[4] >= START) & (columns[4] < END)
        strange += int((~inside).sum())
        return columns[:, inside & np.isin(columns[3], (cart, buy))]

    blocks = text.matching(_OFFICIAL, _wrong_official)
    user, item, _, kind, time = _table(blocks, codes, 5, text, choose_lines)
    notes = text.notes
    if strange:
        what = "1 line" if strange == 1 else f"{strange:,} lines"
        notes += (f"{what} of another time than 25 November to 3 December 2017 left out.",)
    return _pairs(user, item, kind == buy, time), notes


def _table(
    blocks: Iterator[bytes],
    codes: Mapping[bytes, bytes],
    width: int,
    text: TextFile,
    choose_lines: Callable[[np.ndarray], np.ndarray] = lambda columns: columns,
) -> np.ndarray:
    """The columns of right lines as numbers, words replaced by their codes: (width, n)."""
    columns = [np.empty((width, 0), dtype=np.int64)]
    for block in blocks:
        for word, code in codes.items():
            block = block.replace(word, code)
        plain = block.translate(bytes.maketrans(b",\n", b"  "))
        numbers = np.fromstring(plain, dtype=np.int64, sep=" ") if plain else np.empty(0, np.int64)
        columns.append(choose_lines(numbers.reshape(-1, width).T))
    table = np.concatenate(columns, axis=1)
    if not table.size:
        raise DataError(
            f"There is not a single line in {text.file} about a cart or a purchase that can be "
            "used: check the file, or take a larger user-share."
        )
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
    summary="Taobao: whether a user buys an item or only puts it into the cart.",
    options=TaobaoOptions,
    load=load,
    model="logistic",
    plan={
        "rounds": 500,
        "clients_per_round": 1000,  # a client is drawn ten times in 500 rounds, on average
        "local_steps": 10,
        "batch_size": 8,
        "lr": 0.0125,
        "lr_schedule": "cosine",
        "weighting": "examples",
        "evaluate_every": 25,
        "start": "counted",
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        "fedavg": {"lr": 0.05},
        "fedsubavg": {"cap": "cohort"},
        "fedadam": {"lr": 0.05, "server_lr": 0.01, "lazy": True},
    },
    source=SOURCE,
)
