"""The interface of a run: what drives, saves and watches it needs no more than this.

`Simulation` and the deployment over Flower both satisfy it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from fedrows.measure.evaluation import Evaluator
from fedrows.plan import Plan
from fedrows.privacy.accounts import Releasable
from fedrows.server import Progress
from fedrows.watch.observer import RoundReport


class PrivateState(Protocol):
    """What a private run remembers beside the model, as its checkpoint needs it."""

    def keep_ledger_(self, path: Path, round_: int) -> None:
        """Keeps the ledger in a file from now on; the run stands after round_."""

    def releasable(self) -> Releasable | None:
        """Returns what may leave beside the model; None if the model has no ε."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors, of whatever shape they have by now."""

    def state(self) -> dict[str, Any]:
        """Returns the rest of it, as JSON."""

    def restore_(
        self, tensors: Mapping[str, Tensor], state: Mapping[str, Any], round_: int
    ) -> None:
        """Goes back to where `tensors` and `state` were taken."""


class SavedSchedule(Protocol):
    """Who trains when, as a checkpoint needs it."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors, of whatever shape they have by now."""

    def state(self) -> dict[str, Any]:
        """Returns the rest of it, as JSON."""

    def restore_(self, tensors: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
        """Goes back to where `tensors` and `state` were taken."""


class TrainingRun(Protocol):
    """A run, simulated or deployed. Iterating over it runs the rounds that are left."""

    @property
    def plan(self) -> Plan:
        """How the run goes."""

    @property
    def progress(self) -> Progress:
        """Where the run stands."""

    @property
    def seconds(self) -> float:
        """Returns the seconds spent on rounds; evaluations are not counted."""

    @property
    def stopped(self) -> str:
        """Returns why the run ended before its last round; "" if it did not."""

    def end_(self, why: str) -> None:
        """Ends the run after the present round, for a reason that `stopped` then has."""

    @property
    def notes(self) -> Sequence[str]:
        """Returns what turned out to be odd while the run went."""

    @property
    def private(self) -> PrivateState | None:
        """What a private run remembers; None in the clear."""

    @property
    def schedule(self) -> SavedSchedule | None:
        """Who trains when; None if every round has a new cohort and waits for it."""

    @property
    def chunks(self) -> tuple[int, int] | None:
        """How cohorts are cut, once that was measured: clients in a chunk, chunks at a time."""

    @property
    def evaluator(self) -> Evaluator:
        """What measures the model."""

    @property
    def due(self) -> bool:
        """Whether the plan has an evaluation after the present round."""

    def __iter__(self) -> Iterator[object]:
        """Runs the rounds that are left, and yields after each."""

    def evaluate(self) -> dict[str, Any]:
        """Returns the present model's metrics, as a line of metrics.jsonl."""

    def round_report(self, seconds: Mapping[str, float]) -> RoundReport:
        """Returns what happened in the last round. seconds: by phase, as the driver measured."""

    def tensors(self) -> dict[str, Tensor]:
        """Returns every tensor that the next round depends on, by name; not copies."""

    def restore_(self, tensors: Mapping[str, Tensor], round_: int, seconds: float) -> None:
        """Goes back to where a run stood: the next round is round_ + 1."""

    def cut_(self, clients: int, at_a_time: int) -> None:
        """Cuts cohorts as an earlier part of the run did: another way would change last bits."""
