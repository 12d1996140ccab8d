"""Appendix E: what a round costs the server, and what it must keep, by the size of the table.

The paper's claim: FedSubAvg's correction is worked out once, O(M), while FedAdam works on every
number of the model in every round, O(R·M). Measured on the server's own functions: the total of
the same updates and the algorithm's step, in alternating blocks.
"""

from __future__ import annotations

import time
from statistics import median

import torch

from fedrows.algorithm import Algorithm, Round, State
from fedrows.algorithms.fedadam import FedAdam
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.paper.cells import line, number_cell
from fedrows.paper.experiment import Experiment, Work
from fedrows.report.artefact import Artefact, Cell, Figure, Panel, ResultTable
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, total
from fedrows.seeds import MAKE, bits, key, normal, uniform

SIZES = (10**4, 10**5, 10**6, 10**7)  # M, rows
WIDTH = 4
COHORT, HELD = 50, 200  # clients of a round, and the rows of each
BLOCKS = 11
LEAST = 0.02  # seconds that a block takes at least
ALGORITHMS: dict[str, Algorithm] = {
    "FedAvg": FedAvg(),
    "FedSubAvg": FedSubAvg(),
    "FedAdam": FedAdam(),
    "FedAdam, lazy": FedAdam(lazy=True),
}


def make(work: Work) -> Artefact:
    """Seconds per round and bytes kept, for every size and algorithm."""
    sizes = SIZES[:-1] if work.quick else SIZES
    seconds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
    kept: dict[str, list[int]] = {name: [] for name in ALGORITHMS}
    once, rows = [], []
    for size in sizes:
        work.say(f"Appendix E with {size:,} rows")
        bench = Bench(size)
        once.append(bench.first_correction())
        medians = bench.seconds()
        for name in ALGORITHMS:
            seconds[name].append(medians[name])
            kept[name].append(bench.kept(name))
            cells = (size, 1000 * medians[name], medians[name] / medians["FedAvg"], kept[name][-1])
            share = kept[name][-1] / bench.model_bytes
            first = number_cell(1000 * once[-1]) if name == "FedSubAvg" else Cell("–")
            rows.append((Cell(name), *map(number_cell, cells), number_cell(share), first))
    x = [float(size) for size in sizes]
    slow = seconds["FedAdam"][-1] / seconds["FedSubAvg"][-1]
    columns = (
        "", "M (rows)", "ms a round", "× FedAvg", "bytes kept", "× the model",
        "ms once, before the first round",
    )  # fmt: skip
    panels = (
        Panel("A round at the server", "rows of the table", "seconds",
              tuple(line(name, x, y) for name, y in seconds.items()), True, True),
        Panel("Kept beside the model", "rows of the table", "bytes",
              tuple(line(name, x, [float(n) for n in y]) for name, y in kept.items() if all(y)),
              True, True),
    )  # fmt: skip
    return Artefact(
        "overhead",
        "Appendix E: the server's overhead, FedSubAvg beside FedAdam",
        f"At {sizes[-1]:,} rows a round of FedAdam as published costs the server {slow:,.0f} times "
        f"what one of FedSubAvg does. From {sizes[0]:,} rows on FedAdam's round has grown "
        f"{_growth(seconds['FedAdam']):,.0f}-fold, FedSubAvg's {_growth(seconds['FedSubAvg']):.1f}-"
        f"fold and FedAvg's {_growth(seconds['FedAvg']):.1f}-fold, which a busy machine blurs.",
        (ResultTable("overhead", f"{COHORT} clients of {HELD} rows each, {WIDTH} numbers wide",
                     columns, tuple(rows),
                     f"{NOTE} PyTorch's threads: {torch.get_num_threads()}."),),
        (Figure("overhead", "What a round costs, and what is kept", panels),),
    )  # fmt: skip


NOTE = (
    f"Medians of {BLOCKS} alternating blocks on a CPU, float32: the total of the updates and the "
    "algorithm's step. FedSubAvg keeps 20 bytes for every row that somebody holds, whatever its "
    "width (an id, a count, a factor), and FedAdam two numbers for each one of the model, 8 bytes: "
    "at a width of 1 or 2 FedSubAvg keeps more, from 3 on less. The lazy form, which moves "
    "received rows only, is an approximation of FedAdam; the paper compares with the form as "
    "published."
)


def _growth(seconds: list[float]) -> float:
    return seconds[-1] / seconds[0]


class Bench:
    """A table in which every row is held by somebody, a cohort's updates, and the contenders."""

    def __init__(self, size: int) -> None:
        self.params = Params({"w": torch.zeros(size, WIDTH)}, {})
        self._counts = 1 + torch.arange(size, dtype=torch.float64) % 1_000
        self.heat = Heat(torch.arange(size), self._counts, 1_000.0)
        drawn = uniform(bits(key(0, MAKE, 0), torch.arange(COHORT * HELD)))
        ids = (drawn * size).to(torch.int64).view(COHORT, HELD).sort(1).values.flatten()
        # Every row is held, so a row's place among the held ones is its id.
        index = Index(ids, HELD * torch.arange(COHORT + 1), ids, self.heat.ids)
        update = normal(bits(key(0, MAKE, 1), torch.arange(COHORT * HELD * WIDTH)))
        self._update = Submodels({"w": index}, {"w": update.view(-1, WIDTH).float()}, {})
        self._weights = torch.ones(COHORT, dtype=torch.float64)
        self._round = Round(1, 0.1, 1_000, 1_000.0, torch.arange(COHORT))
        self.state: dict[str, State] = {
            name: algorithm.start(self.params) for name, algorithm in ALGORITHMS.items()
        }

    @property
    def model_bytes(self) -> int:
        """What the model itself weighs."""
        return self.params.tables["w"].nbytes

    def step(self, name: str) -> None:
        """One round's work of the server."""
        sums = total(self._update, self._weights, self._weights)
        ALGORITHMS[name].step_(self.params, self.state[name], sums, {"w": self.heat}, self._round)

    def first_correction(self) -> float:
        """The seconds in which FedSubAvg works out every row's factor, once."""
        heat = Heat(self.heat.ids, self._counts, 1_000.0)
        since = time.perf_counter()
        heat.correction(self._update.index["w"], torch.float32)
        return time.perf_counter() - since

    def kept(self, name: str) -> int:
        """The bytes that the server keeps beside the model: state, and for FedSubAvg the heat."""
        size = sum(x.nbytes for part in self.state[name].values() for x in part.tables.values())
        if name == "FedSubAvg":
            self.step(name)
            factors = sum(x.nbytes for x in self.heat._factors.values())
            size += self.heat.ids.nbytes + self.heat.counts.nbytes + factors
        return size

    def seconds(self) -> dict[str, float]:
        """The median seconds of a round, by algorithm."""
        medians: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
        often = {}
        for name in medians:
            self.step(name)  # warm up
            often[name] = max(1, int(LEAST / self._block(name, 1)))
        for _ in range(BLOCKS):
            for name, times in medians.items():
                times.append(self._block(name, often[name]))
        return {name: median(times) for name, times in medians.items()}

    def _block(self, name: str, times: int) -> float:
        since = time.perf_counter()
        for _ in range(times):
            self.step(name)
        return (time.perf_counter() - since) / times


EXPERIMENT = Experiment("overhead", "Appendix E: the server's overhead beside FedAdam", make)
