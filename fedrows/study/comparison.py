"""A comparison: a study of algorithms over seeds whose every run is a run folder of its own.

    DIR/                    config.json, data.json, the metrics of all runs, summary and report
    DIR/runs/NAME-seedN/    the folder of one run

Its runs are made as those of any study are: here, in processes, or by an executor. Unlike them,
each can be stopped after any round and resumed to the bit.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError
from fedrows.files.whole import Json, reason
from fedrows.measure.metric_choice import DIVERGED
from fedrows.measure.summary import Target
from fedrows.plan import Plan
from fedrows.runs.folder import CONFIG, DATA, RUNS, RunFolder
from fedrows.runs.own_task import OwnData
from fedrows.runs.settings import Settings, from_config
from fedrows.study.compared import STOP, ComparedRun
from fedrows.study.finished import could_not
from fedrows.study.scheduling import Here, ReportProgress, made_here, make
from fedrows.task import Task

COMPARE = "compare"  # the kind of folder


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: RunFolder
    settings: Mapping[str, Settings]  # algorithm → its run, whatever the seed
    seeds: list[int]
    target: Target

    @classmethod
    def new(
        cls,
        path: Path,
        settings: Mapping[str, Settings],
        plan: Plan,
        seeds: list[int],
        target: Target,
        command: str = "",
        overwrite: bool = False,
    ) -> Comparison:
        """A comparison in a new folder. plan: before any algorithm has its say."""
        target = with_rounds(target, plan)
        config = config_of(settings, plan, seeds, target)
        config |= {"command": command} if command else {}
        folder = RunFolder.create(path, COMPARE, config, overwrite=overwrite)
        return cls(folder, settings, seeds, target)

    @classmethod
    def opened(cls, path: Path) -> Comparison:
        """The comparison that a folder has."""
        folder = RunFolder.open(path, COMPARE)
        config, settings = folder.config, from_config(folder.config, path)
        return cls(folder, settings, config["seeds"], Target(**config.get("target", {})))

    @property
    def task(self) -> Task:
        """The task of all runs."""
        return next(iter(self.settings.values())).task

    @property
    def plan(self) -> Plan:
        """Some run's plan: rounds, device and threads are the same in all."""
        return next(iter(self.settings.values())).plan

    @property
    def again(self) -> str:
        """The command that goes on, or the call if the data were given in Python."""
        if isinstance(next(iter(self.settings.values())).options, OwnData):
            return f"compare(…, out={str(self.folder.path)!r}, resume=True)"
        return f"fedrows compare --resume {shlex.quote(str(self.folder.path))}"

    def runs(self) -> list[ComparedRun]:
        """Every run, a seed at a time."""
        return [
            ComparedRun(
                f"{name} seed {seed}",
                self.folder.path / RUNS / f"{name}-seed{seed}",
                replace(settings, plan=replace(settings.plan, seed=seed)),
                self.again,
            )
            for seed in self.seeds
            for name, settings in self.settings.items()
        ]

    def begin(self, data: FederatedData) -> None:
        """Writes what the folder says before its runs are made, or go on."""
        config = self.folder.config
        config["plan"]["rounds"] = self.plan.rounds
        config |= {"seeds": self.seeds, "target": asdict(self.target)}
        self.folder.write_json(CONFIG, config)
        self.folder.write_json(DATA, next(iter(self.settings.values())).facts(data))

    def run(
        self,
        executor: Executor | None = None,
        *,
        here: Here[ComparedRun] = made_here,
        progress: ReportProgress | None = None,
        report: Callable[[ComparedRun, Json], None] | None = None,
        stopping: Callable[[], bool] = lambda: False,
        checkpoint_seconds: float = 30.0,
    ) -> list[ComparedRun]:
        """Makes the runs that are missing; returns those it was stopped in, none once all are done.

        executor: who makes them, in run folders that it must see; without one, `here` does. report:
        is given each run and what it came to. A run that fails is named at the end; the others are
        made all the same.
        """
        every = [replace(run, checkpoint_seconds=checkpoint_seconds) for run in self.runs()]
        jobs = [replace(run, recorded=report is not None) for run in every if not run.finished]
        stop = self.folder.path / RUNS / STOP
        failures, made, stopped = dict[str, str](), 0, jobs[:1]
        with self.folder.locked():
            stop.parent.mkdir(exist_ok=True)
            stop.unlink(missing_ok=True)  # of a command that was killed
            outcomes = make(
                jobs,
                executor,
                progress,
                len(every) - len(jobs),
                here=here,
                stopping=stopping,
                stop=stop.touch,
            )
            unfinished, diverged = [], dict[str, tuple[int, str]]()
            for run, content, why in outcomes:
                if not content and not why:
                    continue  # it was not begun
                made, stopped = made + 1, [run]
                if why:
                    failures[run.label] = why
                    continue
                if not content["done"]:
                    unfinished.append(run)
                if DIVERGED in content:
                    diverged[run.label] = (content["round"], content[DIVERGED])
                if report is not None:
                    report(run, content)
            stop.unlink(missing_ok=True)
            self._gather(diverged)
        if failures:
            first = next(run.label for run in jobs if run.label in failures)
            where = f"{self.folder.path}: go on with `{self.again}`"
            raise could_not(first, failures[first], len(failures), made, where)
        return [] if made == len(jobs) and not unfinished else unfinished or stopped

    def _gather(self, diverged: Mapping[str, tuple[int, str]]) -> None:
        """Writes the metrics of all runs into the comparison's own folder.

        diverged: the runs that did, with the round and the reason; each ends in an empty line.
        """
        lines: list[Json] = []
        for run in self.runs():
            lines += run.lines()
            if run.label in diverged:
                lines.append(_end_of(run, *diverged[run.label]))
        try:
            self.folder.keep_lines(lines)
        except OSError as error:
            raise RunFolderError(
                f"{self.folder.path} cannot be written ({reason(error)}): make room, then go on "
                f"with `{self.again}`."
            ) from error


def with_rounds(target: Target, plan: Plan) -> Target:
    """The target, by default within two thirds of the rounds: there is room for slower ones."""
    if target.rounds is not None:
        return target
    return replace(target, rounds=max(1, plan.rounds * 2 // 3))


def _end_of(run: ComparedRun, round_: int, why: str) -> Json:
    """The line of a run that diverged in a round: it has no numbers."""
    name, seed = run.settings.algorithm.name, run.settings.plan.seed
    line = {"algorithm": name, "seed": seed, "round": round_, DIVERGED: why, "buckets": []}
    return line | dict.fromkeys(("train_loss", "bytes_down", "bytes_up", "seconds"))


def config_of(
    settings: Mapping[str, Settings], plan: Plan, seeds: list[int], target: Target
) -> dict[str, Any]:
    """A comparison as config.json has it. plan: before any algorithm has its say."""
    shared = asdict(plan)
    entries = []
    for setting in settings.values():
        own = {key: value for key, value in asdict(setting.plan).items() if value != shared[key]}
        entries.append({**setting.config()["algorithm"], **own})
    del shared["seed"]
    own = next(iter(settings.values())).config()
    return {
        "task": own.pop("task"),
        "algorithms": entries,
        "plan": shared,
        "seeds": seeds,
        "target": asdict(target),
        **{key: value for key, value in own.items() if key not in ("algorithm", "plan")},
    }
