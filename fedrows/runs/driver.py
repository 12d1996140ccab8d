"""The loop of every run: evaluate, keep, save, tell those who watch, and stop when asked.

`fedrows run`, `fedrows compare`, studies, the paper and deployments all run their rounds here. They
differ in where a run is kept, which is the `Keeper`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from fedrows.errors import FedrowsError, MemoryShortageError, NotFiniteError, RunFolderError
from fedrows.files.whole import Json, reason
from fedrows.measure.metric_choice import BEST_ROUND
from fedrows.rows.params import Params
from fedrows.runs import checkpoint
from fedrows.runs.early_stop import EarlyStop
from fedrows.runs.finite import check_loss, check_model, is_huge
from fedrows.runs.folder import BEST, CHECKPOINT, RunFolder
from fedrows.runs.memory import fits_in_memory, lower_in_a_round
from fedrows.runs.release import write_release
from fedrows.runs.run import TrainingRun
from fedrows.runs.status_file import StatusFile
from fedrows.watch.observer import RoundReport, Watcher


class Keeper(Protocol):
    """Where a run's lines and checkpoints go."""

    def lines(self) -> list[Json]:
        """Returns the metrics that were kept so far."""

    def append(self, line: Json) -> None:
        """Keeps a line of metrics."""

    @property
    def due(self) -> bool:
        """Whether it is time to save."""

    def save(self) -> Path | None:
        """Saves where the run stands; returns the file if observers are to hear of it."""

    def keep_best(self, run: TrainingRun) -> None:
        """Keeps the model as it is, until a better one comes; after its line and a checkpoint."""

    def note(self, report: RoundReport) -> None:
        """Keeps what happened in a round."""

    def fail(self, why: str) -> None:
        """Keeps why the run could not go on."""


def drive(
    run: TrainingRun,
    keeper: Keeper,
    watchers: Sequence[Watcher] = (),
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Runs the rounds that are left; returns False if it was stopped before the last of them.

    A round is measured before it is saved, so a checkpoint never lacks a line; lines past it are
    dropped when the run goes on (see `resume`). A NotFiniteError or a MemoryShortageError leaves
    the run as it was last saved.
    """
    with fits_in_memory(
        lambda: f"round {run.progress.round + 1}", lambda: lower_in_a_round(run.plan)
    ):
        try:
            return _drive(run, keeper, watchers, stopping)
        except FedrowsError as error:
            keeper.fail(str(error))
            raise


def _drive(
    run: TrainingRun, keeper: Keeper, watchers: Sequence[Watcher], stopping: Callable[[], bool]
) -> bool:
    clock, rounds, before = _Clock(), run.plan.rounds, run.seconds
    early = checked_early_stop(run)
    best_round: int | None = None
    lines = keeper.lines()
    ends = [*lines[:1], *lines[1:][-1:]]  # the first evaluation and the last

    def tell(call: Callable[[Watcher], None]) -> None:
        for watcher in watchers:
            call(watcher)

    def find_best(*more: Json) -> None:
        nonlocal best_round
        best = None if early is None else early.best([*keeper.lines(), *more])
        best_round = None if best is None else best["round"]

    def keep_if_best() -> None:
        if best_round == run.progress.round:
            keeper.keep_best(run)

    def measure() -> None:
        with clock("evaluate"):
            line = run.evaluate()
            check_loss(run, line, ends)
        if early is not None:
            find_best(line)
            line[BEST_ROUND] = best_round
        keeper.append(line)
        ends[1:] = [line]  # the first stays
        tell(lambda watcher: watcher.measured(line))

    def save() -> None:
        with clock("save"):
            check_model(run)
            path = keeper.save()
            keep_if_best()  # second: a best model past the checkpoint could not be gone back to
        if path is not None:
            tell(lambda watcher: watcher.event("saved", {"path": str(path)}))

    def end_measured() -> None:
        if all(line["round"] != run.progress.round for line in keeper.lines()):
            measure()

    def end_early() -> None:
        if early is not None and (why := early.over(keeper.lines())):
            run.end_(why)

    end_early()  # a run that had ended when it was last saved
    if run.progress.round == rounds:
        end_measured()  # a run that was stopped here, and is now to end here
    find_best()
    keep_if_best()  # a run that was killed between its checkpoint and its best model
    for _ in run:
        clock.add("round", run.seconds - before)
        before = run.seconds
        if run.due:
            measure()
            end_early()
        stop = stopping()
        # The last good checkpoint stays while it is not known whether the run diverges.
        due = keeper.due and (run.plan.go_on or not is_huge(ends))
        if run.progress.round in (rounds, best_round) or stop or due:
            save()
        report = run.round_report(clock.taken())
        keeper.note(report)
        for watcher in watchers:  # not through tell: the report is this round's
            watcher.round(report)
        if stop:
            break
    if why := run.stopped:
        tell(lambda watcher: watcher.event("stopped", {"round": run.progress.round, "why": why}))
        end_measured()
        save()
    return run.progress.round == rounds or bool(run.stopped)


def checked_early_stop(run: TrainingRun) -> EarlyStop | None:
    """When the plan ends the run early; a PlanError if what it watches is not measured."""
    early = EarlyStop.of(run.plan)
    if early is not None:
        early.check(run.evaluate())
    return early


class InMemory:
    """Keeps the lines, and the best model: a run that is made in one go, or anew."""

    due = False

    def __init__(self) -> None:
        self._lines: list[Json] = []
        self.best: Params | None = None

    def lines(self) -> list[Json]:
        return self._lines

    def append(self, line: Json) -> None:
        self._lines.append(line)

    def save(self) -> None:
        pass

    def keep_best(self, run: TrainingRun) -> None:
        self.best = run.progress.whole().copy()

    def note(self, report: RoundReport) -> None:
        pass

    def fail(self, why: str) -> None:
        pass


class InFolder:
    """Keeps a run in its folder, and saves it at least every so many seconds.

    Mapped tables whose log of changes has become long are saved before their time.
    """

    def __init__(self, folder: RunFolder, run: TrainingRun, seconds: float) -> None:
        self._folder, self._run, self._seconds = folder, run, seconds
        self.saved = run.progress.round  # the round that can be gone back to
        self._next = time.monotonic() + seconds
        at, rounds = run.progress.round, run.plan.rounds
        self._status = StatusFile(folder.path, at, rounds, folder.private)

    def lines(self) -> list[Json]:
        return self._folder.lines()

    def append(self, line: Json) -> None:
        self._folder.append(line)

    @property
    def due(self) -> bool:
        tables = self._run.progress.table_folder
        return time.monotonic() >= self._next or (tables is not None and tables.log_is_long)

    def save(self) -> Path:
        path = self._folder.path / CHECKPOINT
        self._folder.sync()
        checkpoint.save(path, self._run)
        write_release(self._folder, self._run)
        self.saved, self._next = self._run.progress.round, time.monotonic() + self._seconds
        if self._run.stopped:
            self._status.end(stopped=self._run.stopped)
        return path

    def keep_best(self, run: TrainingRun) -> None:
        checkpoint.save(self._folder.path / BEST, run)

    def note(self, report: RoundReport) -> None:
        self._status.round(report)

    def fail(self, why: str) -> None:
        self._status.end(failed=why)

    @contextmanager
    def saying_what_is_kept(self, again: str) -> Iterator[None]:
        """Has an error of the block say what the folder keeps. again: the command that goes on."""
        path = self._folder.path
        try:
            yield
        except (RunFolderError, BrokenPipeError):
            raise
        except (MemoryShortageError, NotFiniteError) as error:
            more = f"{path} is kept as it was after round {self.saved}"
            if isinstance(error, MemoryShortageError):
                more += f": with more memory, go on with `{again}`"
            raise type(error)(f"{error} {more}.") from error
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written ({reason(error)}): make room, then go on from round "
                f"{self.saved} with `{again}`."
            ) from error


class _Clock:
    """How long each phase of a round took."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        since = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - since)

    def taken(self) -> dict[str, float]:
        """Returns what was added since the last call."""
        seconds, self._seconds = self._seconds, {}
        return seconds
