"""How far one client of a round can move a row, by rule.

    FEDROWS_DATA=… python benchmarks/influence.py

MovieLens with its presets (K = 50). After some honest rounds one client of the next cohort lies: it
puts into one row as much as the check on norms lets through (a hundred times the median, before and
after the correction), is honest in its other rows, and claims as many examples as it likes. The
table shows how much further the row moves than without that lie. Writes `results/influence.json`,
and the table of docs/over-the-network.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs import page_parts
from fedrows import catalogue
from fedrows.algorithm import Algorithm, Round
from fedrows.algorithms.boundedsubavg import BoundedSubAvg
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.client import Upload
from fedrows.flower.wire.contract import BOUNDS
from fedrows.flower.wire.upload_checks import FACTOR
from fedrows.plan import Plan
from fedrows.robust import RowClip, clip_norms_, trim
from fedrows.rows.heat import Heat, ceiling, heat_of
from fedrows.rows.params import Params, Submodels, take, total
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "results" / "influence.json", HERE.parent / "docs" / "over-the-network.md"
CLAIMS = (165, 100_000)
ROUNDS = 20  # honest ones before the lie


@dataclass(frozen=True)
class Rule:
    """How a server adds updates up."""

    name: str
    algorithm: Algorithm
    robust: str = "none"  # what `robust` of a deployment may be
    row_clip: float | None = None
    weight_quantile: float | None = None


DEFAULT = "default of deployments"
RULES = (
    Rule("FedAvg", FedAvg()),
    Rule("FedSubAvg", FedSubAvg()),
    Rule("FedSubAvg, cap 100", FedSubAvg(cap=100.0)),
    Rule("FedSubAvg, cap cohort", FedSubAvg(cap="cohort")),
    Rule("bounded FedSubAvg", BoundedSubAvg()),
    Rule("cap 100, robust=trim", FedSubAvg(cap=100.0), "trim"),
    Rule("cap 100, robust=clip", FedSubAvg(cap=100.0), "clip"),
    Rule("default without cap", FedSubAvg(), "none", **BOUNDS),
    Rule(DEFAULT, FedSubAvg(**FedSubAvg.deployed), "none", **BOUNDS),
    Rule("default, bounded FedSubAvg", BoundedSubAvg(), "none", **BOUNDS),
)


@dataclass
class Lie:
    """One round of honest clients, of whom one may lie about a row."""

    simulation: Simulation
    upload: Upload  # what all of them honestly made of it
    window: RowClip  # what the clients of the rounds before have said
    liar: int  # its place in the cohort

    def moved(self, rule: Rule, row: int | None, claim: int | None) -> Tensor:
        """The table's numbers after the round, if the liar puts its update into one row."""
        data, plan = self.simulation.simulated.data, self.simulation.plan
        clients, update = self.upload.clients, self.upload.update.map(torch.clone)
        sizes = data.sizes.double()
        if claim is not None:
            sizes[clients[self.liar]] = claim
        weights = sizes.clamp(max=ceiling(sizes, rule.weight_quantile))
        heat = {t: heat_of(x, weights) for t, x in data.index.items()}
        algorithm = rule.algorithm.for_cohorts(plan.clients_per_round)
        share = weights[clients] / weights[clients].sum()
        if row is not None:
            self._lie_(update, row, algorithm, heat, share)
        if rule.robust == "clip":
            clip_norms_(update, 1.0)
        elif rule.robust == "trim":
            update = trim(update, 0.1)
        if rule.row_clip is not None:
            factors = algorithm.correction(update.index, heat, torch.float64, share)
            own = RowClip(rule.row_clip, ["weight", "bias"])
            own.windows = {name: x.clone() for name, x in self.window.windows.items()}
            update = own.clip(update, share, factors)
        params = Params(
            {t: torch.zeros(x.shape) for t, x in self.simulation.progress.params.tables.items()},
            {d: torch.zeros(x.shape) for d, x in self.simulation.progress.params.dense.items()},
        )
        sums = total(update, weights[clients], self.upload.steps)
        facts = Round(ROUNDS + 1, 0.1, data.clients, float(weights.sum()), clients)
        algorithm.step_(params, {}, sums, heat, facts)
        return params.tables["weight"][:, 0]

    def _lie_(
        self,
        update: Submodels,
        row: int,
        algorithm: Algorithm,
        heat: Mapping[str, Heat],
        share: Tensor,
    ) -> None:
        """As much of one row as passes the check on norms; the other rows stay honest."""
        index = update.index["weight"]
        factors = algorithm.correction(update.index, heat, torch.float32, share)
        factor = torch.ones(len(index.ids)) if factors is None else factors["weight"]
        rows = {"weight": update.rows["weight"] * factor[:, None]}
        corrected = Submodels(update.index, rows, update.dense)
        limits = [FACTOR * float(x.norms().median()) for x in (update, corrected)]
        low, high = index.splits[self.liar : self.liar + 2].tolist()
        position = low + int((index.ids[low:high] == row).nonzero()[0])
        update.rows["weight"][position] = min(limits[0], limits[1] / float(factor[position]))


def honest_round(algorithm: Algorithm) -> Lie:
    """A round after some others, in which the client with the coldest row is to lie."""
    task = catalogue.task("movielens")
    data = task.load(task.options())
    plan = Plan(**{**presets(task, "fedsubavg")[0], **BOUNDS, "device": "cpu"})
    simulation = Simulation(data, catalogue.model(task.model)(data, 0), algorithm, plan)
    for progress in simulation:
        if progress.round == ROUNDS:
            break
    fleet, progress = simulation.simulated, simulation.progress
    cohort = fleet.draw(ROUNDS + 1, plan.clients_per_round)
    facts = Round(ROUNDS + 1, plan.lr, fleet.clients, float(fleet.weights.sum()), cohort)
    opened = fleet.open_round(facts)
    upload = opened.train(take(progress.params, opened.index, len(cohort)), None)
    index = upload.update.index["weight"]
    counts = data.heat()["weight"].of(index.ids)
    assert progress.row_clip is not None
    return Lie(simulation, upload, progress.row_clip, int(index.owner[counts.argmin()]))


def measure() -> dict[str, Any]:
    """The rows, what honest clients do to them, and what a lie does by rule and claim."""
    lie = honest_round(FedSubAvg())
    index = lie.upload.update.index["weight"]
    low, high = index.splits[lie.liar : lie.liar + 2].tolist()
    own = index.ids[low:high]
    counts = lie.simulation.simulated.data.heat()["weight"].of(own)
    rows = {"cold": int(own[counts.argmin()]), "hottest": int(own[counts.argmax()])}
    lines = []
    for rule in RULES:
        if rule.row_clip is not None:
            lie = honest_round(rule.algorithm)  # the bounds follow from the rounds before
        honest = lie.moved(rule, None, None)
        line: dict[str, Any] = {"rule": rule.name, "honest_largest": float(honest.abs().max())}
        for claim in CLAIMS:
            for name, row in rows.items():
                moved = lie.moved(rule, row, claim) - honest
                line[f"{name}, {claim} examples"] = float(moved[row].abs())
        lines.append(line)
    heat = {name: int(counts[own == row]) for name, row in rows.items()}
    return {"torch": torch.__version__, "holders": heat, "rules": lines}


def table(result: Mapping[str, Any]) -> str:
    """The result as a table."""
    names = [f"{row}, {claim} examples" for claim in CLAIMS for row in ("cold", "hottest")]
    titles = [f"{row} row, claims {claim:,}" for claim in CLAIMS for row in ("cold", "hottest")]
    lines = []
    for line in result["rules"]:
        numbers = [line["honest_largest"], *(line[name] for name in names)]
        lines.append([line["rule"], *(f"{x:.2g}" if x < 10 else f"{x:.0f}" for x in numbers)])
    return page_parts.table(["rule", "honest round, largest", *titles], lines)


def page_with(text: str, result: Mapping[str, Any]) -> str:
    """A page with the table in its place."""
    return page_parts.filled(PAGE, text, {"influence": f"\n{table(result)}\n"})


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    result = measure()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    PAGE.write_text(page_with(PAGE.read_text(), result))
    print(table(result))


if __name__ == "__main__":
    main()
