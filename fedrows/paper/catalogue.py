"""The experiments by name, in the order of the page."""

from __future__ import annotations

from fedrows.errors import UnknownNameError
from fedrows.paper import (
    claims,
    conditioning,
    convergence,
    criterion,
    example1,
    figure1,
    overhead,
    table1,
    table2,
    table3,
    table4,
    table5,
)
from fedrows.paper.experiment import Experiment

EXPERIMENTS: tuple[Experiment, ...] = (
    claims.EXPERIMENT,
    table1.EXPERIMENT,
    figure1.EXPERIMENT,
    example1.EXPERIMENT,
    *table2.EXPERIMENTS,
    *table3.EXPERIMENTS,
    table4.EXPERIMENT,
    table5.EXPERIMENT,
    conditioning.EXPERIMENT,
    convergence.EXPERIMENT,
    criterion.EXPERIMENT,
    overhead.EXPERIMENT,
)


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names, in this order, or all of them if none is named.

    The claims are the last of all: they are read from the runs of the others.
    """
    known = {experiment.name: experiment for experiment in EXPERIMENTS}
    for name in names:
        if name not in known:
            raise UnknownNameError("experiment", name, known)
    wanted = names or sorted(known, key="claims".__eq__)
    return [known[name] for name in dict.fromkeys(wanted)]
