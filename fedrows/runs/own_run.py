"""A run of data and a module that were given in Python, in a run folder.

It is made as `fedrows run` makes one: the same settings, folder, checkpoint and driver. So it goes
on to the bit, and is refused for the same reasons.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError, PlanError, RunFolderError
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.rows.params import Params
from fedrows.runs import checkpoint
from fedrows.runs.driver import InFolder, checked_early_stop, drive
from fedrows.runs.folder import BEST, RunFolder, check_free
from fedrows.runs.own_task import OwnData
from fedrows.runs.resume import begin, check_longer, go_back_, refuse_change, resumed
from fedrows.runs.settings import Settings, check_clients
from fedrows.simulation import Simulation, threads
from fedrows.simulator import process_group
from fedrows.task import Task
from fedrows.watch.observer import Watcher

WORDS = {  # of the command line → of Python
    "--rounds": "rounds",
    "--out": "out=",
    "--overwrite": "overwrite=True",
    "--resume": "resume=True",
}
Made = tuple[Simulation, list[dict[str, Any]], Params | None]


@dataclass(frozen=True)
class OwnRun:
    """What a run in Python was told. plan: what was given of it."""

    path: Path
    data: FederatedData
    model: Model
    algorithm: Algorithm
    privacy: Privacy
    metrics: OwnMetrics | None
    plan: Mapping[str, Any]

    def made(
        self,
        task: Task,
        watchers: Sequence[Watcher],
        checkpoint_seconds: float,
        resume: bool,
        overwrite: bool,
    ) -> Made:
        """The run at its end, its lines, and its best model if it had patience."""
        try:
            if resume:
                return self._resumed(task, watchers, checkpoint_seconds)
            return self._new(task, watchers, checkpoint_seconds, overwrite)
        except FedrowsError as error:
            if (message := in_python(str(error))) != str(error):
                raise type(error)(message) from error
            raise

    def _settings(self, task: Task, plan: Plan) -> Settings:
        return Settings(task, OwnData(), self.algorithm, plan, self.privacy)

    def _new(
        self, task: Task, watchers: Sequence[Watcher], seconds: float, overwrite: bool
    ) -> Made:
        usual = {"clients_per_round": min(50, self.data.clients)}
        settings = self._settings(task, Plan(**{**usual, **self.plan})).resolved()
        if process_group.rank() == 0:
            check_free(self.path, overwrite=overwrite)
        with threads(settings.plan.threads):
            check_clients(settings.plan, self.data)
            simulation = settings.simulation(self.data, self.path)
            simulation.prepare()
            checked_early_stop(simulation)  # before there is a folder
            if not simulation.leads:
                return _followed(simulation)
            config = {**settings.config(), "own": self._own()}
            folder = RunFolder.create(self.path, "run", config, overwrite=overwrite)
            with folder.locked():
                begin(folder, simulation, simulation.evaluator.facts())
                return self._driven(folder, simulation, watchers, seconds)

    def _resumed(self, task: Task, watchers: Sequence[Watcher], seconds: float) -> Made:
        folder = RunFolder.open(self.path, "run")
        settings = self._settings(task, self._stored_plan(folder, task))
        with threads(settings.plan.threads):
            if process_group.rank() > 0:
                simulation = settings.simulation(self.data, self.path)
                go_back_(simulation, folder)
                return _followed(simulation)
            with folder.locked():
                simulation = resumed(folder, settings, self.data)
                return self._driven(folder, simulation, watchers, seconds)

    def _own(self) -> dict[str, Any]:
        return {"model": type(self.model).__name__, "metrics": sorted(self.metrics or {})}

    def _stored_plan(self, folder: RunFolder, task: Task) -> Plan:
        """The plan of the folder with the rounds that are wanted now; no other change goes."""
        config, path = folder.config, self.path
        if (was := config["task"]["name"]) != task.name:
            raise RunFolderError(
                f"The data and the module are {task.name}, but {path} is a run of {was}: give it "
                "the same ones, or start a new run with --out."
            )
        if config.get("own") != self._own():
            raise refuse_change("metrics", self._own(), config.get("own"), path)
        own = {"name": self.algorithm.name, **asdict(self.algorithm)}
        stored = {key: value for key, value in config["algorithm"].items() if key in own}
        for name, wanted in own.items():
            if stored.get(name) != wanted:
                option = "algorithm" if name == "name" else f"{self.algorithm.name}'s {name}"
                raise refuse_change(option, wanted, stored.get(name), path)
        if (config.get("privacy") is not None) != self.privacy.private:
            was = "some" if config.get("privacy") else "none"
            raise refuse_change("privacy", self.privacy.privacy, was, path)
        for name, was in (config.get("privacy") or {}).items():
            wanted = self.privacy.config().get(name)
            if name != "max_epsilon" and wanted != was:
                raise refuse_change(name, wanted, was, path)
        plan = Plan(**config["plan"])
        wanted_plan = replace(plan, **self.plan)
        for name in self.plan:
            was, wanted = getattr(plan, name), getattr(wanted_plan, name)
            same = was == wanted or name == "rounds" or (name == "device" and wanted == "auto")
            if not same:
                raise refuse_change(name, wanted, was, path)
        check_longer(plan, wanted_plan.rounds, path)
        return replace(plan, rounds=wanted_plan.rounds)

    def _driven(
        self,
        folder: RunFolder,
        simulation: Simulation,
        watchers: Sequence[Watcher],
        seconds: float,
    ) -> Made:
        keeper = InFolder(folder, simulation, seconds)
        with keeper.saying_what_is_kept("simulate(…, resume=True)"):
            drive(simulation, keeper, watchers)
        lines = folder.lines()
        if not (self.path / BEST).exists():
            return simulation, lines, None
        checkpoint.restore_(simulation, self.path / BEST)
        return simulation, lines, simulation.progress.whole()


def check_folder(out: str | Path | None, resume: bool, overwrite: bool) -> None:
    """Raises a PlanError if what is said of the folder of a run contradicts itself."""
    if resume and overwrite:
        raise PlanError("overwrite and resume cannot be used together: choose one.")
    if out is None and (resume or overwrite):
        raise PlanError(
            f"{'resume' if resume else 'overwrite'} is True, but no folder is named: name it, as "
            'in out="runs/mine".'
        )


def in_python(sentence: str) -> str:
    """A message with the words of Python for the flags of the command line."""
    for flag, word in WORDS.items():
        sentence = sentence.replace(flag, word)
    return sentence


def _followed(simulation: Simulation) -> Made:
    """Trains what falls to a rank other than 0."""
    for _ in simulation:
        pass
    return simulation, [], None
