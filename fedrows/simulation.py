"""A simulated run as a loop that the caller owns; `fedrows.simulate` does it in one call.

simulation = Simulation(data, model, algorithm, plan)
for progress in simulation:
    if simulation.due:
        print(progress.round, simulation.evaluate())
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts
from fedrows.errors import PlanError
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.server import Progress, begin, rounds
from fedrows.simulator import fast_paths, process_group
from fedrows.simulator.argument_checks import check_algorithm, check_data_and_module
from fedrows.simulator.asynchronous import AsyncRounds, check_virtual, no_virtual_time
from fedrows.simulator.chunks import Chunks
from fedrows.simulator.counted_start import check_counted, count_labels, start_counted_
from fedrows.simulator.cpu_threads import usual_threads
from fedrows.simulator.fast_paths import FastPaths
from fedrows.simulator.simulated_fleet import SimulatedFleet, check_fits
from fedrows.simulator.virtual_time import Clock, RunSchedule, WaitingRounds
from fedrows.watch.observer import RoundReport

if TYPE_CHECKING:
    from fedrows.privacy.simulated import PrivateSimulatedFleet


class Simulation:
    """One run of one algorithm: iterate over it to run its rounds.

    In processes that torchrun has started, each trains a part of every cohort, and all of them
    have the same model after every round (see `torchrun_fleet`). `paths` are the fast paths to
    take: `fast_paths.PLAIN` for none, and all that the run may take if not given. `metrics` are
    the user's own, by name (see `measure.own_metrics`).
    """

    def __init__(
        self,
        data: FederatedData,
        model: Model,
        algorithm: Algorithm,
        plan: Plan,
        privacy: Privacy | None = None,
        folder: Path | None = None,
        paths: FastPaths | None = None,
        metrics: OwnMetrics | None = None,
    ) -> None:
        check_data_and_module(data, model)
        check_algorithm(algorithm)
        if process_group.several():
            plan = replace(plan, device=process_group.device_of(plan.torch_device))
        algorithm = algorithm.for_cohorts(plan.buffer_size)
        self.model, self.algorithm, self.plan = model, algorithm, plan
        self._federation = data
        self.evaluator = Evaluator(model, data, plan, metrics)
        check_fits(algorithm, data)
        if algorithm.pooled:
            data = data.pooled()
            plan = replace(
                plan,
                clients_per_round=1,
                batch_size=plan.clients_per_round * plan.batch_size,
                batches="draw",
            )
        self._running = plan  # what the rounds see; the same as the plan unless pooled
        self.paths = fast_paths.fastest(model, algorithm, data, plan) if paths is None else paths
        self.simulated = fast_paths.fleet(model, algorithm, data, plan, self.paths)
        private = None if privacy is None or not privacy.private else privacy
        _check_bounds(plan, algorithm, private)
        if private is not None and data.labels == "ranking":
            raise PlanError(
                f"privacy is {private.privacy!r}, but for ranking a client asks for rows that it "
                "draws anew in every round, which no mode of privacy is made for: leave it out."
            )
        self.ranked = fast_paths.several_processes(self.simulated, private is not None)
        _check_patience(plan, private, self.ranked is not None)
        self.private = None if private is None else _behind(self.simulated, private)
        self.fleet = self.private or self.ranked or self.simulated  # what the server sees
        self.stopped = ""  # why a run ended before its last round, if it did
        self._biases = check_counted(model, plan) if plan.start == "counted" else None
        self.progress = begin(model, algorithm, plan, data.local, folder)
        self.schedule = self._schedule(private, data.local) if plan.in_virtual_time else None
        if self.private is None:  # a private run counts when it is prepared
            self._start_counted_()
        self.seconds = 0.0  # spent on rounds, evaluations not counted

    def __iter__(self) -> Iterator[Progress]:
        if self.ranked is not None and not self.ranked.checked:
            self.ranked.check(self.progress.params, self.progress.round)
        self._start_counted_()
        running = self.rounds()
        while self._may_go_on():
            since = time.perf_counter()
            progress = next(running, None)
            self.seconds += time.perf_counter() - since
            if progress is None:
                return
            yield progress

    def rounds(self) -> Iterator[Progress]:
        """The rounds that are left, and nothing beside them: no clock, and no end to what is spent.

        Iterate over the simulation itself unless you measure.
        """
        plan, progress = self._running, self.progress
        run_round = fast_paths.round_runner(
            self.fleet, self.simulated, plan, progress, self.paths, self.schedule
        )
        return rounds(self.fleet, plan, progress, run_round)

    def _schedule(self, private: Privacy | None, local: frozenset[str]) -> RunSchedule:
        """Who trains when, in virtual time."""
        plan = self._running
        if private is not None or self.ranked is not None:
            why = f"privacy {private.privacy!r}" if private else "several processes"
            raise no_virtual_time(plan, f"with {why} a run has no virtual time")
        check_virtual(self.algorithm, plan)
        clock = Clock(self.simulated, plan)
        schedule: RunSchedule = WaitingRounds(clock)
        if plan.mode == "async":
            schedule = AsyncRounds(clock, self.progress.params.without(local))
        if plan.clock != "none":  # who takes part more often also counts for more of a row
            self.simulated.count_heat_(self.simulated.weights * schedule.participation())
        return schedule

    def prepare(self) -> None:
        """Does what must be done before the first round, and may find that there is to be none.

        A private run counts heat and checks its sums; several processes see whether they agree.
        """
        if self.private is not None:
            self.private.prepare()
        self._start_counted_()
        if self.ranked is not None:
            self.ranked.check(self.progress.params, self.progress.round)

    def end_(self, why: str) -> None:
        """Ends the run after the present round."""
        self.stopped = why

    def _start_counted_(self) -> None:
        """Sets the biases of a counted start, once; what is restored has them already."""
        if self._biases is not None and self.progress.round == 0:
            data, private = self._federation, self.private
            counts = count_labels(data) if private is None else _count_privately(private, data)
            start_counted_(self.progress.params, self._biases, data, counts, self.plan)
        self._biases = None

    def _may_go_on(self) -> bool:
        """Whether another round would spend no more privacy than there is."""
        if self.private is not None and self.progress.round < self.plan.rounds:
            self.stopped = self.stopped or self.private.exceeds()
        return not self.stopped

    @property
    def notes(self) -> list[str]:
        """Returns what turned out to be odd while the run went."""
        return self.simulated.notes

    @property
    def chunks(self) -> tuple[int, int] | None:
        """How cohorts are cut, once that was measured: clients in a chunk, chunks at a time."""
        chunks = self.simulated.chunks
        return None if chunks is None else (chunks.clients, chunks.at_a_time)

    def cut_(self, clients: int, at_a_time: int) -> None:
        """Cuts cohorts as an earlier part of the run did: another way would change last bits."""
        self.simulated.chunks = Chunks(clients, at_a_time)

    @property
    def leads(self) -> bool:
        """Whether this process is the one to print and to write; so it is if it is alone."""
        return process_group.rank() == 0

    @property
    def due(self) -> bool:
        """Whether the plan has an evaluation after the present round."""
        at = self.progress.round
        return at % self.plan.evaluate_every == 0 or at == self.plan.rounds

    def evaluate(self) -> dict[str, Any]:
        """The present model's metrics, as a line of metrics.jsonl."""
        return {
            "algorithm": self.algorithm.name,
            "seed": self.plan.seed,
            "round": self.progress.round,
            **self.evaluator(self.progress.whole()),
            # Pooled data have left their clients: there is nothing more to send them.
            "bytes_down": None if self.algorithm.pooled else self.progress.bytes_down,
            "bytes_up": None if self.algorithm.pooled else self.progress.bytes_up,
            "seconds": self.seconds,
            **({} if self.schedule is None else self.schedule.clock.line()),
            **({} if self.private is None else self.private.line()),
        }

    def round_report(self, seconds: Mapping[str, float]) -> RoundReport:
        """Returns what happened in the last round, in which everyone who is asked answers."""
        pooled, progress = self.algorithm.pooled, self.progress
        asked = self._running.buffer_size
        return RoundReport(
            round=progress.round,
            asked=asked,
            answered=asked,
            bytes_down=None if pooled else progress.bytes_down * asked,
            bytes_up=None if pooled else progress.bytes_up * asked,
            seconds=seconds,
        )

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that the next round depends on, by a name of its own; not copies."""
        tensors = self.progress.tensors()
        kept = self.simulated.kept
        if kept is not None:
            tensors |= {f"clients/table/{name}": x for name, x in kept.rows.items()}
            tensors |= {f"clients/dense/{name}": x for name, x in kept.dense.items()}
        return tensors

    def restore_(self, tensors: Mapping[str, Tensor], round_: int, seconds: float) -> None:
        """Goes back to where a run stood: the next round is round_ + 1."""
        for name, own in self.tensors().items():
            own.copy_(tensors[name])
        self._biases = None
        self.progress.round = round_
        self.seconds = seconds


def _check_bounds(plan: Plan, algorithm: Algorithm, private: Privacy | None) -> None:
    """Raises a PlanError if single clients are to be bounded, or counted, where nobody may."""
    for name in ("row_clip", "weight_quantile"):
        if getattr(plan, name) is not None and (private is not None or algorithm.pooled):
            why = f"privacy {private.privacy!r}" if private else f"the algorithm {algorithm.name}"
            raise PlanError(
                f"{name.replace('_', '-')} is {getattr(plan, name)}, but with {why} the server "
                "does not see single clients: leave it out."
            )


def _count_privately(fleet: PrivateSimulatedFleet, data: FederatedData) -> LabelCounts:
    """The counters of a counted start, counted as the mode counts heat, and put on the ledger."""
    from fedrows.privacy.heat_of_mode import labels_of_mode
    from fedrows.privacy.randomness import fresh

    counts, entries = labels_of_mode(fleet.privacy, data, fresh)
    fleet.accounts.spend_(0, entries)
    return counts


def _check_patience(plan: Plan, private: Privacy | None, several: bool) -> None:
    """Raises a PlanError if a run cannot go back to its best model."""
    if plan.patience is not None and (private is not None or several):
        why = f"privacy {private.privacy!r}" if private else "several processes"
        raise PlanError(
            f"patience is {plan.patience}, but with {why} a run has none: leave it out."
        )


def _behind(fleet: SimulatedFleet, privacy: Privacy) -> PrivateSimulatedFleet:
    """The fleet behind a mode of privacy, whose protocols need more packages than a clear run."""
    from fedrows.privacy.simulated import PrivateSimulatedFleet

    return PrivateSimulatedFleet(fleet, privacy)


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """PyTorch's threads while a run goes; of several processes, each has its part of the cores."""
    before, usual = torch.get_num_threads(), 1 if count else usual_threads()
    torch.set_num_threads(count or (process_group.cores() if process_group.several() else usual))
    try:
        yield
    finally:
        torch.set_num_threads(before)
