"""When a run stops before its last round: a metric has not become better for a while.

All of it follows from the lines of metrics.jsonl, so a resumed run stops where a straight one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fedrows.errors import PlanError
from fedrows.measure.metric_choice import Line, about, number
from fedrows.plan import Plan


@dataclass(frozen=True)
class EarlyStop:
    """A metric to watch, and the evaluations that it may take to become better."""

    metric: str
    patience: int

    @classmethod
    def of(cls, plan: Plan) -> EarlyStop | None:
        if plan.patience is None:
            return None
        return cls(plan.watch_metric, plan.patience)

    def best(self, lines: Sequence[Line]) -> Line | None:
        """The first line with the best value; None if no line has one."""
        sign = 1 if about(self.metric)[1] else -1
        known = [line for line in lines if number(line.get(self.metric)) is not None]
        return max(known, key=lambda line: sign * line[self.metric], default=None)

    def over(self, lines: Sequence[Line]) -> str:
        """Why the run is to end after these evaluations; "" if it is to go on."""
        best = self.best(lines)
        since = [line for line in lines if best is None or line["round"] > best["round"]]
        if len(since) < self.patience:
            return ""
        at = "never measured" if best is None else f"best after round {best['round']}"
        return f"{self.metric} was {at}, and no better in {len(since)} evaluations since"

    def check(self, line: Line) -> None:
        """Raises a PlanError if what is watched is not measured."""
        if self.metric not in line:
            remedy = "hold out validation examples, or leave patience out"
            if not self.metric.startswith("validation_"):
                remedy = "watch another metric"
            raise PlanError(
                f"patience is {self.patience}, but the run does not measure {self.metric}: "
                f"{remedy}."
            )
