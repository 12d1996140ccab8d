"""What a server and its nodes agree on before the first message.

DeployedTask        the user's own: where a node's data come from, which model learns from them
DeploymentOptions   how the deployment runs: time-outs, limits, how numbers travel
Contract            both, with the algorithm and the plan, as the run's configuration has them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import PoolDraws
from fedrows.errors import PlanError
from fedrows.flower.wire.label_counters import check_countable, counted_facts
from fedrows.flower.wire.message import VERSION
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.options import check, option, options
from fedrows.plan import Plan
from fedrows.privacy.mechanism import DIAL
from fedrows.privacy.options import Privacy
from fedrows.simulator.asynchronous import check_virtual
from fedrows.simulator.simulated_fleet import check_fits
from fedrows.version import __version__
from fedrows.watch import Watching

CLEAR = Privacy()
# What holds in deployments unless a run chooses otherwise: a client may lie.
BOUNDS: Mapping[str, Any] = {"row_clip": 0.25, "weight_quantile": 0.25}
# The same for private runs: nodes then tell no numbers of examples.
UNTOLD: Mapping[str, Any] = {"weighting": "uniform"}


@dataclass(frozen=True)
class DeployedTask:
    """A task in a deployment: `client_app(task)` and `server_app(task)` are its two sides."""

    name: str
    shard: Callable[[Mapping[str, Any]], FederatedData]  # on a node, from its --node-config
    model: Callable[[FederatedData, int], Model | nn.Module]  # on both sides; data and a seed
    # On the server: data with the same tables and fields, none of them a user's of the federation.
    # What it holds is what the model is evaluated on.
    server: Callable[[Mapping[str, Any]], FederatedData]
    # The model's name in the catalogue, if it has one: a bundle of it then loads by that name.
    model_name: Callable[[FederatedData], str] | None = None


@dataclass(frozen=True)
class DeploymentOptions:
    """How a deployed run goes, beside its plan."""

    timeout: float = option(120.0, "Seconds a round waits for answers.", above=0)
    min_answers: int | None = option(
        None,
        "Fewest answers of a round, or it is repeated; half of the cohort by default.",
        least=1,
    )
    min_clients: int | None = option(
        None, "Clients to wait for before the first round; clients-per-round by default.", least=1
    )
    min_nodes: int = option(1, "Nodes to wait for before the first round.", least=1)
    coding: str = option(
        "float32",
        "How updates travel; what float16 and int8 round off is added to the next update.",
        choices=("float32", "float16", "int8"),
    )
    row_cache: bool = option(False, "Nodes keep rows, and get only those that changed.")
    max_norm: float | None = option(
        None,
        "Refuse updates with a larger norm, before or after the correction; by default those over "
        "a hundred times the median.",
        above=0,
    )
    max_examples: int = option(100_000, "The most examples that a client may claim.", least=1)
    max_clients: int = option(10_000, "The most clients that a node may host.", least=1)
    max_registration: int = option(
        8, "The most MiB that a node's registration may take: its clients and their rows.", least=1
    )
    robust: str = option(
        "none",
        "clip: scale updates down to clip-norm; trim: a row's mean leaves out the extremes of its "
        "holders.",
        choices=("none", "clip", "trim"),
    )
    clip_norm: float = option(1.0, "With robust=clip: the largest norm of an update.", above=0)
    trim_share: float = option(
        0.1, "With robust=trim: the share left out on either side.", least=0, most=0.49
    )
    report_loss: bool = option(True, "Clients report their mean loss before they train.")

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True)
class Contract:
    """All that both sides must have in common; made from the run's configuration."""

    task: DeployedTask
    plan: Plan
    algorithm: Algorithm
    options: DeploymentOptions
    privacy: Privacy = CLEAR

    def __post_init__(self) -> None:
        known = self.algorithm.for_cohorts(self.plan.buffer_size)
        object.__setattr__(self, "algorithm", known)

    @property
    def secret(self) -> bool:
        """Whether index sets stay on the nodes, and updates leave in secure sums alone."""
        return self.privacy.secret_sums

    def model(self, data: FederatedData) -> Model:
        """The task's model, over some data; a PlanError if the run cannot train on them."""
        check_fits(self.algorithm, data)
        if data.labels == "ranking" and self.secret:
            raise PlanError(
                f"The labels of {data.name} are ranking, whose clients draw the rows of negatives "
                "anew in every round, which no secure sum is made for: choose privacy clear."
            )
        made = self.task.model(data, self.plan.seed)
        made = made if isinstance(made, Model) else Lifted(made, data)
        if self.plan.start == "counted":
            check_countable(made, data, self.plan)
        return made

    def draws(self, data: FederatedData) -> PoolDraws | None:
        """How clients draw negatives, if the data are to be ranked."""
        return PoolDraws.of(data, self.plan) if data.labels == "ranking" else None

    @cached_property
    def coding(self) -> str:
        """How an update's numbers travel."""
        exact = self.plan.dtype == "float64" and self.options.coding == "float32"
        return "float64" if exact else self.options.coding

    def fingerprint(self, model: Model, data: FederatedData) -> str:
        """A short text that differs where two sides would not understand each other."""
        schema = model.schema
        facts = {
            "contract": self.task.name,
            "wire": VERSION,
            "fedrows": __version__,
            "tables": {name: [table.rows, table.width] for name, table in schema.tables.items()},
            "dense": {name: list(shape) for name, shape in schema.dense.items()},
            "fields": dict(data.fields),
            "labels": data.labels,
            "padded": sorted(data.padded),
            "local": sorted(data.local),
            "algorithm": repr(self.algorithm),
            "plan": repr(self.plan),
            "privacy": repr(self.privacy),
        }
        if (draws := self.draws(data)) is not None:  # both sides must draw the same pools
            facts["draws"] = repr(draws)
        if self.plan.start == "counted":
            facts |= counted_facts(model, data)
        if self.secret:  # rows of one value open together, so both sides must know the values
            facts["groups"] = {
                t: {g: list(x) for g, x in table.items()} for t, table in data.groups.items()
            }
        if code := catalogue.code_of(type(self.algorithm)):  # both sides need the same plug-in
            facts["code"] = code[:16]
        return "\n".join(f"{k}={json.dumps(v, sort_keys=True)}" for k, v in facts.items())


def digest(fingerprint: str) -> str:
    """A fingerprint in 32 characters: two that share one cannot be searched for."""
    return hashlib.sha256(fingerprint.encode()).hexdigest()[:32]


def difference(own: str, other: str) -> str:
    """Where two fingerprints differ, in a few words."""
    ours, others = (dict(line.split("=", 1) for line in x.splitlines()) for x in (own, other))
    for name, value in ours.items():
        if others.get(name) != value:
            return f"its {name} is {others.get(name, 'missing')}, not {value}"
    return "it is not the same"


def make_contract(task: DeployedTask, config: Mapping[str, Any]) -> Contract:
    """The contract that a run's configuration spells out, by the names of the command line."""
    left = {name.replace("-", "_"): value for name, value in config.items()}
    known = {"out", "peers", "metric", *(item.name for item in options(Watching))}
    name = str(left.pop("algorithm", catalogue.DEFAULT))
    if ":" in name:
        raise PlanError(
            f"algorithm is {name!r}, but over a network an algorithm goes by its name: install it "
            "as a plug-in everywhere, or name its file as `plugins` in each node's configuration."
        )
    of = catalogue.algorithm(name)
    if of.pooled:
        raise PlanError(f"algorithm is {name}, but that one needs all data in one place.")
    own = _options_of(of, left)
    chosen = _options_of(DeploymentOptions, left)
    privacy = Privacy.of(**_options_of(Privacy, left), **_noise_in_sum(left, config))
    usual = UNTOLD if privacy.secret_sums else BOUNDS
    plan = Plan(**{"device": "cpu", **usual, **_options_of(Plan, left)})
    if strange := sorted(x for x in left.keys() - known if not x.startswith(f"{task.name}_")):
        raise PlanError(
            f"{strange[0].replace('_', '-')} in the run's configuration is no option of the plan, "
            f"of {name} or of the deployment: leave it out."
        )
    made = Contract(task, plan, of(**{**of.deployed, **own}), DeploymentOptions(**chosen), privacy)
    if made.plan.tables != "memory":
        raise PlanError(
            f"tables is {made.plan.tables}, but a deployment keeps its tables in memory: leave it "
            "out."
        )
    if made.plan.clock != "none":
        raise PlanError(
            f"clock is {made.plan.clock}, but only simulations have a virtual time: leave it out."
        )
    _check_mode(made)
    _check_privacy(made)
    return made


def _check_mode(made: Contract) -> None:
    """Raises a PlanError if a deployment cannot go without waiting."""
    if made.plan.mode == "sync":
        return
    check_virtual(made.algorithm, made.plan)
    if made.privacy.noise_in_sum:
        raise PlanError(
            f"mode is async, but privacy is {made.privacy.privacy!r}, whose noise is made for "
            "rounds that follow one another: choose mode sync, or privacy index."
        )
    if made.secret and made.plan.buffer_size < made.privacy.fewest:
        raise PlanError(
            f"buffer is {made.plan.buffer_size}, but a secure sum needs clients of at least "
            f"{made.privacy.fewest} nodes: raise buffer."
        )
    if made.options.min_answers is not None:
        raise PlanError(
            f"min-answers is {made.options.min_answers}, but in mode async a step has as many "
            "updates as the buffer: leave it out."
        )


def _check_privacy(made: Contract) -> None:
    """Raises a PlanError if a deployment cannot be as private as it is asked to be."""
    privacy, chosen = made.privacy, made.options
    if privacy.privacy == "heat":
        raise PlanError(
            "privacy is 'heat', but deployments know clear, index and full: with heat alone index "
            "sets would be sent at enrolment."
        )
    if not made.secret:
        return
    if made.plan.patience is not None:
        raise PlanError("patience is for runs in the clear: leave it out, or choose privacy clear.")
    if privacy.heat != "secure":
        raise PlanError(
            f"heat is {privacy.heat!r}, but over a network it is counted by secure sum."
        )
    robust = None if chosen.robust == "none" else chosen.robust
    bounds = {"robust": robust, "max_norm": chosen.max_norm}
    bounds |= {name: getattr(made.plan, name) for name in BOUNDS}
    if seen := [name for name, value in bounds.items() if value is not None]:
        raise PlanError(
            f"{seen[0].replace('_', '-')} needs to see single updates, which secure sums hide: "
            "leave it out, or choose privacy clear."
        )
    if chosen.coding != "float32" or chosen.row_cache:
        name = "coding" if chosen.coding != "float32" else "row-cache"
        raise PlanError(f"{name} is for runs in the clear: leave it out, or choose privacy clear.")
    if not made.algorithm.summable:
        raise PlanError(
            f"algorithm is {made.algorithm.name}, which does not declare that the sum of the "
            "updates is enough (summable): with secure sums choose "
            f"{catalogue.instead_in_sums(made.algorithm)}."
        )


def _noise_in_sum(left: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """The noise of mode full, which over a network is inside the sums: no server adds it."""
    if config.get("privacy") != "full":
        return {}
    of = catalogue.own("mechanism", "distributed")
    names = {item.name: f"{DIAL}{item.name}" for item in options(of)}
    own = {name: left.pop(dial) for name, dial in names.items() if dial in left}
    return {"mechanism": of(**{name: None if x == "" else x for name, x in own.items()})}


def _options_of(of: type, left: dict[str, Any]) -> dict[str, Any]:
    """What a configuration says for one dataclass; an empty text stands for nothing."""
    values = {}
    for item in options(of):
        if item.name in left:
            value = left.pop(item.name)
            values[item.name] = None if value == "" else value
    return values
