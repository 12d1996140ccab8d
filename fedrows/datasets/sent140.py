"""Sentiment140 (Go, Bhayani, Huang 2009): whether a tweet is glad or sad, one client per user.

The paper's task: a two-layer LSTM on the tweets of the users with more than 40 of them; a random
fifth is held out, but for one tweet of a client that would have none left to train on; the label
is polarity 4 (0 is sad). Two forms of the file are read, both without a header and with six quoted
columns, polarity, id, date, query, user, text:

    official   training.1600000.processed.noemoticon.csv, Latin-1, or the trainingandtestdata.zip
               that it comes in
    sample     sentiment140_ge30_sample.csv.gz, UTF-8: a tenth of the tweets of busy users, in which
               users with more than 40 tweets are those with at least 5

The tokenizer: HTML entities are resolved, letters lowered; a link becomes <link>, an @name <name>;
what is left of

    [\\w]+(['’][\\w]+)*  |  !  |  ?

is a token each, so that "don't" is one and "#tbt" is tbt; all other signs are dropped, emoticons
too, most of which the publisher has removed. A tweet's first 30 tokens are kept. Rows of the table:
0 is padding, 1 stands for tokens that no training tweet has (or too few), the others are the
training tweets' tokens from frequent to rare. A tweet without a token is an empty list.
"""

from __future__ import annotations

import csv
import html
import re
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.splits import split_at_random
from fedrows.errors import DataError
from fedrows.files.fetch import Source
from fedrows.files.text_files import TextFile, find, shown
from fedrows.options import check, option
from fedrows.rows.ragged import ragged
from fedrows.seeds import VALIDATION
from fedrows.task import Task

MEMBER = "training.1600000.processed.noemoticon.csv"
FORMS = {
    "official": ("trainingandtestdata.zip", MEMBER, f"{MEMBER}.gz"),
    "sample": ("sentiment140_ge30_sample.csv.gz",),
}
ENCODING = {"official": "latin-1", "sample": "utf-8"}
FEWEST = {"official": 41, "sample": 5}  # tweets of a client
LABELS = {"0": False, "4": True}
UNKNOWN = 1  # its row; 0 is padding

_TOKEN = re.compile(r"(?:https?://|www\.)\S+|@\w+|\w+(?:['’]\w+)*|[!?]")
_LINK = re.compile(r"https?://|www\.")


@dataclass(frozen=True)
class Sent140Options:
    """Which tweets are kept, what a token is worth, and how the examples are split."""

    form: str = option(
        "auto",
        "Which file to read: the official one, the sample, or whichever is there.",
        choices=("auto", *FORMS),
    )
    fewest_tweets: int | None = option(
        None, "Fewest tweets of a client; 41 if not given, and 5 in the sample.", least=1
    )
    tokens: int = option(30, "Only the first N tokens of a tweet are read.", least=1)
    min_count: int = option(
        1, "A token has a row if training tweets have it at least N times.", least=1
    )
    test_share: float = option(0.2, "Share of the tweets held out at random.", least=0, most=0.9)
    validation: float = option(
        0.0, "Share of the training examples held out for validation, at random.", least=0, most=0.9
    )
    split_seed: int = option(0, "The same seed gives the same split.", least=0, most=2**63 - 1)
    skip_bad: bool = option(False, "Leave out lines that cannot be read, and say how many.")

    def __post_init__(self) -> None:
        check(self)


def load(options: Sent140Options) -> FederatedData:
    """The tweets of the clients, from the file in the data folder."""
    form, file = find(SOURCE, FORMS, options.form)
    return read(file, form, options)


def read(file: Path, form: str, options: Sent140Options) -> FederatedData:
    """The tweets of the clients, from a file anywhere that has one of the forms."""
    text = TextFile(file, member=MEMBER, encoding=ENCODING[form], skip_bad=options.skip_bad)
    users, labels, tweets = _tweets(text)
    fewest = options.fewest_tweets or FEWEST[form]
    busy = {user for user, count in Counter(users).items() if count >= fewest}
    chosen = [at for at, user in enumerate(users) if user in busy]
    if not chosen:
        raise DataError(f"No user in {file} has {fewest} tweets: choose a lower fewest-tweets.")
    words = [tokens_of(tweets[at])[: options.tokens] for at in chosen]
    client = np.array([users[at] for at in chosen])
    test = split_at_random(len(chosen), options.test_share, options.split_seed)
    test[_first_of_those_all_held_out(client, test)] = False
    validation = _validation(client, test, options)
    held = test | validation
    rows = _vocabulary([w for w, out in zip(words, held, strict=True) if not out], options)
    ids = [[rows.get(word, UNKNOWN) for word in tweet] for tweet in words]
    return FederatedData.build(
        name="sent140",
        client=client,
        ids={"tokens": ragged(ids, options.tokens)},
        label=np.array([labels[at] for at in chosen]),
        test=test,
        validation=validation,
        tables={"token": len(rows) + 2},
        fields={"tokens": "token"},
        vocabulary={"token": np.array(["<unknown>", *rows])},
        notes=(*text.notes, *_unknown_tokens(ids, test)),
    )


def tokens_of(tweet: str) -> list[str]:
    """The tokens of a tweet, as the head of this file states them."""
    tokens = _TOKEN.findall(html.unescape(tweet).lower())
    return ["<name>" if t[0] == "@" else "<link>" if _LINK.match(t) else t for t in tokens]


def _tweets(text: TextFile) -> tuple[list[str], list[bool], list[str]]:
    """The columns user, label and text of a whole file."""
    users: list[str] = []
    labels: list[bool] = []
    tweets: list[str] = []
    for number, line in text.lines():
        try:
            parts = next(csv.reader((line,), strict=True), [])
        except csv.Error as error:
            text.bad(number, f"{shown(line)} is no row of quoted columns ({error})")
            continue
        if len(parts) != 6:
            text.bad(number, f"{shown(line)} has {len(parts)} columns, not 6")
        elif parts[0] not in LABELS:
            text.bad(number, f"polarity {shown(parts[0])} is not 0 or 4")
        elif not parts[4]:
            text.bad(number, f"{shown(line)} has no user")
        else:
            users.append(parts[4])
            labels.append(LABELS[parts[0]])
            tweets.append(parts[5])
    return users, labels, tweets


def _validation(client: np.ndarray, test: np.ndarray, options: Sent140Options) -> np.ndarray:
    """Which of the training tweets are for validation: at random, but one of a client trains."""
    left = np.flatnonzero(~test)
    held = split_at_random(len(left), options.validation, options.split_seed, VALIDATION)
    held[_first_of_those_all_held_out(client[left], held)] = False
    validation = np.zeros(len(test), dtype=bool)
    validation[left[held]] = True
    return validation


def _first_of_those_all_held_out(client: np.ndarray, test: np.ndarray) -> np.ndarray:
    """The first example of every client whose examples are all held out."""
    _, first, owner = np.unique(client, return_index=True, return_inverse=True)
    return first[np.bincount(owner[~test], minlength=len(first)) == 0]


def _vocabulary(tweets: list[list[str]], options: Sent140Options) -> dict[str, int]:
    """Token → row, from frequent to rare, those of the same count in alphabetical order."""
    counts = Counter(chain.from_iterable(tweets))
    frequent = [word for word, count in counts.items() if count >= options.min_count]
    frequent.sort(key=lambda word: (-counts[word], word))
    return {word: row for row, word in enumerate(frequent, UNKNOWN + 1)}


def _unknown_tokens(ids: list[list[int]], test: np.ndarray) -> tuple[str, ...]:
    """How many of the test tweets' tokens have no row of their own."""
    tokens = [row for tweet, held in zip(ids, test, strict=True) if held for row in tweet]
    if not tokens:
        return ()
    unknown = tokens.count(UNKNOWN)
    share = unknown / len(tokens)
    return (
        f"{unknown:,} of the test tweets' {len(tokens):,} tokens ({share:.1%}) have no row of "
        "their own, and read the row for unknown ones.",
    )


SOURCE = Source(
    name="sent140",
    url="https://cs.stanford.edu/people/alecmgo/trainingandtestdata.zip",
    file="trainingandtestdata.zip",
    folder="sent140",
    licence="None stated: published for research by Go, Bhayani and Huang (2009), to be cited.",
    size=81_363_704,
    checksum="004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57",
)

TASK = Task(
    name="sent140",
    summary="Sentiment140: whether a tweet is glad or sad, as in the paper.",
    options=Sent140Options,
    load=load,
    model="lstm",
    plan={
        "clients_per_round": 50,
        "local_steps": 10,
        "batch_size": 5,
        "lr": 0.1,
        "weighting": "examples",
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        "fedadam": {"lr": 1.0, "server_lr": 1.0, "beta1": 0.9, "beta2": 0.99},
    },
    source=SOURCE,
)
