"""A task of the evaluation section: what the paper prints of it, and how far we run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedrows import catalogue
from fedrows.measure.summary import Target
from fedrows.options import options
from fedrows.paper.experiment import Work
from fedrows.study import Setting

Rates = Mapping[str, float]  # lr of the plan, and options of the algorithm

ALGORITHMS = (
    "centralsgd",
    "fedavg",
    "fedprox",
    "scaffold",
    "scaffoldapprox",
    "fedadam",
    "fedsubavg",
)
BEYOND = ("holdersmean", "steppedmean", "boundedsubavg")  # not in the paper
ALL = (*ALGORITHMS, *BEYOND)
FEW = ("centralsgd", "fedavg", "fedadam", "fedsubavg", "boundedsubavg")


@dataclass(frozen=True)
class Size:
    """How far a task is run."""

    rounds: int
    every: int  # rounds between evaluations
    seeds: tuple[int, ...]
    searched: tuple[str, ...] = ALL  # those that also run at searched rates
    searched_seeds: tuple[int, ...] | None = None  # those of such runs; None: as the others
    sweep: tuple[int, ...] = ()  # the K of Table 3
    search_rounds: int = 100  # of a run of the search
    plan: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    reduced: str = ""  # what is less than in a full run, in a sentence

    @property
    def whole(self) -> bool:
        """Whether the runs are those of the paper's settings, if fewer of them."""
        return not self.plan and not self.data


@dataclass(frozen=True)
class EvaluatedTask:
    """One task as the paper evaluates it."""

    key: str
    name: str  # as the paper writes it, or what stands in for it
    model: str
    target: Target
    metrics: tuple[str, ...]  # the one that is plotted first, then the appendix's, then more
    rounds: Mapping[str, str]  # Table 2, by algorithm
    best: Mapping[str, float]  # the best AUC that the text gives, by algorithm
    sweep: Mapping[int, str]  # Table 3, by K
    lr: Mapping[str, float]  # Table 4
    adam: Mapping[str, str]  # Table 5
    statistics: tuple[str, ...]  # Table 1: clients, samples, per client, dispersion
    grid: tuple[float, ...]  # learning rates of the search
    caveat: str  # what the data at hand lack
    full: Size
    quick: Size

    def size(self, work: Work) -> Size:
        """How far it is run this time."""
        return self.quick if work.quick else self.full

    @property
    def metric(self) -> str:
        """What the target and Figure 3 are about."""
        return self.target.metric

    def setting(
        self,
        size: Size,
        algorithm: str,
        rates: Rates | None = None,
        data: Mapping[str, Any] | None = None,
        **plan: Any,
    ) -> Setting:
        """The runs of one algorithm, at the presets (the paper's rates) or at other rates."""
        own = {item.name for item in options(catalogue.algorithm(algorithm))}
        chosen = dict(rates or {})
        return Setting(
            self.key,
            algorithm,
            plan={
                "rounds": size.rounds,
                "evaluate_every": size.every,
                **size.plan,
                **{name: value for name, value in chosen.items() if name not in own},
                **plan,
            },
            options={name: value for name, value in chosen.items() if name in own},
            data={**size.data, **(data or {})},
        )
