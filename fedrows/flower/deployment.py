"""A deployed run: it satisfies `TrainingRun`, as a simulation does, with clients on nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.personal import in_one_row
from fedrows.errors import PlanError
from fedrows.flower.server.async_fleet import AsyncFlowerFleet
from fedrows.flower.server.buffered_rounds import BufferedRounds
from fedrows.flower.server.exchange import Exchange
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.group_fleet import GroupFleet
from fedrows.flower.server.grouped_rounds import GroupedRounds
from fedrows.flower.server.label_counting import DeployedStart
from fedrows.flower.server.noisy_fleet import NoisyFlowerFleet
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.private_sums import PrivateSumFleet
from fedrows.flower.server.registry import EnrolmentLimits, Registry
from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.transport import Transport
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.own_metrics import absolute, load_metrics
from fedrows.privacy.accounts import BudgetSpentError
from fedrows.privacy.relations import warning
from fedrows.rows.params import Params
from fedrows.server import PlainRounds, begin, rounds
from fedrows.watch import RoundReport


class Deployment:
    """One deployed run: iterate over it to run its rounds."""

    notes: Sequence[str] = ()
    chunks: tuple[int, int] | None = None  # nodes cut their own cohorts

    def __init__(
        self, contract: Contract, transport: Transport, config: Mapping[str, Any], log: Any = print
    ) -> None:
        self.contract = contract
        self.config = dict(config)
        self.plan, self.algorithm = contract.plan, contract.algorithm
        data = in_one_row(contract.task.server(config))
        self.model = contract.model(data)
        names = str(config.get("metric", "")).split(",")  # on the server alone: nodes import none
        self.metrics = [absolute(text.strip()) for text in names if text.strip()]
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
            draws=contract.draws(data),
        )
        self._data = data
        self.fingerprint = contract.fingerprint(self.model, data)
        parts = (contract, self.registry, transport, self.fingerprint, log)
        self.fleet = _private(parts, config, data) if contract.secret else _clear(parts)
        self.private = self.fleet if isinstance(self.fleet, PrivateSumFleet) else None
        self.stopped = ""  # why the run ended before its last round, if it did
        local = frozenset(data.local)
        self.progress = begin(self.model, self.algorithm, self.plan, local)
        self.schedule = _schedule(self.fleet, self.progress.params.without(local))
        counted = self.plan.start == "counted"
        self.start = DeployedStart(self.fleet, self.model, data, log) if counted else None
        self.seconds = 0.0
        self._rejected: dict[str, int] = {}  # as far as observers know

    def __iter__(self) -> Iterator[Exchange]:
        run_round = PlainRounds(self.fleet, self.plan, self.progress, self.schedule)
        running = rounds(self.fleet, self.plan, self.progress, run_round)
        while self._may_go_on():
            since = time.perf_counter()
            if self.start is not None and self.progress.round == 0:
                self.start.set_(self.progress.params)
            try:
                progress = next(running, None)
            except BudgetSpentError as error:  # as when a round was tried again
                if not self.progress.round:
                    raise
                self.stopped = str(error)
                return
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
            last.buffer,
        )

    def cut_(self, clients: int, at_a_time: int) -> None:
        """Nothing: nodes cut their own cohorts."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next round depends on, by a name of its own."""
        tensors = self.progress.tensors()
        tensors["fleet/accepted"] = self.registry.accepted()
        tensors["fleet/registry"] = torch.tensor([self.registry.version])
        if self.start is not None:
            tensors["fleet/prior"] = torch.tensor(self.start.prior, dtype=torch.float64)
        return tensors

    def restore_(self, tensors: Mapping[str, Tensor], round_: int, seconds: float) -> None:
        """Goes back to where a run stood: the next round is round_ + 1."""
        for name, tensor in self.tensors().items():
            if not name.startswith("fleet/"):
                tensor.copy_(tensors[name])
        tags = tensors["fleet/accepted"].tolist()
        for client, tag in zip(self.registry.clients, tags, strict=True):
            client.accepted = tag
        if self.start is not None:
            self.start.restore_(float(tensors["fleet/prior"]))
        self.progress.round = round_
        self.seconds = seconds


def _clear(parts: Any) -> FlowerFleet:
    """The fleet of a run in the clear, which is waited for or not."""
    return (AsyncFlowerFleet if parts[0].plan.mode == "async" else FlowerFleet)(*parts)


def _schedule(fleet: FlowerFleet, shared: Params) -> BufferedRounds | GroupedRounds | None:
    """Who trains when, in a run that is not waited for; None: every round has a new cohort."""
    if isinstance(fleet, AsyncFlowerFleet):
        return BufferedRounds(fleet, shared)
    return GroupedRounds(fleet, shared) if isinstance(fleet, GroupFleet) else None


def _private(parts: Any, config: Mapping[str, Any], data: FederatedData) -> PrivateSumFleet:
    """The fleet of a private run, which must know the nodes' keys beforehand."""
    if not config.get("peers"):
        raise PlanError(
            "A private run needs the nodes' public keys: name the file of them as `peers` in the "
            "run's configuration."
        )
    contract, *_, log = parts
    if contract.privacy.min_contributors > 1 and (caution := warning(data)):
        log(caution)
    fleet: type[PrivateSumFleet] = PrivateFlowerFleet
    if contract.privacy.noise_in_sum:
        fleet = NoisyFlowerFleet
    elif contract.plan.mode == "async":
        fleet = GroupFleet
    return fleet(*parts, peers=Path(str(config["peers"])), groups=data.groups)


def _resident() -> int | None:
    """Bytes of memory that this process really has, where the system tells."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
