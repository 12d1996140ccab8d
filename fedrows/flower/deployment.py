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
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from fedrows import report
from fedrows.data.federation import FederatedData
from fedrows.data.personal import in_one_row
from fedrows.errors import FedrowsError, PlanError, RunFolderError
from fedrows.files.whole import as_json, make_private, write_whole
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.noisy_fleet import private_fleet
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.contract import Contract, DeployedTask, digest
from fedrows.flower.wire.transport import Transport
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.own_metrics import absolute, load_metrics
from fedrows.privacy.relations import warning
from fedrows.report.exchange import read_rounds
from fedrows.runs import checkpoint
from fedrows.runs.driver import drive
from fedrows.runs.folder import BEST, CHECKPOINT, CONFIG, DATA, LEDGER, RunFolder
from fedrows.runs.release import write_release
from fedrows.runs.resume import drop_later_lines, go_back_, never_saved
from fedrows.runs.run import TrainingRun
from fedrows.runs.status_file import StatusFile
from fedrows.server import begin, rounds
from fedrows.watch import Observer, RoundReport, RunInfo

ROUNDS, HEAT = "rounds.jsonl", "heat.safetensors"
LOCK_SECONDS = 60.0  # for a predecessor that is being killed


class Deployment:
    """One deployed run: iterate over it to run its rounds."""

    notes: Sequence[str] = ()
    chunks: tuple[int, int] | None = None  # nodes cut their own cohorts

    def __init__(
        self, contract: Contract, transport: Transport, config: Mapping[str, Any], log: Any = print
    ) -> None:
        self.contract = contract
        self.told = dict(config)
        self.plan, self.algorithm = contract.plan, contract.algorithm
        data = in_one_row(contract.task.server(config))
        self.model = contract.model(data)
        given = str(config.get("metric", "")).split(",")  # on the server alone: nodes import none
        self.metrics = [absolute(text.strip()) for text in given if text.strip()]
        self.evaluator = Evaluator(self.model, data, self.plan, load_metrics(self.metrics))
        options = contract.options
        self.registry = Registry(
            self.model.schema,
            self.plan.weighting,
            EnrolmentLimits(
                options.max_clients, options.max_examples, options.max_registration * 2**20
            ),
            frozenset(data.local),
            sets_known=not contract.secret,
            weight_quantile=self.plan.weight_quantile,
        )
        self._data = data
        self.fingerprint = contract.fingerprint(self.model, data)
        parts = (contract, self.model.schema, self.registry, transport, self.fingerprint, "", log)
        self.fleet = _private(parts, config, data) if contract.secret else FlowerFleet(*parts)
        self.schedule = None  # a deployment goes by the real time
        self.private = self.fleet if isinstance(self.fleet, PrivateFlowerFleet) else None
        self.stopped = ""  # why the run ended before its last round, if it did
        self.progress = begin(self.model, self.algorithm, self.plan, frozenset(data.local))
        self.seconds = 0.0
        self._rejected: dict[str, int] = {}  # as far as observers know

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

    def fingerprint_with(self, rounds: int) -> str:
        """The fingerprint of the same run with another number of rounds."""
        shorter = replace(self.contract, plan=replace(self.plan, rounds=rounds))
        return shorter.fingerprint(self.model, self._data)

    def end_(self, why: str) -> None:
        """Ends the run after the present round."""
        self.stopped = why

    def _may_go_on(self) -> bool:
        """Whether another round would spend no more privacy than there is."""
        if self.private is not None and self.progress.round < self.plan.rounds:
            self.stopped = self.stopped or self.private.exceeds(self.progress.round + 1)
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

    def round_report(self, seconds: Mapping[str, float]) -> RoundReport:
        """Returns what happened in the last round; its own phases are the fleet's to measure."""
        last = self.fleet.last
        assert last is not None
        last.seconds |= {phase: seconds.get(phase, 0.0) for phase in ("evaluate", "save")}
        last.resident = _resident()
        before, self._rejected = self._rejected, dict(self.fleet.rejected)
        new = {why: count - before.get(why, 0) for why, count in self._rejected.items()}
        return RoundReport(
            last.round,
            last.asked,
            last.answered,
            sum(map(len, last.dropped.values())),
            {why: count for why, count in new.items() if count > 0},
            last.bytes_down,
            last.bytes_up,
            last.seconds,
            self.fleet.records.reports(),
        )

    def cut_(self, clients: int, at_a_time: int) -> None:
        """Nothing: nodes cut their own cohorts."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next round depends on, by a name of its own."""
        tensors = self.progress.tensors()
        tensors["fleet/accepted"] = self.registry.accepted()
        tensors["fleet/registry"] = torch.tensor([self.registry.version])
        return tensors

    def restore_(self, tensors: Mapping[str, Tensor], round_: int, seconds: float) -> None:
        """Goes back to where a run stood: the next round is round_ + 1."""
        for name, tensor in self.tensors().items():
            if not name.startswith("fleet/"):
                tensor.copy_(tensors[name])
        for one, tag in zip(self.registry.clients, tensors["fleet/accepted"].tolist(), strict=True):
            one.accepted = tag
        self.progress.round = round_
        self.seconds = seconds


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
        if isinstance(deployment.fleet, PrivateFlowerFleet):
            deployment.fleet.keep_in(path / HEAT)
        there = (path / CONFIG).exists()
        folder = RunFolder.open(path, "run") if there else _created(path, deployment)
        with ExitStack() as lock:
            _lock(folder, lock)
            journal = cls(folder, deployment, lock)
            if there:
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
    report.write_summary(path)
    with suppress(ImportError):
        observer.event("report", {"path": str(report.write(path))})
    observer.end(done=done)


def _created(path: Path, deployment: Deployment) -> RunFolder:
    """A new run's folder, with what it was begun with."""
    algorithm = deployment.algorithm
    config = {
        "task": _task_facts(deployment.contract.task, deployment.told),
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


def _private(parts: Any, config: Mapping[str, Any], data: FederatedData) -> PrivateFlowerFleet:
    """The fleet of a private run, which must know the nodes' keys beforehand."""
    if not config.get("peers"):
        raise PlanError(
            "A private run needs the nodes' public keys: name the file of them as `peers` in the "
            "run's configuration."
        )
    contract, *_, log = parts
    if contract.privacy.min_contributors > 1 and (said := warning(data)):
        log(said)
    noise, peers = contract.privacy.noise_in_sum, Path(str(config["peers"]))
    return private_fleet(parts, noise, peers, data.groups)


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
