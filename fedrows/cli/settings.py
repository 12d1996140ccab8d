"""What a run is: a task with its options, an algorithm with its own, a plan, and a privacy.

Four voices, each louder than the one before: the dataclasses' defaults, the task's presets, the
task's presets for the algorithm, and what the user typed.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.cli.flags import Parser, UsageError, Values, add_options, flag_of, value
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, RunFolderError
from fedrows.measure.evaluation import Evaluator
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.private.options import Privacy
from fedrows.private.options import from_config as privacy_from
from fedrows.runs.folder import TABLES
from fedrows.simulation import Simulation
from fedrows.task import Task, presets


@dataclass(frozen=True)
class Settings:
    """One run, ready to be made."""

    task: Task
    options: Any  # of the task
    algorithm: Algorithm
    plan: Plan
    privacy: Privacy = field(default_factory=Privacy)

    def simulation(self, data: FederatedData, folder: Path | None = None) -> Simulation:
        """The run, before its first round; in a folder, which holds what its clients remember."""
        model = catalogue.model(self.task.model)(data, self.plan.seed)
        privacy = self.privacy
        if privacy.private and privacy.answers is None and folder is not None:
            privacy = replace(privacy, answers=str(folder / ANSWERS)) if privacy.stages else privacy
        tables = None if folder is None else folder / TABLES
        return Simulation(data, model, self.algorithm, self.plan, privacy, tables)

    def facts(self, data: FederatedData) -> dict[str, Any]:
        """What data.json says of the data."""
        return Evaluator(catalogue.model(self.task.model)(data, 0), data, self.plan).facts()

    def resolved(self) -> Settings:
        """The same, with what the machine decides decided."""
        return replace(self, plan=resolve(self.plan))

    def config(self) -> dict[str, Any]:
        """The run as config.json has it."""
        return {
            "task": {"name": self.task.name, **asdict(self.options)},
            "algorithm": {"name": self.algorithm.name, **asdict(self.algorithm)},
            "plan": asdict(self.plan),
            **({"privacy": self.privacy.config()} if self.privacy.private else {}),
            "torch": torch.__version__,
        }


ANSWERS = "answers"  # in the folder of a run: what its clients have permanently said


def names_of_prefixed(task: Task) -> set[str]:
    """The options of a task that are called like another's, and get `data-` in front."""
    owners: list[type] = [Plan, Privacy]
    owners += map(catalogue.algorithm, catalogue.names("algorithm"))
    taken = {item.name for owner in owners for item in options(owner)}
    return {item.name for item in options(task.options)} & taken


def add_settings(
    parser: Parser,
    task: str | None = None,
    algorithms: Sequence[str] = (),
    *,
    only: bool = False,
    without: Collection[str] = (),
) -> None:
    """The flags of every task and algorithm, or (`only`) of one task and some algorithms."""
    tasks = [task] if only and task else catalogue.names("task")
    own = catalogue.algorithm
    plan: Mapping[str, Any] = {}
    if only and task:
        plan = catalogue.task(task).plan
        if len(algorithms) == 1:
            plan = presets(catalogue.task(task), algorithms[0])[0]
    add_options(parser, "plan", [Plan], plan, without=without)
    chosen = list(algorithms) if only and algorithms else catalogue.names("algorithm")
    parts: dict[str, list[str]] = {}
    for name in chosen:
        for item in options(own(name)):
            parts.setdefault(item.name, []).append(name)
    for names in dict.fromkeys(map(tuple, parts.values())):
        mine = presets(catalogue.task(task), names[0])[1] if only and task else {}
        add_options(parser, "algorithm " + ", ".join(names), [own(n) for n in names], mine)
    for name in tasks:
        found = catalogue.task(name)
        add_options(parser, f"task {name}", [found.options], {}, names_of_prefixed(found))


def choose(task: Task, algorithms: Sequence[str], typed: Mapping[str, Any]) -> dict[str, Settings]:
    """The settings of a run of each algorithm; an option of none of them is an error."""
    prefixed = names_of_prefixed(task)
    theirs, left = _mine(task.options, typed, prefixed)
    plan, left = _mine(Plan, left)
    dials, left = _mine(Privacy, left)
    privacy = Privacy.of(**dials)
    made: dict[str, Settings] = {}
    unused = dict(left)
    for name in algorithms:
        of = catalogue.algorithm(name)
        own, rest = _mine(of, left)
        unused = {key: unused[key] for key in unused.keys() & rest.keys()}
        plan_presets, own_presets = presets(task, name)
        made[name] = Settings(
            task,
            task.options(**theirs),
            of(**{**own_presets, **own}),
            Plan(**{**plan_presets, **plan}),
            privacy,
        )
        privacy.check(made[name].algorithm, made[name].plan.clients_per_round)
    for name in unused:
        whose = " or ".join([task.name, *algorithms])
        raise UsageError(f"--{name.replace('_', '-')} is not an option of {whose}: leave it out.")
    return made


def add_privacy(parser: Parser) -> None:
    """The flags of private runs."""
    add_options(parser, "privacy", [Privacy], {})


def shared_plan(task: Task, typed: Mapping[str, Any]) -> Plan:
    """The plan of a task before any algorithm has its say."""
    return Plan(**{**task.plan, **_mine(Plan, typed)[0]})


def resolve(plan: Plan) -> Plan:
    """The same plan, with what the machine decides decided: device and threads."""
    cohort = plan.clients_per_round
    return replace(
        plan,
        device=str(plan.torch_device),
        threads=plan.threads or torch.get_num_threads(),
        chunk=None if plan.chunk is None else min(plan.chunk, cohort),
    )


def _mine(
    owner: type, typed: Mapping[str, Any], prefixed: set[str] | frozenset[str] = frozenset()
) -> tuple[Values, dict[str, Any]]:
    """What was typed for one dataclass, by its own names, and the rest."""
    found, left = {}, dict(typed)
    for item in options(owner):
        flag = flag_of(item.name, prefixed)
        key = flag.replace("-", "_")
        if key in left:
            found[item.name] = value(owner, item, left.pop(key), flag)
    return found, left


def from_config(config: Mapping[str, Any], path: Path) -> dict[str, Settings]:
    """The settings that a run or compare folder was written with, by algorithm.

    A comparison has one plan; what differs from it stands beside an algorithm's own options.
    """
    try:
        task = dict(config["task"])
        found = catalogue.task(task.pop("name"))
        made, privacy = {}, privacy_from(config.get("privacy"))
        for entry in config.get("algorithms") or [config["algorithm"]]:
            name = entry["name"]
            of = catalogue.algorithm(name)
            own = {item.name: entry[item.name] for item in options(of)}
            rest = {key: entry[key] for key in entry.keys() - own.keys() - {"name"}}
            plan = Plan(**{**config["plan"], **rest})
            made[name] = Settings(found, found.options(**task), of(**own), plan, privacy)
        return made
    except (KeyError, TypeError, ValueError, LookupError) as error:
        raise RunFolderError(
            f"The config.json of {path} does not say which run it was ({_plain(error)}): "
            "run again with --overwrite."
        ) from error


def extended(
    stored: Mapping[str, Settings], typed: Mapping[str, Any], path: Path
) -> dict[str, Settings]:
    """Stored settings with the rounds, or the ε, that the user now wants; no other change goes."""
    task = next(iter(stored.values())).task
    dials, typed = _mine(Privacy, typed)
    privacy = _extended(next(iter(stored.values())).privacy, dials, path)
    wanted = choose(task, list(stored), typed)
    found = {}
    for name, old in stored.items():
        new = wanted[name]
        parts: list[tuple[Any, Any, set[str]]] = [
            (old.options, new.options, names_of_prefixed(task)),
            (old.algorithm, new.algorithm, set()),
            (old.plan, new.plan, set()),
        ]
        for before, now, prefixed in parts:
            for item in fields(before):
                flag = flag_of(item.name, prefixed)
                was, is_now = getattr(before, item.name), getattr(now, item.name)
                same = was == is_now or flag == "rounds" or (flag == "device" and is_now == "auto")
                if flag.replace("-", "_") in typed and not same:
                    raise refuse_change(f"--{flag}", is_now, was, path)
        rounds = new.plan.rounds if "rounds" in typed else old.plan.rounds
        found[name] = replace(old, plan=replace(old.plan, rounds=rounds), privacy=privacy)
    return found


def _extended(old: Privacy, dials: Values, path: Path) -> Privacy:
    """Stored dials with the ε that may be spent now."""
    for name, wanted in dials.items():
        if name != "max_epsilon" and wanted != getattr(old, name):
            raise refuse_change(f"--{flag_of(name)}", wanted, getattr(old, name), path)
    return replace(old, **dials) if dials else old


def refuse_change(flag: str, wanted: Any, was: Any, path: Path) -> UsageError:
    """The error of an option that would make another run of the one that is resumed."""
    return UsageError(
        f"{flag} {wanted} would change the run in {path}, which has {was}: "
        "leave it out, or start a new run with --out."
    )


def check_clients(plan: Plan, data: FederatedData) -> None:
    """Raises a PlanError if a round asks for more clients than there are."""
    if plan.clients_per_round > data.clients:
        raise PlanError(
            f"clients-per-round is {plan.clients_per_round}, but only {data.clients} clients of "
            f"{data.name} have training data: ask for at most {data.clients}."
        )


def seconds(typed: str) -> float:
    """A number of seconds, not negative, for argparse."""
    try:
        if float(typed) >= 0:
            return float(typed)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{typed!r} is not a number of seconds")


def _plain(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__
