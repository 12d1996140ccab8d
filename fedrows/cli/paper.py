"""`fedrows paper`: every table, figure and theorem of the paper, on one page, next to its own."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedrows.cli.flags import Parser, UsageError, comma_list, whole_number_or_none
from fedrows.cli.live import LivePage, add_live
from fedrows.cli.show import say
from fedrows.errors import INTERRUPTED
from fedrows.files.whole import unwritable
from fedrows.paper import catalogue
from fedrows.paper.experiment import Experiment
from fedrows.paper.workplace import FAILED, MISSING, Workplace
from fedrows.plan import Plan
from fedrows.report.artefact import Artefact
from fedrows.runs.signals import hearing_signals
from fedrows.study.page import writer
from fedrows.version import __version__

NOT_MADE, DATA_MISSING = 1, 3
OUT = "paper"


def main(words: Sequence[str]) -> int:
    """Makes the page; gives the exit code."""
    parser = _parser()
    typed = parser.parse(words)
    experiments = catalogue.chosen(typed["names"])
    if typed["list"]:
        for experiment in experiments:
            say(f"{experiment.name}\t{experiment.title}")
        return 0
    writer()  # refuses before anything is made
    live = LivePage.typed(typed)
    display = _Display()
    work = Workplace(
        Path(typed["out"]),
        typed["quick"],
        typed["search"],
        _seeds(typed["seeds"]),
        typed["device"],
        whole_number_or_none("--workers", typed["workers"]),
        display.say,
        display.progress,
    )
    Plan(device=work.device).torch_device  # noqa: B018 - it checks
    try:
        work.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(work.folder, error) from error
    command = shlex.join(["fedrows", "paper", *words])
    try:
        with hearing_signals(), live.following(work.folder):
            return _make(work, experiments, display, command, typed["allow_missing"])
    except KeyboardInterrupt:
        display.end()
        say(f"Stopped. The runs that were finished are kept: go on with: {command}")
        return INTERRUPTED
    finally:
        display.end()
        work.close()


def _make(
    work: Workplace,
    experiments: Sequence[Experiment],
    display: _Display,
    command: str,
    allow_missing: bool,
) -> int:
    """Makes the experiments one after another, then the page of all that there is."""
    since, outcomes = time.monotonic(), dict[str, str]()
    artefacts: dict[str, Artefact] = {}
    if len(experiments) > 1:
        display.begin("runs of all experiments")
        work.ahead(experiments)
        display.end()
    for number, experiment in enumerate(experiments, start=1):
        begun, name = time.monotonic(), experiment.name
        label = f"{number}/{len(experiments)} {name}"
        display.begin(label)
        artefacts[name], outcomes[name] = work.make(experiment)
        display.end()
        say(f"{label}: {outcomes[name]}, {time.monotonic() - begun:.1f} s")
    work.close()
    for experiment in catalogue.EXPERIMENTS:
        if experiment.name not in artefacts and (earlier := work.kept(experiment)) is not None:
            artefacts[experiment.name] = earlier
    shown = [artefacts[one.name] for one in catalogue.EXPERIMENTS if one.name in artefacts]
    for name, outcome in outcomes.items():
        if outcome == MISSING:
            say(f"{name}: {outcome}: {artefacts[name].missing}")
        elif outcome == FAILED:
            say(f"{name}: {artefacts[name].summary}")
    page = writer()
    facts = _facts(work, command, time.monotonic() - since)
    for note in page.write(work.folder, shown, work.runs_of(shown), facts):
        say(f"Note: {note}")
    say(f"Page: {work.folder / page.PAGE}")
    if FAILED in outcomes.values():
        return NOT_MADE
    return DATA_MISSING if MISSING in outcomes.values() and not allow_missing else 0


def _facts(work: Workplace, command: str, seconds: float) -> dict[str, Any]:
    device = f"{os.cpu_count()} cores, {platform.machine()}"
    if torch.cuda.is_available():
        device = f"{torch.cuda.get_device_name()}, {device}"
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": device,
        "fedrows": __version__,
        "torch": torch.__version__,
        "command": command,
        "quick": work.quick,
        "seconds": round(seconds),
    }


class _Display:
    """How an experiment goes: one changing line on a terminal, a line per run elsewhere."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._label = ""
        self._done: int | None = None

    def begin(self, label: str) -> None:
        self._label, self._done = label, None
        if sys.stdout.isatty():
            with suppress(ImportError):
                self._start()
                return
        say(label)

    def _start(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
        from rich.progress import TimeElapsedColumn as Elapsed

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=10), MofNCompleteColumn())
        detail = TextColumn("{task.fields[detail]}")
        self._bar = Progress(*columns, detail, Elapsed(), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._label, total=None, detail="")

    def progress(self, done: int, of: int, label: str, round_: int) -> None:
        if self._bar is not None:
            detail = f"{label}, round {round_}"
            self._bar.update(self._task, completed=done, total=of, detail=detail)
        elif self._done is not None and done > self._done:
            say(f"  {done}/{of} runs, {label}")
        self._done = done

    def say(self, text: str) -> None:
        """A line of its own, above the one that changes."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            say(f"  {text}")

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def _seeds(typed: str | None) -> list[int]:
    try:
        seeds = sorted({int(word) for word in comma_list(typed)})
    except ValueError:
        seeds = [-1]
    if seeds and seeds[0] < 0:
        raise UsageError(f"--seeds is {typed!r}, but must be whole numbers as in 0,1,2.")
    return seeds


def _parser() -> Parser:
    parser = Parser(
        "paper",
        "Makes the tables, figures and theorems of the paper, next to the paper's own numbers. "
        "Finished runs are kept: a second call makes only what is missing or changed. "
        f"Exit code {DATA_MISSING} says that data were missing, {NOT_MADE} that an experiment "
        f"failed, {INTERRUPTED} that it was stopped.",
    )
    add = parser.add_argument
    add("names", metavar="NAME", nargs="*", help="Experiments to make (default: all).")
    add("--out", metavar="DIR", default=OUT, help=f"The folder to write (default: {OUT}).")
    add("--quick", action="store_true", help="A reduced version: minutes on two cores.")
    add("--search", action="store_true", help="Search learning rates anew.")
    add("--seeds", metavar="N,N", help="Seeds of all runs (default: the experiments' own).")
    add("--device", metavar="TEXT", default="auto", help="auto, cpu, cuda or cuda:1.")
    add("--workers", metavar="N", help="Processes on a CPU (default: as many as cores).")
    add("--allow-missing", action="store_true", help="Exit code 0 even if data are missing.")
    add_live(parser)
    add("--list", action="store_true", help="List the experiments, and make none.")
    return parser
