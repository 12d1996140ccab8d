"""A deployed run from registered nodes to trained model, in a folder that outlives its process.

    config.json, data.json, metrics.jsonl, summary.json, report.html   as of any run
    checkpoint.safetensors       where it stands after its last finished round
    registry-N.safetensors       who was there then: nodes, clients, index sets
    rounds.jsonl                 a line per round: who answered, who did not, what was refused

A round counts once its checkpoint is written. Whatever is killed before that, the round is done
again, and clients take back what they had made of it.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from fedrows import report
from fedrows.errors import FedrowsError, PlanError, RunFolderError
from fedrows.files.whole import as_json, write_whole
from fedrows.flower.private import PrivateFleet
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.contract import Contract, digest
from fedrows.flower.wire.transport import Transport
from fedrows.measure.evaluation import Evaluator
from fedrows.report.exchange import read_rounds
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT, CONFIG, DATA, RunFolder
from fedrows.server import begin, rounds
from fedrows.watch import Facts, Observer, Run

ROUNDS, HEAT = "rounds.jsonl", "heat.safetensors"
LOCK_SECONDS = 60.0  # for a predecessor that is being killed


class Deployment:
    """One deployed run: iterate over it to run its rounds. Looks like a `Simulation`."""

    def __init__(
        self, contract: Contract, transport: Transport, config: Mapping[str, Any], tell: Any = print
    ) -> None:
        self.contract = contract
        self.plan, self.algorithm = contract.plan, contract.algorithm
        data = contract.task.server(config)
        self.model = contract.model(data)
        self.evaluator = Evaluator(self.model, data, self.plan)
        options = contract.options
        self.registry = Registry(
            self.model.schema,
            self.plan.weighting,
            EnrolmentLimits(options.max_clients, options.max_examples),
            frozenset(data.local),
            sets_known=not contract.secret,
        )
        self.fingerprint = contract.fingerprint(self.model, data)
        parts = (contract, self.model.schema, self.registry, transport, self.fingerprint, "", tell)
        self.fleet = _private(parts, config) if contract.secret else FlowerFleet(*parts)
        self.private = self.fleet if isinstance(self.fleet, PrivateFleet) else None
        self.stopped = ""  # why the run ended before its last round, if it did
        self.progress = begin(self.model, self.algorithm, self.plan, frozenset(data.local))
        self.seconds = 0.0

    def __iter__(self) -> Iterator[Exchange]:
        running = rounds(self.fleet, self.plan, self.progress)
        while self._may_go_on():
            since = time.perf_counter()
            progress = next(running, None)
            self.seconds += time.perf_counter() - since
            if progress is None:
                return
            last = self.fleet.last
            assert last is not None
            yield last

    def _may_go_on(self) -> bool:
        """Whether another round would spend no more privacy than there is."""
        if self.private is not None and self.progress.round < self.plan.rounds:
            self.stopped = self.private.accounts.exceeds(self.progress.round + 1)
        return not self.stopped

    @property
    def due(self) -> bool:
        """Whether the plan has an evaluation after the present round."""
        at = self.progress.round
        return at % self.plan.evaluate_every == 0 or at == self.plan.rounds

    def evaluate(self) -> dict[str, Any]:
        """The present model's metrics, as a line of metrics.jsonl."""
        last = self.fleet.last
        return {
            "algorithm": self.algorithm.name,
            "seed": self.plan.seed,
            "round": self.progress.round,
            **self.evaluator(self.progress.whole()),
            "cohort_loss": last.loss if last else None,
            "bytes_down": self.progress.bytes_down,
            "bytes_up": self.progress.bytes_up,
            "seconds": self.seconds,
            **({} if self.private is None else {"epsilon": self.private.accounts.line()}),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next round depends on, by a name of its own."""
        found = self.progress.tensors()
        found["fleet/accepted"] = self.registry.accepted()
        found["fleet/registry"] = torch.tensor([self.registry.version])
        held = [its.held for _, its in sorted(self.registry.nodes.items())]
        found["fleet/held"] = torch.tensor(held, dtype=torch.int64)
        return found

    def restore_(self, tensors: Mapping[str, Tensor], round_: int, seconds: float) -> None:
        """Goes back to where a run stood: the next round is round_ + 1."""
        for name, mine in self.tensors().items():
            if not name.startswith("fleet/"):
                mine.copy_(tensors[name])
        for one, tag in zip(self.registry.clients, tensors["fleet/accepted"].tolist(), strict=True):
            one.accepted = tag
        nodes = [its for _, its in sorted(self.registry.nodes.items())]
        for its, tag in zip(nodes, tensors["fleet/held"].tolist(), strict=True):
            its.held = tag
        self.progress.round = round_
        self.seconds = seconds


class Journal:
    """The folder of a deployed run."""

    def __init__(self, folder: RunFolder, deployment: Deployment) -> None:
        self.folder, self.deployment = folder, deployment

    @classmethod
    def opened(cls, path: Path, deployment: Deployment) -> Journal:
        """A new run's folder, or that of one that goes on."""
        if isinstance(deployment.fleet, PrivateFleet):
            deployment.fleet.keep_in(path / HEAT)
        if (path / CONFIG).exists():
            folder = RunFolder.open(path, "run")
            journal = cls(folder, deployment)
            _locked(folder)
            journal._go_back()
            return journal
        plan, algorithm = deployment.plan, deployment.algorithm
        run = secrets.token_hex(8)
        config = {
            "task": {"name": deployment.contract.task.name},
            "algorithm": {"name": algorithm.name, **asdict(algorithm)},
            "plan": asdict(plan),
            "deploy": asdict(deployment.contract.options),
            "run": run,
            "contract": digest(deployment.fingerprint),
            "torch": torch.__version__,
        }
        folder = RunFolder.create(path, "run", config)
        _locked(folder)
        folder.write_json(DATA, deployment.evaluator.facts())
        deployment.fleet.run = run
        journal = cls(folder, deployment)
        write_whole(path / ROUNDS, b"")
        journal.save()
        return journal

    def _go_back(self) -> None:
        """Brings the deployment to where the checkpoint stands; what lies past it is dropped."""
        deployment, path = self.deployment, self.folder.path
        was = self.folder.config
        if was.get("contract") != digest(deployment.fingerprint):
            raise RunFolderError(
                f"{path} is a run of another model, plan or algorithm: choose another folder."
            )
        deployment.fleet.run = was["run"]
        version = _registry_version(path / CHECKPOINT)
        if version:
            deployment.registry.load_(self._registry(version))
        checkpoint.restore_(deployment, path / CHECKPOINT)  # type: ignore[arg-type]
        at = deployment.progress.round
        self.folder.keep_lines([line for line in self.folder.lines() if line["round"] <= at])
        kept = [line for line in self.lines() if line["round"] <= at]
        write_whole(path / ROUNDS, b"".join(map(as_json, kept)))

    def _registry(self, version: int) -> Path:
        return self.folder.path / f"registry-{version}.safetensors"

    def save(self) -> None:
        """Makes the present round count."""
        version = self.deployment.registry.version
        if version and not self._registry(version).exists():
            self.deployment.registry.save(self._registry(version))
        self.folder.sync()
        checkpoint.save(self.folder.path / CHECKPOINT, self.deployment)  # type: ignore[arg-type]
        for other in self.folder.path.glob("registry-*.safetensors"):
            if other != self._registry(version):
                with suppress(OSError):
                    other.unlink()

    def note(self, told: Exchange) -> None:
        """Adds a round to rounds.jsonl."""
        with (self.folder.path / ROUNDS).open("ab") as file:
            file.write(as_json(asdict(told)))

    def lines(self) -> list[dict[str, Any]]:
        """The rounds so far; a last line that was cut short is left out."""
        return read_rounds(self.folder.path / ROUNDS)


def carry_out(deployment: Deployment, journal: Journal, observer: Observer) -> None:
    """Runs the rounds that are left, each in the folder before the next one begins."""
    folder, rejected = journal.folder, dict(deployment.fleet.rejected)
    observer.begin(
        Run(
            folder.path.name,
            folder.config,
            deployment.plan.rounds,
            deployment.progress.round,
            folder.path,
        )
    )
    for told in deployment:
        since = time.perf_counter()
        if deployment.due:
            line = deployment.evaluate()
            folder.append(line)
            observer.measured(line)
        evaluated = time.perf_counter()
        journal.save()
        told.seconds |= {"evaluate": evaluated - since, "save": time.perf_counter() - evaluated}
        told.resident = _resident()
        journal.note(told)
        new = {
            why: count - rejected.get(why, 0)
            for why, count in deployment.fleet.rejected.items()
            if count > rejected.get(why, 0)
        }
        rejected = dict(deployment.fleet.rejected)
        dropped = sum(map(len, told.dropped.values()))
        observer.round(
            Facts(
                told.round,
                told.asked,
                told.answered,
                dropped,
                new,
                told.bytes_down,
                told.bytes_up,
                told.seconds,
            )
        )
    if deployment.stopped:
        at = deployment.progress.round
        observer.event("stopped", {"round": at, "why": deployment.stopped})
        if all(line["round"] != at for line in folder.lines()) and at:
            folder.append(deployment.evaluate())
    report.write_summary(folder.path)
    with suppress(ImportError):
        observer.event("report", {"path": str(report.write(folder.path))})
    observer.end(done=True)


def _private(parts: Any, config: Mapping[str, Any]) -> PrivateFleet:
    """The fleet of a private run, which must know the nodes' keys beforehand."""
    if not config.get("peers"):
        raise PlanError(
            "A private run needs the nodes' public keys: name the file of them as `peers` in the "
            "run's configuration."
        )
    return PrivateFleet(*parts, peers=Path(str(config["peers"])))


def _registry_version(path: Path) -> int:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return int(file.get_tensor("fleet/registry"))
    except (OSError, safetensors.SafetensorError) as error:
        raise RunFolderError(
            f"{path} is missing or damaged: start the run in another folder."
        ) from error


def _resident() -> int | None:
    """Bytes of memory that this process really has, where the system tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _locked(folder: RunFolder) -> None:
    """Takes the folder for the rest of this process; a predecessor gets time to go."""
    until = time.monotonic() + LOCK_SECONDS
    while True:
        lock = folder.locked()
        try:
            lock.__enter__()
            _LOCKS.append(lock)
            return
        except FedrowsError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


_LOCKS: list[Any] = []  # held until the process ends
