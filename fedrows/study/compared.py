"""One run of a comparison as a job: it is made in its run folder, and goes on where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import NotFiniteError, RunFolderError
from fedrows.files.whole import Json
from fedrows.measure.metric_choice import DIVERGED
from fedrows.runs import checkpoint
from fedrows.runs.driver import InFolder, drive
from fedrows.runs.early_stop import EarlyStop
from fedrows.runs.folder import CHECKPOINT, RunFolder
from fedrows.runs.resume import begin, resumed
from fedrows.runs.settings import Settings, check_clients, from_config
from fedrows.simulation import Simulation, threads
from fedrows.study.scheduling import ReportRound, Rounds
from fedrows.study.setting import work_of
from fedrows.study.study_job import load
from fedrows.watch.observer import RoundReport, Watcher

STOP = "stop"  # beside the run folders: a file that asks those elsewhere to stop after their round


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison, and where it is kept."""

    label: str
    path: Path
    settings: Settings
    again: str  # the command that goes on, for messages
    checkpoint_seconds: float = 30.0
    recorded: bool = False  # whether what a watcher hears comes back with the run

    @property
    def work(self) -> float:
        return work_of(self.settings)

    @property
    def rounds(self) -> int:
        return self.settings.plan.rounds

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if not (self.path / CHECKPOINT).exists():
            return False
        lines, at = self.lines(), checkpoint.standing(self.path / CHECKPOINT).round
        if not lines or lines[-1]["round"] != at:
            return False
        early = EarlyStop.of(self.settings.plan)
        return at == self.rounds or (early is not None and bool(early.over(lines)))

    def lines(self) -> list[Json]:
        """The metrics so far; none before the run has a folder."""
        return RunFolder.open(self.path, "run").lines() if self.path.is_dir() else []

    def request(self, elsewhere: bool) -> ComparedRequest:
        return ComparedRequest(
            self.label,
            str(self.path.absolute()),
            self.settings.config(),
            self.again,
            self.checkpoint_seconds,
            self.recorded,
        )

    def keep(self, content: Json) -> bool:
        return bool(content.get("done"))

    @contextmanager
    def opened(self, data: FederatedData) -> Iterator[tuple[RunFolder, Simulation]]:
        """The run in its folder, which is locked meanwhile: new, or where it stands."""
        if new := not (self.path / CHECKPOINT).exists():
            simulation = self.settings.simulation(data, self.path)
            simulation.prepare()
            folder = RunFolder.create(self.path, "run", self.settings.config(), overwrite=True)
        else:
            folder = RunFolder.open(self.path, "run")
        with folder.locked():
            if new:
                begin(folder, simulation, simulation.evaluator.facts())
            else:
                simulation = self._resumed(folder, data)
            yield folder, simulation

    def _resumed(self, folder: RunFolder, data: FederatedData) -> Simulation:
        [stored] = from_config(folder.config, self.path).values()
        plan = replace(stored.plan, rounds=self.rounds, go_on=self.settings.plan.go_on)
        if replace(stored, plan=plan) != self.settings:
            raise RunFolderError(
                f"{self.path} holds another run than its comparison says: delete it, then go on "
                f"with `{self.again}`."
            )
        return resumed(folder, self.settings, data)


@dataclass(frozen=True)
class ComparedRequest:
    """A run of a comparison, as it travels to whoever makes it."""

    label: str
    path: str  # of its folder, which must be there too
    config: Json
    again: str
    checkpoint_seconds: float
    recorded: bool

    def make(self, heard: ReportRound) -> Json:
        """Makes the run, or what is left of it; returns how it ended, nothing if stopped before."""
        path = Path(self.path)
        stop = path.parent / STOP
        if stop.exists():
            return {}
        [settings] = from_config(self.config, path).values()
        task = catalogue.reference("task", settings.task.name) or settings.task.name
        data = load(task, **asdict(settings.options))
        check_clients(settings.plan, data)
        run = ComparedRun(self.label, path, settings, self.again)
        record = Recording()
        watchers: list[Watcher] = [Rounds(heard), *([record] if self.recorded else [])]
        with threads(settings.plan.threads), run.opened(data) as (folder, simulation):
            at = simulation.progress.round
            keeper = InFolder(folder, simulation, self.checkpoint_seconds)
            diverged: Json = {}
            try:
                with keeper.saying_what_is_kept(self.again):
                    done = drive(simulation, keeper, watchers, stop.exists)
            except NotFiniteError as error:  # that is a result too
                done, notes = True, [f"{self.label}: {error}"]
                diverged = {DIVERGED: str(error), "notes": notes, "stopped": ""}
        return {
            "done": done,
            "at": at,
            "round": simulation.progress.round,
            "notes": list(simulation.notes),
            "stopped": simulation.stopped,
            "heard": record.heard,
            **diverged,
        }


class Recording(Watcher):
    """A watcher that remembers what it is told, to be told to others later."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, tuple[Any, ...]]] = []

    def round(self, report: RoundReport) -> None:
        self.heard.append(("round", (report,)))

    def measured(self, line: Mapping[str, Any]) -> None:
        self.heard.append(("measured", (line,)))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self.heard.append(("event", (name, fields)))


def replay(heard: Sequence[tuple[str, tuple[Any, ...]]], watcher: Watcher) -> None:
    """Tells a watcher what a recording has heard."""
    for name, arguments in heard:
        getattr(watcher, name)(*arguments)
