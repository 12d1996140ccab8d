"""The folder of a deployed run, which outlives its process; and the loop that fills it.

    config.json, data.json, metrics.jsonl, summary.json, report.html   as of any run
    checkpoint.safetensors       where it stands after its last finished round
    registry-N.safetensors       who was there then: nodes, clients, index sets
    rounds.jsonl                 a line per round: who answered, who did not, what was refused
    updates.jsonl, arrivals/     of an asynchronous run: `fedrows/flower/server/update_log.py`

A round counts once its checkpoint is written. Whatever is killed before that, the round is done
again, and clients take back what they had made of it.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import torch

from fedrows import report
from fedrows.errors import FedrowsError, RunFolderError
from fedrows.files.whole import as_json, make_private, write_whole
from fedrows.flower.deployment import Deployment
from fedrows.flower.server.private_sums import PrivateSumFleet
from fedrows.flower.wire.contract import DeployedTask, digest
from fedrows.report.exchange import read_rounds
from fedrows.runs import checkpoint
from fedrows.runs.driver import drive
from fedrows.runs.folder import BEST, CHECKPOINT, CONFIG, DATA, LEDGER, RunFolder
from fedrows.runs.release import write_release
from fedrows.runs.resume import drop_later_lines, go_back_, never_saved
from fedrows.runs.run import TrainingRun
from fedrows.runs.status_file import StatusFile
from fedrows.watch import Observer, RoundReport, RunInfo

ROUNDS, HEAT = "rounds.jsonl", "heat.safetensors"
LOCK_SECONDS = 60.0  # for a predecessor that is being killed


class Journal:
    """The folder of a deployed run: a `Keeper` that saves after every round.

    It is locked from `opened` on, until it is closed.
    """

    due = True

    def __init__(self, folder: RunFolder, deployment: Deployment, lock: ExitStack) -> None:
        self.folder, self.deployment, self._lock = folder, deployment, lock
        self.status: StatusFile | None = None  # from the first round on

    @classmethod
    def opened(cls, path: Path, deployment: Deployment) -> Journal:
        """A new run's folder, or that of one that goes on."""
        if isinstance(deployment.fleet, PrivateSumFleet):
            deployment.fleet.keep_in(path / HEAT)
        goes_on = (path / CONFIG).exists()
        folder = RunFolder.open(path, "run") if goes_on else _created(path, deployment)
        with ExitStack() as lock:
            _lock(folder, lock)
            journal = cls(folder, deployment, lock)
            if deployment.schedule is not None:
                deployment.schedule.fleet.log.keep_in(path)
            if goes_on:
                journal._go_back()
            else:
                journal._begin()
            journal._lock = lock.pop_all()
        return journal

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def _begin(self) -> None:
        """Writes what the folder has before the first round."""
        self.deployment.fleet.run = self.folder.config["run"]
        self.folder.write_json(DATA, self.deployment.evaluator.facts())
        write_whole(self.folder.path / ROUNDS, b"")
        if self.deployment.private is not None:
            self.deployment.private.keep_ledger_(self.folder.path / LEDGER, 0)
        self.save()

    def _go_back(self) -> None:
        """Brings the deployment to where the checkpoint stands; what lies past it is dropped.

        A run that was killed before its first checkpoint begins.
        """
        deployment, path = self.deployment, self.folder.path
        config, rounds = self.folder.config, deployment.plan.rounds
        before = config["plan"]["rounds"]
        if config.get("contract") != digest(deployment.fingerprint_with(before)):
            raise RunFolderError(
                f"{path} is a run of another model, plan or algorithm: choose another folder."
            )
        if self.folder.config.get("metrics", []) != deployment.metrics:
            raise RunFolderError(
                f"{path} is a run with other metrics of its own: leave `metric` as it was, or "
                "choose another folder."
            )
        if never_saved(self.folder):
            self._begin()
            return
        deployment.fleet.run = self.folder.config["run"]
        version = _registry_version(path / CHECKPOINT)
        if version:
            deployment.registry.load_(self._registry(version))
        go_back_(deployment, self.folder)
        drop_later_lines(deployment, self.folder)
        at = deployment.progress.round
        left = [line for line in read_rounds(path / ROUNDS) if line["round"] <= at]
        write_whole(path / ROUNDS, b"".join(map(as_json, left)))
        if rounds != before:  # the run is made longer, or ends earlier
            longer = {"plan": {**config["plan"], "rounds": rounds}}
            config |= {**longer, "contract": digest(deployment.fingerprint)}
            self.folder.write_json(CONFIG, config)

    def _registry(self, version: int) -> Path:
        return self.folder.path / f"registry-{version}.safetensors"

    def lines(self) -> list[dict[str, Any]]:
        return self.folder.lines()

    def append(self, line: dict[str, Any]) -> None:
        self.folder.append(line)

    def save(self) -> None:
        """Makes the present round count."""
        version = self.deployment.registry.version
        if version and not self._registry(version).exists():
            self.deployment.registry.save(self._registry(version))
        self.folder.sync()
        checkpoint.save(self.folder.path / CHECKPOINT, self.deployment)
        if self.deployment.schedule is not None:
            self.deployment.schedule.saved()
        for other in self.folder.path.glob("registry-*.safetensors"):
            if other != self._registry(version):
                with suppress(OSError):
                    other.unlink()

    def keep_best(self, run: TrainingRun) -> None:
        checkpoint.save(self.folder.path / BEST, run)

    def note(self, report: RoundReport) -> None:
        """Adds the round to rounds.jsonl, which has more of it than observers are told."""
        assert self.deployment.fleet.last is not None
        with (self.folder.path / ROUNDS).open("ab") as file:
            file.write(as_json(asdict(self.deployment.fleet.last)))
        if self.status is not None:
            fleet, registered = self.deployment.fleet, self.deployment.registry.nodes
            hosted = {name: len(node.clients) for name, node in registered.items()}
            self.status.nodes(report.round, fleet.answers, hosted)
            self.status.round(report)

    def fail(self, why: str) -> None:
        if self.status is not None:
            self.status.end(failed=why)


def carry_out(
    deployment: Deployment,
    journal: Journal,
    observer: Observer,
    stopping: Callable[[], bool] = lambda: False,
) -> None:
    """Runs the rounds that are left, each in the folder before the next one begins.

    stopping: whether the run is to end after the present round; it can go on later.
    """
    path, config = journal.folder.path, journal.folder.config
    at, rounds = deployment.progress.round, deployment.plan.rounds
    observer.begin(RunInfo(path.name, config, rounds, at, path))
    journal.status = status = StatusFile(path, at, rounds, private=True)
    tell = deployment.fleet.notice

    def notice(text: str) -> None:
        status.notice(text)
        tell(text)

    deployment.fleet.notice = notice
    deployment.fleet.records.event = observer.event
    done = drive(deployment, journal, [observer], stopping)
    if deployment.stopped:
        status.end(stopped=deployment.stopped)
    write_release(journal.folder, deployment)
    if journal.lines():  # none if it was stopped before its first evaluation
        report.write_summary(path)
        with suppress(ImportError):
            observer.event("report", {"path": str(report.write(path))})
    observer.end(done=done)


def _created(path: Path, deployment: Deployment) -> RunFolder:
    """A new run's folder, with what it was begun with."""
    algorithm = deployment.algorithm
    config = {
        "task": _task_facts(deployment.contract.task, deployment.config),
        "algorithm": {"name": algorithm.name, **asdict(algorithm)},
        "plan": asdict(deployment.plan),
        "deploy": asdict(deployment.contract.options)
        | {"privacy": deployment.contract.privacy.privacy},
        "run": secrets.token_hex(8),
        "contract": digest(deployment.fingerprint),
        **({"metrics": deployment.metrics} if deployment.metrics else {}),
        "torch": torch.__version__,
    }
    make_private(path)  # it has who was asked and what was refused
    return RunFolder.create(path, "run", config)


def _task_facts(task: DeployedTask, config: Mapping[str, Any]) -> dict[str, Any]:
    """A task as config.json has it, so that `fedrows export` finds its data and its model."""
    home = sys.modules.get(getattr(task.model, "__module__", ""))
    names = [name for name, value in vars(home).items() if value is task] if home else []
    reference = f"{home.__name__}:{names[0]}" if home and names else None
    own = {key: value for key, value in config.items() if key.startswith(f"{task.name}-")}
    return {"name": task.name, "reference": reference, "config": own}


def _registry_version(path: Path) -> int:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return int(file.get_tensor("fleet/registry"))
    except (OSError, safetensors.SafetensorError) as error:
        raise RunFolderError(
            f"{path} is missing or damaged: start the run in another folder."
        ) from error


def _lock(folder: RunFolder, until_closed: ExitStack) -> None:
    """Takes the folder; a predecessor that is being killed gets time to go."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            until_closed.enter_context(folder.locked())
            return
        except FedrowsError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
