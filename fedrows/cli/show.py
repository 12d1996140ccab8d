"""What the user sees of a run: a live line on a terminal, plain lines when piped."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any, Protocol

from fedrows.measure.summary import METRICS, show_epsilon

SHOWN_EVERY = 0.1  # seconds; a fast run has thousands of rounds in one


class Show(Protocol):
    """Someone who is told how a run goes."""

    def begin(self, label: str, at: int, rounds: int) -> None:
        """A run begins, or goes on after round `at`."""

    def step(self, at: int) -> None:
        """A round is done."""

    def measured(self, line: dict[str, Any]) -> None:
        """A round was evaluated."""

    def end(self) -> None:
        """The run is done, or was stopped."""


class Rate:
    """Rounds per second since a run began or went on."""

    def __init__(self, at: int) -> None:
        self._from, self._since = at, time.monotonic()

    def __call__(self, at: int) -> float:
        return (at - self._from) / max(time.monotonic() - self._since, 1e-9)


class Lines:
    """A line of text for every evaluated round."""

    def begin(self, label: str, at: int, rounds: int) -> None:
        self._label, self._rounds, self._rate = label, rounds, Rate(at)

    def step(self, at: int) -> None:
        pass

    def measured(self, line: dict[str, Any]) -> None:
        at = line["round"]
        place = f"round {at:>{len(str(self._rounds))}}/{self._rounds}"
        rate = f"{self._rate(at):.3g} rounds/s"
        say("  ".join([self._label, place, *metrics_of(line), rate]))

    def end(self) -> None:
        pass


class Live:
    """One line that changes in place: rounds, loss, rounds per second, time left."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        text = TextColumn
        self._make = lambda: Progress(
            text("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            text("{task.fields[loss]}"),
            text("{task.fields[rate]}"),
            Left(),
            text("left"),
            refresh_per_second=1 / SHOWN_EVERY,
        )
        self._bar: Any = None

    def begin(self, label: str, at: int, rounds: int) -> None:
        self._bar, self._rate, self._next = self._make(), Rate(at), 0.0
        self._rounds = rounds
        self._bar.start()
        self._task = self._bar.add_task(label, total=rounds, completed=at, loss="", rate="")

    def step(self, at: int) -> None:
        if time.monotonic() >= self._next or at == self._rounds:
            self._next = time.monotonic() + SHOWN_EVERY
            self._bar.update(self._task, completed=at, rate=f"{self._rate(at):.3g} rounds/s")

    def measured(self, line: dict[str, Any]) -> None:
        words = [f"loss {line['train_loss']:.4f}", epsilon_of(line)]
        self._bar.update(self._task, loss="  ".join(filter(None, words)))

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def show() -> Show:
    """A live line on a terminal, lines of text elsewhere or without rich."""
    if sys.stdout.isatty():
        try:
            return Live()
        except ImportError:
            pass
    return Lines()


def say(text: str) -> None:
    """Prints at once, even into a pipe."""
    print(text, flush=True)


def metrics_of(line: dict[str, Any]) -> list[str]:
    """The metrics of a line that have a value, as text."""
    found = [
        f"{title} {line[name]:.{digits}f}"
        for name, (title, _, digits) in METRICS.items()
        if line.get(name) is not None and line[name] == line[name]
    ]
    return [*found, spent] if (spent := epsilon_of(line)) else found


def epsilon_of(line: dict[str, Any]) -> str:
    """The ε that a private run has spent so far, by kind; nothing of a run in the clear."""
    spent = line.get("epsilon") or {}
    return "ε " + ", ".join(f"{k} {show_epsilon(x)}" for k, x in spent.items()) if spent else ""


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn by rich on a terminal, columns of text elsewhere; numbers to the right."""
    if sys.stdout.isatty():
        try:
            _rich_table(titles, rows)
            return
        except ImportError:
            pass
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    for row in [titles, ["-" * width for width in widths], *rows]:
        cells = [
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        say("  ".join(cells).rstrip())


def _rich_table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """The table, in as many parts as the terminal's width asks for, each with the first column."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(len, column)) + 3 for column in columns]
    place = 1
    while place < len(columns):
        part, used = [columns[0]], widths[0]
        while place < len(columns) and (len(part) == 1 or used + widths[place] < console.width):
            part.append(columns[place])
            used += widths[place]
            place += 1
        table = Table(box=box.SIMPLE_HEAD)
        for title, *_ in part:
            table.add_column(title, justify="right" if table.columns else "left")
        for row in zip(*(cells for _, *cells in part), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)
