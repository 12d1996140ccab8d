"""What a search came to: all trials, the chosen values, and the file of rates that keeps them.

`fedrows run` and `compare` read that file with --rates.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedrows.errors import PlanError
from fedrows.files.whole import as_json, reason, write_whole
from fedrows.measure.metric_choice import about, measured
from fedrows.tuning.space import Space, TriedValues
from fedrows.tuning.trials import show

TRIALS, RATES = "trials.json", "rates.json"
KIND, FORMAT = "fedrows rates", 1
PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class Trial:
    """One run of a search."""

    algorithm: str
    values: TriedValues
    rounds: int
    value: float | None  # the best of the metric at any evaluation; None if it diverged
    round: int | None  # where it was best
    seconds: float
    id: str

    @property
    def shown(self) -> str:
        """Its values as text: lr 0.3."""
        return ", ".join(f"{name} {show(value)}" for name, value in self.values.items())


@dataclass(frozen=True)
class Confirmed:
    """What chosen values came to on test examples."""

    algorithm: str
    metrics: Mapping[int, Mapping[str, float]]  # seed → metric → value

    def values(self, metric: str) -> list[float]:
        """A metric's values, by seed; none if a seed has none."""
        values = [some[metric] for some in self.metrics.values() if metric in some]
        return values if len(values) == len(self.metrics) else []


@dataclass(frozen=True, repr=False)
class Tuned:
    """The result of a search."""

    name: str  # of the task or the data
    metric: str
    method: str
    rounds: int  # of a whole run
    budget: int  # rounds for each algorithm
    seed: int
    trials: tuple[Trial, ...]
    spaces: Mapping[str, Space]
    confirmed: tuple[Confirmed, ...] = ()

    @property
    def chosen(self) -> dict[str, Trial]:
        """Each algorithm's best trial among those of all rounds; none where all diverged."""
        sign = 1 if about(self.metric)[1] else -1
        best: dict[str, tuple[float, Trial]] = {}
        for trial in self.trials:
            if trial.rounds < self.rounds or trial.value is None:
                continue
            if trial.algorithm not in best or sign * trial.value > best[trial.algorithm][0]:
                best[trial.algorithm] = sign * trial.value, trial
        return {name: best[name][1] for name in self.spaces if name in best}

    @property
    def rates(self) -> dict[str, TriedValues]:
        """The chosen values by algorithm."""
        return {name: dict(trial.values) for name, trial in self.chosen.items()}

    @property
    def at_edge(self) -> dict[str, list[str]]:
        """The options whose chosen value is an outermost one of those that were tried."""
        options = {}
        for name, trial in self.chosen.items():
            tried = [other.values for other in self.trials if other.algorithm == name]
            if names := list(self.spaces[name].edges(tried, trial.values)):
                options[name] = names
        return options

    def spent(self, algorithm: str) -> int:
        """The rounds that one algorithm's trials took."""
        return sum(trial.rounds for trial in self.trials if trial.algorithm == algorithm)

    def beyond(self, algorithm: str) -> dict[str, list[Any]]:
        """The values that were added beyond the edges of the first grid, by option."""
        added = {}
        for axis in self.spaces[algorithm].axes:
            tried = {
                trial.values[axis.name] for trial in self.trials if trial.algorithm == algorithm
            }
            new = sorted(tried - set(axis.values)) if axis.numeric else []
            if self.method in ("grid", "halving") and new:
                added[axis.name] = new
        return added

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows: what was chosen, how good it was, and what it cost."""
        title, _, digits = about(self.metric)
        titles = ["algorithm", "chosen", title, "round", "trials", "rounds spent", "note"]
        rows = []
        for name in self.spaces:
            count = str(sum(other.algorithm == name for other in self.trials))
            spent = f"{self.spent(name):,} of {self.budget:,}"
            trial = self.chosen.get(name)
            if trial is None or trial.value is None:
                rows.append([name, "none", "–", "–", count, spent, "all whole runs diverged"])
                continue
            value = f"{trial.value:.{digits}f}"
            rows.append([name, trial.shown, value, str(trial.round), count, spent, self.note(name)])
        return titles, rows

    def note(self, algorithm: str) -> str:
        """What is to be known of an algorithm's choice: its edges."""
        words = []
        for name, values in self.beyond(algorithm).items():
            words.append(f"{name}: added {', '.join(map(show, values))}")
        for name in self.at_edge.get(algorithm, []):
            words.append(f"{name} is at the edge")
        return "; ".join(words)

    def test_table(self) -> tuple[list[str], list[list[str]]]:
        """Titles and rows of the test metrics, mean ± standard deviation over seeds."""
        lines = [some for confirmed in self.confirmed for some in confirmed.metrics.values()]
        names = measured(lines)
        rows = [
            [
                confirmed.algorithm,
                *(_mean(confirmed.values(metric), about(metric)[2]) for metric in names),
            ]
            for confirmed in self.confirmed
        ]
        return ["algorithm", *(about(metric)[0] for metric in names)], rows

    def confirmed_by(self, confirmed: Sequence[Confirmed]) -> Tuned:
        """The same result with test metrics."""
        return replace(self, confirmed=tuple(confirmed))

    def as_dict(self) -> dict[str, Any]:
        """All of it in plain numbers, as trials.json has it."""
        return {
            "tuned": self.name,
            "metric": self.metric,
            "method": self.method,
            "rounds": self.rounds,
            "budget": self.budget,
            "seed": self.seed,
            "rates": self.rates,
            "at_edge": self.at_edge,
            "spent": {name: self.spent(name) for name in self.spaces},
            "trials": [asdict(trial) for trial in self.trials],
            "confirmed": [
                {
                    "algorithm": confirmed.algorithm,
                    "seeds": {str(s): m for s, m in confirmed.metrics.items()},
                }
                for confirmed in self.confirmed
            ],
        }

    def save(self, folder: str | Path) -> Path:
        """Writes trials.json and rates.json into a folder; returns the path of the rates."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / TRIALS, as_json(self.as_dict(), indent=1))
        by = f"{self.method}, {about(self.metric)[0]} within {self.rounds} rounds"
        write_rates(folder / RATES, self.name, by, self.rates)
        return folder / RATES

    def frame(self, package: str = "polars") -> Any:
        """A row per trial, in polars or pandas."""
        from fedrows.study.results import frame_of

        rows = [{**asdict(trial), **trial.values} for trial in self.trials]
        names = dict.fromkeys(key for row in rows for key in row if key != "values")
        return frame_of({name: [row.get(name) for row in rows] for name in names}, package)

    def __repr__(self) -> str:
        chosen = "; ".join(f"{name}: {trial.shown}" for name, trial in self.chosen.items())
        return f"Tuned({self.name}: {len(self.trials)} trials by {about(self.metric)[0]}; {chosen})"


def _mean(values: Sequence[float], digits: int) -> str:
    if not values:
        return "–"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.{digits}f}{spread}"


def write_rates(path: Path, name: str, by: str, rates: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the file. name: the task or the data that they are for; by: how they were chosen."""
    content = {"kind": KIND, "format": FORMAT, "task": name, "by": by, "rates": rates}
    write_whole(path, as_json(content, indent=1))


def read_rates(path: str | Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The name of the task, and the values by algorithm; a PlanError if it is no such file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"The rates in {path} cannot be read ({reason(error)}).") from error
    except ValueError:
        content = None
    wrong = PlanError(f"{path} is no file of rates: name a rates.json that `fedrows tune` wrote.")
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise wrong
    if content.get("format") != FORMAT:
        raise PlanError(
            f"{path} has format {content.get('format')!r}, but this fedrows reads {FORMAT}: "
            "tune again."
        )
    rates = content.get("rates")
    if not isinstance(rates, dict) or not all(
        isinstance(values, dict) and all(isinstance(value, PLAIN) for value in values.values())
        for values in rates.values()
    ):
        raise wrong
    return str(content.get("task", "")), rates
