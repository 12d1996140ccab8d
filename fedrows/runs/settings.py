"""What a run is: a task with its options, an algorithm with its own, a plan, and a privacy.

Options come from four sources. Each overrides the one before: the dataclasses' defaults, the task's
presets, the task's presets for the algorithm, and what the user gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.catalogue import FROM, stored_name
from fedrows.data.federation import FederatedData
from fedrows.data.personal import with_personal
from fedrows.errors import PlanError, RunFolderError, UnknownNameError
from fedrows.lifting.relift import with_personal_parts
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.own_metrics import load_metrics
from fedrows.model import Model
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.privacy.mechanism import DIAL
from fedrows.privacy.options import Privacy
from fedrows.privacy.options import from_config as privacy_from
from fedrows.runs.folder import TABLES
from fedrows.runs.memory import fits_in_memory, lower_at_the_start
from fedrows.simulation import Simulation
from fedrows.simulator.asynchronous import check_virtual
from fedrows.simulator.cpu_threads import usual_threads
from fedrows.simulator.simulated_fleet import check_fits
from fedrows.task import Task

IN_PYTHON = "in Python"  # where the task of a run comes from that `fedrows.simulate` made
ANSWERS = "answers"  # in the folder of a run: what its clients have permanently answered


@dataclass(frozen=True)
class Settings:
    """One run, ready to be made."""

    task: Task
    options: Any  # of the task
    algorithm: Algorithm
    plan: Plan
    privacy: Privacy = field(default_factory=Privacy)
    metrics: tuple[str, ...] = ()  # references of the user's own
    model: Any = None  # the options of the task's model; None: as they are by default
    personal: tuple[str, ...] = ()  # parameters and submodules that stay on their clients

    def __post_init__(self) -> None:
        self.algorithm.check_plan(self.plan)
        if self.model is None:
            object.__setattr__(self, "model", catalogue.model_options(self.task.model)())

    def made(self, data: FederatedData) -> tuple[FederatedData, Model]:
        """The data and the model of the run; with a row per client if parts are personal."""
        model = catalogue.model(self.task.model)(data, self.plan.seed, **asdict(self.model))
        if not self.personal:
            return data, model
        data = with_personal(data)
        return data, with_personal_parts(model, data, self.personal)

    def check_data(self, data: FederatedData) -> None:
        """Raises a PlanError if the algorithm cannot train on such data, or in virtual time."""
        if self.plan.in_virtual_time:
            check_virtual(self.algorithm, self.plan)
        check_fits(self.algorithm, with_personal(data) if self.personal else data)

    def simulation(self, data: FederatedData, folder: Path | None = None) -> Simulation:
        """The run, before its first round; in a folder, which holds what its clients remember."""
        privacy = self.privacy
        if privacy.private and privacy.answers is None and folder is not None:
            privacy = replace(privacy, answers=str(folder / ANSWERS)) if privacy.stages else privacy
        tables = None if folder is None else folder / TABLES
        model_name = f"the model of {self.task.name} with {self.algorithm.name}"
        with fits_in_memory(model_name, lambda: lower_at_the_start(self.plan)):
            own = self.task.metrics or load_metrics(self.metrics)
            data, model = self.made(data)
            return Simulation(data, model, self.algorithm, self.plan, privacy, tables, metrics=own)

    def facts(self, data: FederatedData) -> dict[str, Any]:
        """What data.json says of the data."""
        data, model = self.made(data)
        return Evaluator(model, data, self.plan).facts()

    def resolved(self) -> Settings:
        """The same, with what the machine decides decided."""
        return replace(self, plan=resolve(self.plan))

    def config(self) -> dict[str, Any]:
        return {
            "task": {**stored_name("task", self.task.name), **asdict(self.options)},
            "algorithm": {
                **stored_name("algorithm", self.algorithm.name),
                **asdict(self.algorithm),
            },
            "plan": asdict(self.plan),
            **({"privacy": self.privacy.config()} if self.privacy.private else {}),
            **({"metrics": list(self.metrics)} if self.metrics else {}),
            **({"model": own} if (own := asdict(self.model)) else {}),
            **({"personal": list(self.personal)} if self.personal else {}),
            "torch": torch.__version__,
        }


def presets(task: Task, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a task presets for one algorithm: of the plan, and of the algorithm's own options.

    What the task says for the algorithm comes before what it says for all of them.
    """
    own_names = {item.name for item in options(catalogue.described("algorithm", algorithm))}
    plan, own = dict(task.plan), dict[str, Any]()
    for name, value in task.algorithms.get(algorithm, {}).items():
        (own if name in own_names else plan)[name] = value
    known = {item.name for item in options(Plan)}
    if strange := sorted(plan.keys() - known):
        raise PlanError(
            f"Task {task.name} presets {strange[0]!r} for {algorithm}, "
            "which is an option of neither the plan nor the algorithm."
        )
    return plan, own


def check_known(what: str, names: Iterable[str], *owners: type) -> None:
    """Raises an UnknownNameError for the first name that none of the owners has as an option."""
    known = [item.name for owner in owners for item in options(owner)]
    for name in names:
        if name not in known:
            raise UnknownNameError(what, name, known)


def resolve(plan: Plan) -> Plan:
    """The same plan, with what the machine decides decided: device and threads."""
    cohort = plan.clients_per_round
    return replace(
        plan,
        device=str(plan.torch_device),
        threads=plan.threads or usual_threads(),
        chunk=None if plan.chunk is None else min(plan.chunk, cohort),
    )


@cache
def taken_names(*algorithms: str) -> frozenset[str]:
    """The names of the plan's, the privacy's and our algorithms' options, and of some more.

    A task's option of such a name gets `data-` in front on the command line.
    """
    known = {*catalogue.built_in("algorithm"), *algorithms}
    owners: list[type] = [Plan, Privacy, *(catalogue.described("algorithm", x) for x in known)]
    noise = [options(catalogue.own("mechanism", name)) for name in catalogue.built_in("mechanism")]
    return frozenset(
        {"mechanism"}
        | {item.name for owner in owners for item in options(owner)}
        | {f"{DIAL}{item.name}" for items in noise for item in items}
    )


def from_config(config: Mapping[str, Any], path: Path) -> dict[str, Settings]:
    """The settings that a run or compare folder was written with, by algorithm.

    A comparison has one plan; what differs from it stands beside an algorithm's own options.
    """
    _check_not_in_python(config, path)
    try:
        task = dict(config["task"])
        name = task.pop("name")
        chosen = catalogue.task(task.pop(FROM, name))
        made, privacy = {}, privacy_from(config.get("privacy"))
        metrics = tuple(config.get("metrics", ()))
        model = catalogue.model_options(chosen.model)(**config.get("model", {}))
        personal = tuple(config.get("personal", ()))
        for entry in config.get("algorithms") or [config["algorithm"]]:
            name = entry["name"]
            of = catalogue.algorithm(entry.get(FROM, name))
            own = {item.name: entry[item.name] for item in options(of)}
            rest = {key: entry[key] for key in entry.keys() - own.keys() - {"name", FROM}}
            plan = Plan(**{**config["plan"], **rest})
            of_task = chosen.options(**task)
            made[name] = Settings(
                chosen, of_task, of(**own), plan, privacy, metrics, model, personal
            )  # fmt: skip
        return made
    except (KeyError, TypeError, ValueError, LookupError) as error:
        raise RunFolderError(
            f"The config.json of {path} does not say which run it was ({_plain(error)}): "
            "run again with --overwrite."
        ) from error


def _check_not_in_python(config: Mapping[str, Any], path: Path) -> None:
    """Raises a RunFolderError if the data of a run were given in Python, and are not here."""
    task = config.get("task")
    if not isinstance(task, Mapping) or task.get("given") != IN_PYTHON:
        return
    if task.get("name") in catalogue.names("task"):
        return
    if "algorithms" in config:
        raise RunFolderError(
            f"{path} was made by fedrows.compare, whose data and module only its script has: go on "
            "there, with the same data and module, and compare(…, out=…, resume=True)."
        )
    raise RunFolderError(
        f"{path} was made by fedrows.simulate, whose data and module only its script has: go on "
        "there, with simulate(…, out=…, resume=True), and export the result that it returns."
    )


def loaded(task: Task, options: Any) -> FederatedData:
    """A task's data; a MemoryShortageError if they are too many for this machine."""
    lower = "choose fewer clients or examples, or a machine with more memory"
    with fits_in_memory(f"the data of {task.name}", lambda: lower):
        return task.load(options)


def check_clients(plan: Plan, data: FederatedData) -> None:
    """Raises a PlanError if a round asks for more clients than there are."""
    if plan.clients_per_round > data.clients:
        raise PlanError(
            f"clients-per-round is {plan.clients_per_round}, but only {data.clients} clients of "
            f"{data.name} have training data: ask for at most {data.clients}."
        )


def _plain(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
