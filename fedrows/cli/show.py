"""What the user sees of a run: a live line on a terminal, plain lines when piped."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from fedrows.measure.metric_choice import about, measured
from fedrows.measure.summary import show_epsilon
from fedrows.watch.observer import RoundReport, Watcher

SHOWN_EVERY = 0.1  # seconds; a fast run has thousands of rounds in one


class Display(Watcher, Protocol):
    """How a run is shown while it goes."""

    def end(self) -> None:
        """The run is done, or was stopped."""
        return


class Rate:
    """Rounds per second since a run began or went on."""

    def __init__(self, at: int) -> None:
        self._from, self._since = at, time.monotonic()

    def __call__(self, at: int) -> float:
        return (at - self._from) / max(time.monotonic() - self._since, 1e-9)


class PlainLines(Display):
    """A line of text for every evaluated round."""

    def __init__(self, label: str, at: int, rounds: int) -> None:
        self._label, self._rounds, self._rate = label, rounds, Rate(at)

    def measured(self, line: Mapping[str, Any]) -> None:
        at = line["round"]
        done = f"round {at:>{len(str(self._rounds))}}/{self._rounds}"
        rate = f"{self._rate(at):.3g} rounds/s"
        say("  ".join(filter(None, [self._label, done, *metrics_of(line), rate, virtual_of(line)])))


class LiveLine(Display):
    """One line that changes in place: rounds, loss, rounds per second, time left."""

    def __init__(self, label: str, at: int, rounds: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeRemainingColumn as Left

        self._bar: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=10),
            MofNCompleteColumn(),
            TextColumn("{task.fields[loss]}"),
            TextColumn("{task.fields[rate]}"),
            Left(),
            TextColumn("left"),
            refresh_per_second=1 / SHOWN_EVERY,
        )
        self._rate, self._next, self._rounds = Rate(at), 0.0, rounds
        self._bar.start()
        self._task = self._bar.add_task(label, total=rounds, completed=at, loss="", rate="")

    def round(self, report: RoundReport) -> None:
        at = report.round
        if time.monotonic() >= self._next or at == self._rounds:
            self._next = time.monotonic() + SHOWN_EVERY
            self._bar.update(self._task, completed=at, rate=f"{self._rate(at):.3g} rounds/s")

    def measured(self, line: Mapping[str, Any]) -> None:
        words = [f"loss {line['train_loss']:.4f}", epsilon_of(line), virtual_of(line)]
        self._bar.update(self._task, loss="  ".join(filter(None, words)))

    def end(self) -> None:
        with suppress(OSError):  # the terminal is gone
            self._bar.stop()  # a second time changes nothing


def show(label: str, at: int, rounds: int) -> Display:
    """Shows a run that goes on after round `at`: a live line on a terminal, lines elsewhere."""
    if sys.stdout.isatty():
        with suppress(ImportError):  # rich is not installed
            return LiveLine(label, at, rounds)
    return PlainLines(label, at, rounds)


def say(text: str) -> None:
    """Prints at once, even into a pipe. A terminal that was closed is like a closed pipe."""
    try:
        print(text, flush=True)
    except OSError as error:
        if error.errno == errno.EIO:
            raise BrokenPipeError from error
        raise


def metrics_of(line: Mapping[str, Any]) -> list[str]:
    """The metrics of a line that have a value, as text."""
    words = [f"{about(name)[0]} {line[name]:.{about(name)[2]}f}" for name in measured([line])]
    return [*words, spent] if (spent := epsilon_of(line)) else words


def epsilon_of(line: Mapping[str, Any]) -> str:
    """The ε that a private run has spent so far, by kind; nothing of a run in the clear."""
    spent = line.get("epsilon") or {}
    return "ε " + ", ".join(f"{k} {show_epsilon(x)}" for k, x in spent.items()) if spent else ""


def virtual_of(line: Mapping[str, Any]) -> str:
    """The simulated time so far; nothing of a run without a clock."""
    return f"{line['virtual_seconds']:,.1f} virtual s" if "virtual_seconds" in line else ""


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
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
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
    next_column = 1
    while next_column < len(columns):
        part, used = [columns[0]], widths[0]
        while next_column < len(columns) and (
            len(part) == 1 or used + widths[next_column] < console.width
        ):
            part.append(columns[next_column])
            used += widths[next_column]
            next_column += 1
        table = Table(box=box.SIMPLE_HEAD)
        for title, *_ in part:
            table.add_column(title, justify="right" if table.columns else "left")
        for row in zip(*(cells for _, *cells in part), strict=True):
            table.add_row(*map(Text, row))
        console.print(table)
