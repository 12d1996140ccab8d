"""`fedrows heat`: how many clients hold each feature of a task, in numbers and bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from fedrows import catalogue
from fedrows.cli.flags import HELP, Parser, add_options, asks_for_help
from fedrows.cli.parse import task_in, task_named
from fedrows.cli.settings import choose, owners_of
from fedrows.cli.show import print_table, say
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.rows.heat import Heat

WIDTH = 50  # of the longest bar
STEPS = (1, 2, 5)  # where bars begin, times powers of ten


def main(words: Sequence[str]) -> int:
    parser = _parser()
    add_tasks(parser, catalogue.built_in("task"))
    plugged = task_in([word for word in words if word not in HELP], parser)
    if plugged is not None and plugged not in catalogue.built_in("task"):
        add_tasks(parser, [plugged])
    if asks_for_help(words):
        parser = _parser_for(words, parser)
    typed = parser.parse(words)
    task = task_named(typed.pop("task"))
    options = next(iter(choose(task, [catalogue.DEFAULT], typed).values())).options
    _print(task.load(options))
    return 0


def _print(data: FederatedData) -> None:
    count = len(data.train) + len(data.validation) + len(data.test)
    everybody = max(data.clients, len(data.test.splits) - 1)
    for note in data.notes:
        say(f"Note: {note}")
    facts = {
        "clients": f"{everybody:,}",
        "clients with training data": f"{data.clients:,}",
        "samples": f"{count:,}",
        "training samples": f"{len(data.train):,}",
        "samples per client": f"{count / everybody:,.1f}",
    }
    for term, value in facts.items():
        say(f"{term:28}{value:>12}")
    say("")
    training, everything = data.heat(), data.heat_over_all()
    rows = []
    for table, size in data.tables.items():
        groups = {"": (0, size), **data.groups.get(table, {})}
        for group, span in groups.items():
            inside, all_ = training[table].between(*span), everything[table].between(*span)
            title = f"{table}: {group or 'all features'}"
            rows.append([title, f"{len(all_.ids):,}", *_range(inside), *_range(all_)])
    titles = ["features", "number", "training heat", "dispersion", "heat in all data", "dispersion"]
    print_table(titles, rows)
    for table in data.tables:
        say(f"\n{table}: features by the number of clients that hold them, in training")
        draw(training[table])


def draw(heat: Heat) -> None:
    """A bar for every step of heat; the steps grow, the bars' lengths are counts."""
    if not len(heat.ids):
        say("(no client holds any)")
        return
    counts = heat.counts.to(torch.int64)
    starts = [step * 10**power for power in range(19) for step in STEPS]
    edges = torch.tensor(starts)
    places = torch.searchsorted(edges, counts, right=True) - 1
    numbers = torch.bincount(places).tolist()
    labels = [
        str(low) if high - low == 1 else f"{low:,}–{high - 1:,}" for low, high in pairwise(starts)
    ][: len(numbers)]
    wide, widest = max(map(len, labels)), max(numbers)
    for label, number in zip(labels, numbers, strict=True):
        say(f"{label:>{wide}} {_bar(number / widest)} {number:,}")


def _bar(share: float) -> str:
    """A bar of eighths on a terminal that can show them, of # elsewhere."""
    encoding = (sys.stdout.encoding or "").lower().replace("-", "")
    if not sys.stdout.isatty() or not encoding.startswith("utf"):
        return "#" * max(round(share * WIDTH), int(share > 0))
    eighths = max(round(share * WIDTH * 8), int(share > 0))
    return "█" * (eighths // 8) + (" ▏▎▍▌▋▊▉"[eighths % 8] if eighths % 8 else "")


def _range(heat: Heat) -> list[str]:
    if not len(heat.ids):
        return ["–", "–"]
    low, high = int(heat.counts.min()), int(heat.counts.max())
    digits = 0 if heat.dispersion >= 10 else 1
    return [f"{low:,} to {high:,}", f"{heat.dispersion:,.{digits}f}"]


def add_tasks(parser: Parser, names: Sequence[str]) -> None:
    for name in names:
        task, _ = owners_of(catalogue.described("task", name))
        add_options(parser, f"task {name}", [task.of], {}, task.prefixed)


def _parser() -> Parser:
    tasks = ", ".join(catalogue.names("task"))
    parser = Parser("heat", "Shows how many clients hold each feature of a task.")
    parser.add_argument("task", metavar="TASK", nargs="?", help=f"One of {tasks}.")
    return parser


def _parser_for(words: Sequence[str], parser: Parser) -> Parser:
    """The parser of the one task that was named, for its help; the given one if none was."""
    try:
        typed: dict[str, Any] = parser.parse([w for w in words if w not in HELP])
        catalogue.task(typed["task"] or "")
    except FedrowsError:
        return parser
    narrow = _parser()
    add_tasks(narrow, [typed["task"]])
    return narrow
