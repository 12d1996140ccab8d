"""The options of a run on the command line: the flags that there are, and what was typed.

A flag's value stays text until it is known whose option it is (see `flags`).
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import (
    DATA,
    MODEL,
    Parser,
    TypedValues,
    UsageError,
    add_options,
    comma_list,
    flag_of,
    values_for,
)
from fedrows.cli.per_algorithm import parts_of, rates_of, refuse_when_resumed, set_of
from fedrows.errors import PlanError, PluginError
from fedrows.files.plugins import source_of
from fedrows.measure.own_metrics import absolute, load_metrics
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.privacy.mechanism import DEFAULT_MECHANISM, DIAL, PREFIX, Mechanism, default_mechanism
from fedrows.privacy.options import Privacy
from fedrows.runs.resume import check_longer, refuse_change
from fedrows.runs.settings import Settings, presets, taken_names
from fedrows.task import Task


@dataclass(frozen=True)
class FlagOwner:
    """A dataclass whose options are flags; those in `prefixed` have a prefix."""

    kind: str  # task or model
    name: str
    of: type
    prefixed: Collection[str]
    prefix: str

    def values(self, typed: Mapping[str, Any]) -> tuple[TypedValues, dict[str, Any]]:
        """What was typed for it, by its own names, and the rest."""
        return values_for(self.of, typed, self.prefixed, self.prefix)


def owners_of(task: Task, algorithms: Sequence[str] = ()) -> tuple[FlagOwner, FlagOwner]:
    """The task and its model: an option that is called like another's gets a prefix."""
    model, taken = catalogue.model_options(task.model), taken_names(*algorithms)
    own = {item.name for item in options(task.options)}
    of_model = {item.name for item in options(model)}
    return (
        FlagOwner("task", task.name, task.options, own & taken, DATA),
        FlagOwner("model", task.model, model, of_model & (taken | own), MODEL),
    )


def add_settings(
    parser: Parser,
    task: str | None = None,
    algorithms: Sequence[str] = (),
    *,
    only: bool = False,
    without: Collection[str] = (),
) -> None:
    """The flags of our tasks and algorithms, or (`only`) of one task and some algorithms.

    Plug-ins have flags when they are named, so that a broken one does no harm.
    """
    dests = {action.dest for action in parser._actions} | {"mechanism"}
    dests |= {item.name for item in options(Privacy)}
    for name in algorithms:
        of = catalogue.described("algorithm", name)
        _check_free(FlagOwner("algorithm", name, of, (), DATA), dests)
    if task:
        for owner in owners_of(catalogue.described("task", task), algorithms):
            _check_free(owner, dests)
    tasks = [task] if only and task else catalogue.built_in("task")
    tasks += [task] if task and task not in tasks else []
    plan: Mapping[str, Any] = {}
    if only and task:
        plan = catalogue.task(task).plan
        if len(algorithms) == 1:
            plan = presets(catalogue.task(task), algorithms[0])[0]
    add_options(parser, "plan", [Plan], plan, without=without)
    chosen = list(algorithms) if only and algorithms else catalogue.built_in("algorithm")
    chosen += [name for name in algorithms if name not in chosen]
    parts: dict[str, list[str]] = {}
    for name in chosen:
        for item in options(catalogue.described("algorithm", name)):
            parts.setdefault(item.name, []).append(name)
    for names in dict.fromkeys(map(tuple, parts.values())):
        own_presets = presets(catalogue.task(task), names[0])[1] if only and task else {}
        owners = [catalogue.described("algorithm", name) for name in names]
        add_options(parser, "algorithm " + ", ".join(names), owners, own_presets)
    for name in tasks:
        for owner in owners_of(catalogue.described("task", name), algorithms):
            title = f"{owner.kind} {owner.name}"
            add_options(parser, title, [owner.of], {}, owner.prefixed, prefix=owner.prefix)


def _check_free(owner: FlagOwner, dests: Collection[str]) -> None:
    """Raises a PluginError if an option is called like a flag of the command or of privacy."""
    for item in options(owner.of):
        flag = flag_of(item.name, owner.prefixed, owner.prefix)
        if flag.replace("-", "_") in dests:
            raise PluginError(
                f"The {owner.kind} {owner.name} ({source_of(owner.of)}) has an option {item.name}, "
                f"but --{flag} is a flag of privacy or of the command: give the option another "
                "name."
            )


def choose(
    task: Task,
    algorithms: Sequence[str],
    typed: Mapping[str, Any],
    left_out: dict[str, str] | None = None,
) -> dict[str, Settings]:
    """The settings of a run of each algorithm; an option of none of them is an error.

    left_out: gets the algorithms that cannot follow the plan, and why; None: that is an error too.
    """
    own_task, own_model = owners_of(task, algorithms)
    of_task, left = own_task.values(typed)
    of_model, left = own_model.values(left)
    plan, left = values_for(Plan, left)
    dials, left = values_for(Privacy, left)
    if dials.get("ledger"):  # the run may go on from another folder
        dials["ledger"] = str(Path(dials["ledger"]).absolute())
    if (mechanism := left.pop("mechanism", None)) is not None:
        dials["mechanism"] = mechanism
    of_noise = catalogue.mechanism(mechanism) if mechanism else type(default_mechanism())
    noise, left = _noise_values(of_noise, left)
    privacy = Privacy.of(**dials, **{f"{DIAL}{name}": value for name, value in noise.items()})
    metrics = tuple(map(absolute, left.pop("metric", ())))
    personal = tuple(comma_list(left.pop("personal", "")))
    load_metrics(metrics)  # an error before anything else is done
    rates = rates_of(left.pop("rates", None), task.name, algorithms)
    set_for_one = set_of(left.pop("set", ()), algorithms)
    made: dict[str, Settings] = {}
    unused = dict(left)
    for name in algorithms:
        of = catalogue.algorithm(name)
        own, rest = values_for(of, left)
        unused = {key: unused[key] for key in unused.keys() & rest.keys()}
        plan_presets, own_presets = presets(task, name)
        plan_rates, own_rates = parts_of(rates.get(name, {}), of)
        plan_set, own_set = parts_of(set_for_one.get(name, {}), of)
        algorithm = of(**{**own_presets, **own_rates, **own, **own_set})
        chosen = Plan(**{**plan_presets, **plan_rates, **plan, **plan_set})
        try:
            algorithm.check_plan(chosen)
        except PlanError as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
            continue
        data, model = task.options(**of_task), own_model.of(**of_model)
        privacy.check(algorithm, chosen.clients_per_round)
        made[name] = Settings(task, data, algorithm, chosen, privacy, metrics, model, personal)
    for name in unused:
        whose = " or ".join([task.name, *algorithms, *([mechanism] if mechanism else [])])
        raise UsageError(f"--{name.replace('_', '-')} is not an option of {whose}: leave it out.")
    return made


def add_privacy(parser: Parser) -> None:
    add_options(parser, "privacy", [Privacy], {})
    known = ", ".join(catalogue.names("mechanism"))
    parser.add_argument(
        "--mechanism",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"The noise of --privacy full: one of {known} (default: {DEFAULT_MECHANISM}).",
    )


def add_mechanisms(parser: Parser, named: Sequence[str]) -> None:
    """The flags of our privacy mechanisms and of those that are named, if there may be any."""
    if "--mechanism" not in parser.flags:
        return
    ours = {name: catalogue.own("mechanism", name) for name in catalogue.built_in("mechanism")}
    for name, of in {**{name: catalogue.mechanism(name) for name in named}, **ours}.items():
        prefixed = {item.name for item in options(of)}
        add_options(parser, f"mechanism {name}", [of], {}, prefixed, prefix=PREFIX)


def shared_plan(task: Task, typed: Mapping[str, Any]) -> Plan:
    """The plan of a task before any algorithm has its say."""
    return Plan(**{**task.plan, **values_for(Plan, typed)[0]})


def _noise_values(
    of: type[Mechanism], typed: Mapping[str, Any]
) -> tuple[TypedValues, dict[str, Any]]:
    """What was typed for a privacy mechanism, by its own names, and the rest."""
    return values_for(of, typed, {item.name for item in options(of)}, PREFIX)


def extended(
    stored: Mapping[str, Settings], typed: Mapping[str, Any], path: Path
) -> dict[str, Settings]:
    """Stored settings with the rounds, or the ε, that the user now wants; no other change goes."""
    refuse_when_resumed(typed, path)
    task = next(iter(stored.values())).task
    dials, typed = values_for(Privacy, typed)
    privacy = _extended(next(iter(stored.values())).privacy, dials, path)
    typed = _without_mechanism(privacy.mechanism, typed, path)
    wanted = choose(task, list(stored), typed)
    settings = {}
    for name, old in stored.items():
        new = wanted[name]
        for flag, wanted_now, was_then in (
            ("metric", new.metrics, old.metrics),
            ("personal", new.personal, old.personal),
        ):
            if flag in typed and wanted_now != was_then:
                was = ", ".join(was_then) or "none"
                raise refuse_change(f"--{flag}", ", ".join(wanted_now), was, path)
        own_task, own_model = owners_of(task, list(stored))
        parts: list[tuple[Any, Any, Collection[str], str]] = [
            (old.options, new.options, own_task.prefixed, DATA),
            (old.model, new.model, own_model.prefixed, MODEL),
            (old.algorithm, new.algorithm, (), DATA),
            (old.plan, new.plan, (), DATA),
        ]
        for before, now, prefixed, prefix in parts:
            for item in fields(before):
                flag = flag_of(item.name, prefixed, prefix)
                was, is_now = getattr(before, item.name), getattr(now, item.name)
                same = was == is_now or flag in ("rounds", "go-on")
                same |= flag == "device" and is_now == "auto"
                if flag.replace("-", "_") in typed and not same:
                    raise refuse_change(f"--{flag}", is_now, was, path)
        rounds = new.plan.rounds if "rounds" in typed else old.plan.rounds
        check_longer(old.plan, rounds, path)
        go_on = new.plan.go_on if "go_on" in typed else old.plan.go_on
        plan = replace(old.plan, rounds=rounds, go_on=go_on)
        settings[name] = replace(old, plan=plan, privacy=privacy)
    return settings


def _extended(old: Privacy, dials: TypedValues, path: Path) -> Privacy:
    """Stored dials with the ε that may be spent now."""
    for name, wanted in dials.items():
        if name != "max_epsilon" and wanted != getattr(old, name):
            raise refuse_change(f"--{flag_of(name)}", wanted, getattr(old, name), path)
    return replace(old, **dials) if dials else old


def _without_mechanism(
    stored: Mechanism | None, typed: dict[str, Any], path: Path
) -> dict[str, Any]:  # fmt: skip
    """What was typed but for the mechanism, which must be the stored one."""
    was = "none" if stored is None else stored.name
    if (wanted := typed.pop("mechanism", was)) != was:
        raise refuse_change("--mechanism", wanted, was, path)
    if stored is None:
        return typed
    values, left = _noise_values(type(stored), typed)
    for name, wanted in values.items():
        if wanted != getattr(stored, name):
            flag = flag_of(name, values, PREFIX)
            raise refuse_change(f"--{flag}", wanted, getattr(stored, name), path)
    return left


def seconds(typed: str) -> float:
    try:
        if float(typed) >= 0:
            return float(typed)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{typed!r} is not a number of seconds")
