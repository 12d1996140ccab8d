"""Timing in alternating blocks: every contender gets its turn before any gets its second.

A shared machine is faster in one second than in the next, so only ratios of medians over blocks
that lie side by side are worth anything.
"""

from __future__ import annotations

import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.speed.machine import facts
from fedrows.cli.flags import Parser, UsageError
from fedrows.files.whole import as_json, unwritable, write_whole

Rounds = Callable[[int], object]  # runs so many rounds
_PAUSE = 0.05  # seconds, in which the threads of the last contender go to sleep


def taken_from(loop: Iterator[object]) -> Rounds:
    """Runs rounds by taking them from a loop."""

    def run(count: int) -> None:
        for _ in itertools.islice(loop, count):
            pass

    return run


def seconds_per_round(
    contenders: Mapping[str, tuple[Rounds, int]], blocks: int
) -> dict[str, list[float]]:
    """Seconds per round of each contender in every block; its count is the rounds of a block."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for run, count in contenders.values():
        run(max(1, count // 10))  # warm up
    for _ in range(blocks):
        for name, (run, count) in contenders.items():
            time.sleep(_PAUSE)
            start = time.perf_counter()
            run(count)
            times[name].append((time.perf_counter() - start) / count)
    return times


def medians(times: Mapping[str, list[float]]) -> dict[str, float]:
    """The median block of each contender."""
    return {name: median(values) for name, values in times.items()}


@dataclass(frozen=True)
class Settings:
    """What every benchmark lets its user choose."""

    blocks: int
    out: Path | None
    own: dict[str, Any]  # what was typed for the benchmark's own flags
    command: str  # what was typed, but for where the result goes

    def write(self, result: dict[str, Any]) -> None:
        """Keeps the result as JSON, with what it was measured on, if that was asked for."""
        if self.out is None:
            return
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.out, as_json({"command": self.command, **facts(), **result}, indent=1))
        except OSError as error:
            raise unwritable(self.out, error) from error


def settings(parser: Parser, words: Sequence[str] | None, blocks: int) -> Settings:
    """What was typed; the threads are set as well."""
    add = parser.add_argument
    add("--blocks", metavar="N", default=blocks, help=f"Alternating blocks (default: {blocks}).")
    add("--threads", metavar="N", help="CPU threads of all contenders (default: PyTorch's own).")
    add("--out", metavar="FILE", help="Write the result as JSON to this file.")
    if any(word in ("-h", "--help") for word in words or ()):
        parser.print_help()
        raise SystemExit(0)
    typed = parser.parse(list(words or ()))
    if (threads := typed.pop("threads")) is not None:
        torch.set_num_threads(whole("--threads", threads))
    out = typed.pop("out")
    command = shlex.join([*parser.prog.split(), *_without_out(words or ())])
    return Settings(whole("--blocks", typed.pop("blocks")), out and Path(out), typed, command)


def _without_out(words: Sequence[str]) -> list[str]:
    """The words but for --out and its value: the place of a result is no part of it."""
    before = ["", *words]
    return [
        word
        for word, last in zip(words, before, strict=False)
        if last != "--out" and word.split("=")[0] != "--out"
    ]


def whole(flag: str, typed: Any) -> int:
    """A whole number of at least 1, or an error that names the flag."""
    if not str(typed).isdecimal() or int(typed) < 1:
        raise UsageError(f"{flag} is {typed!r}, but must be a whole number of at least 1.")
    return int(typed)
