"""What an experiment is: a name, and a function that makes an artefact with the help of `Work`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fedrows.data.federation import FederatedData
from fedrows.report.artefact import Artefact
from fedrows.study import Results, Study


class Work(Protocol):
    """What an experiment may ask for while it is made."""

    @property
    def quick(self) -> bool:
        """Whether a reduced version is wanted: minutes on two cores, for a first look."""

    @property
    def search(self) -> bool:
        """Whether learning rates are searched anew."""

    def load(self, task: str) -> FederatedData:
        """A task's data; raises a FedrowsError that says how to get them where they are missing."""

    def results(self, study: Study) -> Results:
        """The runs of a study; what was run before is not run again."""

    def say(self, text: str) -> None:
        """Shows what goes on, in a line."""


@dataclass(frozen=True)
class Experiment:
    """One table, figure or theorem of the paper."""

    name: str  # on the command line: fedrows paper NAME
    title: str
    make: Callable[[Work], Artefact]
    tasks: tuple[str, ...] = ()  # whose data it needs; without them it is listed as missing
    has_runs: bool = False  # whether it asks for the results of studies
