"""What the runs of a task say of a claim, with the numbers.

A factor of speed holds if ours is at least as large; where the slower algorithm did not reach the
target its last round counts, and the factor is a lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrows.measure.summary import METRICS, display, show_rounds
from fedrows.paper.cells import ids
from fedrows.paper.evaluated_task import EvaluatedTask
from fedrows.paper.task_runs import RunGroup

SUB, CENTRAL = "fedsubavg", "centralsgd"


@dataclass(frozen=True)
class Verdict:
    """What the runs say of a claim."""

    holds: bool
    numbers: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class TaskRuns:
    """All runs of a task."""

    task: EvaluatedTask
    blocks: dict[str, RunGroup]
    by_k: RunGroup

    @property
    def paper(self) -> RunGroup:
        """The runs at the paper's rates."""
        return self.blocks["paper"]

    @property
    def scaffold(self) -> str:
        """The Scaffold that the paper used here."""
        return "scaffold" if "scaffold" in self.task.rounds else "scaffoldapprox"

    @property
    def variants(self) -> list[str]:
        """FedAvg and its variants."""
        return ["fedavg", "fedprox", self.scaffold]

    @property
    def federated(self) -> list[str]:
        """Whom FedSubAvg is compared with, but for CentralSGD."""
        return [*self.variants, "fedadam"]


Judge = Callable[[TaskRuns], Verdict]


def sooner(others: Callable[[TaskRuns], list[str]], factor: float = 1.0) -> Judge:
    """FedSubAvg reaches the target before all others, by a factor.

    Where nobody reaches it, and no factor is claimed, the best value decides.
    """

    def judge(sets: TaskRuns) -> Verdict:
        block, names = sets.paper, others(sets)
        if factor == 1 and all(block.first(name) is None for name in (SUB, *names)):
            best = _best(block, names, sets.task.metric)
            shown = bests(block, [SUB, *names], sets.task.metric)
            return _verdict(block, best, [SUB, *names], f"nobody reaches the target; best: {shown}")
        ratios = [_ratio(block, name, SUB) for name in names]
        right = all(_before(block, name, SUB, factor) for name in names)
        texts = (
            f"{_short(name)} {show_rounds(block.entries[name])}{_times(block, name, ratio)}"
            for name, ratio in zip(names, ratios, strict=True)
        )
        return _verdict(block, right, [SUB, *names], f"{_rounds(block, SUB)}; {', '.join(texts)}")

    return judge


def always_ahead(sets: TaskRuns) -> Verdict:
    """FedSubAvg is ahead of everybody at every evaluated round."""
    others = [CENTRAL, *sets.federated]
    behind = sets.paper.behind(SUB, others, sets.task.metric)
    late = {at: names for at, names in behind.items() if names}
    text = f"at {len(behind) - len(late)} of {len(behind)} evaluated rounds"
    if late:
        who = [name for name in others if any(name in names for names in late.values())]
        text += f"; at round {', '.join(map(str, late))} behind {', '.join(map(_short, who))}"
    return _verdict(sets.paper, not late, [SUB, *others], text)


def only_one_there(others: Callable[[TaskRuns], list[str]]) -> Judge:
    """FedSubAvg reaches the target, and the others do not."""

    def judge(sets: TaskRuns) -> Verdict:
        block, names = sets.paper, others(sets)
        right = block.first(SUB) is not None and all(block.first(name) is None for name in names)
        shown = [SUB, *names]
        return _verdict(block, right, shown, ", ".join(_rounds(block, name) for name in shown))

    return judge


def first_is_adam(sets: TaskRuns) -> Verdict:
    """FedAdam reaches the target before every other federated algorithm."""
    right = all(_before(sets.paper, name, "fedadam") for name in (*sets.variants, SUB))
    shown = ["fedadam", SUB]
    return _verdict(sets.paper, right, shown, ", ".join(_rounds(sets.paper, n) for n in shown))


def highest(metric: str) -> Judge:
    """FedSubAvg's best value is the highest of the federated algorithms."""

    def judge(sets: TaskRuns) -> Verdict:
        block, names = sets.paper, [SUB, *sets.federated]
        right = _best(block, sets.federated, metric)
        return _verdict(block, right, names, bests(block, names, metric))

    return judge


def below_central(sets: TaskRuns) -> Verdict:
    """CentralSGD's best AUC is above FedSubAvg's."""
    block, metric = sets.paper, sets.task.metric
    sub, central = block.best(SUB, metric), block.best(CENTRAL, metric)
    right = sub is not None and central is not None and central > sub
    gap = "" if sub is None or central is None else f" ({central - sub:+.3f})".replace("-", "−")
    return _verdict(block, right, [SUB, CENTRAL], bests(block, [CENTRAL, SUB], metric) + gap)


def more_is_faster(factor: float = 1.0) -> Judge:
    """The largest K reaches the target before the smallest, by a factor."""

    def judge(sets: TaskRuns) -> Verdict:
        block, names = sets.by_k, _sweep(sets)
        ratio = _ratio(block, names[0], names[-1])
        right = _before(block, names[0], names[-1], factor)
        shown = ", ".join(f"{name}: {show_rounds(block.entries[name])}" for name in names)
        return _verdict(block, right, names, shown + _times(block, names[0], ratio))

    return judge


def much_alike(sets: TaskRuns) -> Verdict:
    """No K needs more than a fifth more rounds than another."""
    names = _sweep(sets)
    rounds = [sets.by_k.first(name) for name in names]
    known = [r for r in rounds if r is not None]
    right = len(known) == len(rounds) and max(known) <= 1.2 * min(known)
    shown = ", ".join(f"{name}: {show_rounds(sets.by_k.entries[name])}" for name in names)
    return _verdict(sets.by_k, right, names, shown)


def _before(block: RunGroup, slow: str, fast: str, factor: float = 1.0) -> bool:
    """Whether one reaches the target and the other not before `factor` times as many rounds."""
    ratio = _ratio(block, slow, fast)
    if ratio is None:
        return False
    return ratio >= factor if factor > 1 else ratio > 1 or block.first(slow) is None


def _ratio(block: RunGroup, slow: str, fast: str) -> float | None:
    """Rounds of the slow / rounds of the fast; None if the fast one did not get there."""
    rounds = block.first(fast)
    return None if rounds is None else (block.first(slow) or block.rounds(slow)) / rounds


def _times(block: RunGroup, slow: str, ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f" ({'> ' if block.first(slow) is None else ''}{ratio:.2f}×)"


def _rounds(block: RunGroup, name: str) -> str:
    return f"{_short(name)} {show_rounds(block.entries[name])}"


def _best(block: RunGroup, others: Sequence[str], metric: str) -> bool:
    """Whether FedSubAvg's best value is better than those of all others."""
    return rank(block, SUB, metric) < min(rank(block, name, metric) for name in others)


def bests(block: RunGroup, names: Sequence[str], metric: str) -> str:
    """Everybody's best value, in words."""
    digits = METRICS[metric][2]
    values = ((name, block.best(name, metric)) for name in names)
    return ", ".join(f"{_short(n)} {'–' if v is None else f'{v:.{digits}f}'}" for n, v in values)


def rank(block: RunGroup, name: str, metric: str) -> float:
    value = block.best(name, metric)
    if value is None:
        return float("inf")
    return -value if METRICS[metric][1] else value


def _sweep(sets: TaskRuns) -> list[str]:
    """The K of the sweep, by name, small to large."""
    return [name for name in sets.by_k.runs if name != CENTRAL]


def _short(name: str) -> str:
    return display(name).replace(" (server-side approximation)", " (approximated)")


def runs_of(block: RunGroup, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(run for name in names for run in ids(block.runs[name]))


def _verdict(block: RunGroup, holds: bool, names: Sequence[str], numbers: str) -> Verdict:
    return Verdict(holds, numbers, runs_of(block, names))
