"""A comparison: a study of algorithms over seeds whose every run is a run folder of its own.

    DIR/                    config.json, data.json, the metrics of all runs, summary and report
    DIR/runs/NAME-seedN/    the folder of one run

Unlike a run of other studies, each can be stopped after any round and resumed to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError
from fedrows.measure.summary import Target
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT, CONFIG, DATA, RUNS, RunFolder
from fedrows.runs.resume import begin, resumed
from fedrows.runs.settings import Settings, from_config
from fedrows.simulation import Simulation
from fedrows.task import Task

COMPARE = "compare"  # the kind of folder


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison, and where it is kept."""

    label: str
    path: Path
    settings: Settings

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        if not (self.path / CHECKPOINT).exists():
            return False
        lines, rounds = self.lines(), self.settings.plan.rounds
        at = checkpoint.standing(self.path / CHECKPOINT).round
        return at == rounds and bool(lines) and lines[-1]["round"] == rounds

    def lines(self) -> list[dict[str, Any]]:
        """The metrics so far; none before the run has a folder."""
        return RunFolder.open(self.path, "run").lines() if self.path.is_dir() else []

    def opened(self, data: FederatedData, again: str) -> tuple[RunFolder, Simulation]:
        """The run in its folder: new, or where it stands. again: the command that goes on."""
        if not (self.path / CHECKPOINT).exists():
            simulation = self.settings.simulation(data, self.path)
            simulation.prepare()
            folder = RunFolder.create(self.path, "run", self.settings.config(), overwrite=True)
            begin(folder, simulation, simulation.evaluator.facts())
            return folder, simulation
        folder = RunFolder.open(self.path, "run")
        [stored] = from_config(folder.config, self.path).values()
        rounds = self.settings.plan.rounds
        if replace(stored, plan=replace(stored.plan, rounds=rounds)) != self.settings:
            raise RunFolderError(
                f"{self.path} holds another run than its comparison says: delete it, then go on "
                f"with `{again}`."
            )
        return folder, resumed(folder, self.settings, data)


@dataclass(frozen=True)
class Comparison:
    """A comparison in its folder."""

    folder: RunFolder
    settings: Mapping[str, Settings]  # algorithm → its run, whatever the seed
    seeds: list[int]
    target: Target

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

    def runs(self) -> list[ComparedRun]:
        """Every run, a seed at a time."""
        return [
            ComparedRun(
                f"{name} seed {seed}",
                self.folder.path / RUNS / f"{name}-seed{seed}",
                replace(settings, plan=replace(settings.plan, seed=seed)),
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

    def gather(self) -> None:
        """Writes the metrics of all runs into the comparison's own folder."""
        self.folder.keep_lines(line for run in self.runs() for line in run.lines())


def config_of(
    settings: Mapping[str, Settings], plan: Plan, seeds: list[int], target: Target
) -> dict[str, Any]:
    """A comparison as config.json has it. plan: before any algorithm has its say."""
    shared = asdict(plan)
    entries = []
    for one in settings.values():
        own = {key: value for key, value in asdict(one.plan).items() if value != shared[key]}
        entries.append({**one.config()["algorithm"], **own})
    del shared["seed"]
    first = next(iter(settings.values()))
    return {
        "task": first.config()["task"],
        "algorithms": entries,
        "plan": shared,
        "seeds": seeds,
        "target": asdict(target),
        **({"privacy": first.privacy.config()} if first.privacy.private else {}),
        "torch": torch.__version__,
    }
