"""`fedrows privacy`: who learns what in a private run, and what each way to count heat costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedrows import catalogue
from fedrows.catalogue import DEFAULT
from fedrows.cli.flags import Parser, UsageError, add_options, value
from fedrows.cli.parse import algorithms_of, named, with_settings
from fedrows.cli.settings import add_mechanisms, add_privacy, add_settings, choose
from fedrows.cli.show import print_table, say
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, UnknownNameError
from fedrows.measure.summary import show_bytes, show_number
from fedrows.options import options
from fedrows.privacy.counting import Counting, table, values_of
from fedrows.privacy.explain import ExplainedRun, text
from fedrows.privacy.values import rows_per_value
from fedrows.runs.settings import Settings

SUBCOMMANDS = {
    "explain": "Say who learns what, at which ε, for which bytes and seconds.",
    "heat": "Compare the four ways to count heat: bytes, error, ε, and the least count they show.",
}


def main(words: Sequence[str]) -> int:
    """Explains, or compares; gives the exit code."""
    if not words or words[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:8} {what}" for name, what in SUBCOMMANDS.items())
        say(f"usage: fedrows privacy COMMAND TASK …\n\n{lines}")
        return 0
    if words[0] not in SUBCOMMANDS:
        raise UnknownNameError("command of fedrows privacy", words[0], SUBCOMMANDS)
    return {"explain": _explain, "heat": _heat}[words[0]](words[1:])


def _explain(words: Sequence[str]) -> int:
    typed = _parsed(_explain_parser, words)
    if typed is None:
        return 0
    name = (algorithms_of(typed) or [DEFAULT])[0]
    typed.pop("algorithm")
    settings = choose(_task(typed), [name], typed)[name]
    say(text(setting_of(settings, settings.task.load(settings.options))))
    return 0


def _heat(words: Sequence[str]) -> int:
    typed = _parsed(_heat_parser, words)
    if typed is None:
        return 0
    known = {item.name: item for item in options(Counting)}
    dials = {
        key: value(Counting, known[key], typed.pop(key), key.replace("_", "-"))
        for key in list(typed)
        if key in known
    }
    task = _task(typed)
    settings = choose(task, [DEFAULT], typed)[DEFAULT]
    data = task.load(settings.options)
    lines = table(data, Counting(**dials))
    titles = ["Table", "Heat", "Bytes up", "Error", "ε of a value", "ε of a set", "Least count", ""]
    rows = [
        [
            line.table,
            line.way,
            show_bytes(line.bytes_up),
            show_number(line.error),
            _epsilon(line.epsilon),
            _epsilon(line.epsilon_set),
            show_number(line.smallest),
            line.verdict,
        ]
        for line in lines
    ]
    say(f"{data.name}: {data.clients:,} clients")
    print_table(titles, rows)
    say("Error: median standard error of a count. Least count: a count twice its standard error.")
    return 0


def setting_of(settings: Settings, data: FederatedData) -> ExplainedRun:
    """A run as far as privacy is concerned, with the sizes of its data."""
    privacy, plan = settings.privacy, settings.plan
    schema = catalogue.model(settings.task.model)(data, plan.seed).schema
    shared = {t: its for t, its in schema.tables.items() if t not in data.local}
    sizes = np.zeros(data.clients)
    behind = 1
    for name in shared:
        index = data.index[name]
        sizes += index.lengths.numpy()
        named = values_of(data, name).of(index.ids.cpu().numpy())[0]
        behind = max(behind, rows_per_value(index.owner.cpu().numpy(), named))
    if plan.clients_per_round > data.clients:
        raise PlanError(
            f"clients-per-round is {plan.clients_per_round}, but {data.name} has {data.clients} "
            "clients with training data."
        )
    more: dict[str, Any] = {}
    if privacy.mechanism is not None:
        more |= {"mechanism": privacy.mechanism, "heat_noise": privacy.dp_heat_noise}
    if privacy.secret_sums:
        from fedrows.privacy.row_space import RowSpace
        from fedrows.privacy.server_side import plan_bytes, union_plan

        space = RowSpace({name: its.rows for name, its in shared.items()})
        how = union_plan(privacy, space, plan.clients_per_round, int(sizes.max()), "explained")
        more["union_bytes"] = float(plan_bytes(how))
    return ExplainedRun(
        privacy=privacy.privacy,
        clients=data.clients,
        cohort=plan.clients_per_round,
        rows={name: its.rows for name, its in shared.items()},
        widths={name: its.width for name, its in shared.items()},
        dense=schema.dense_size,
        set_size=round(float(sizes.mean())),
        rows_per_value=behind,
        rounds=plan.rounds,
        minimum=privacy.min_contributors,
        counting=privacy.counting,
        stages=privacy.stages,
        delta=privacy.delta,
        **more,
    )


def _task(typed: dict[str, Any]) -> Any:
    name = typed.pop("task")
    if name is None:
        raise UsageError(f"Name a task: one of {', '.join(catalogue.names('task'))}.")
    return catalogue.task(name)


def _parser(command: str, description: str) -> Parser:
    parser = Parser(f"privacy {command}", description)
    tasks = ", ".join(catalogue.names("task"))
    parser.add_argument("task", metavar="TASK", nargs="?", help=f"One of {tasks}.")
    return parser


def _explain_parser() -> Parser:
    parser = _parser("explain", "Says who learns what in a run, without running it.")
    parser.add_argument("--algorithm", metavar="NAME", help=f"Which (default: {DEFAULT}).")
    add_privacy(parser)
    return parser


def _heat_parser() -> Parser:
    parser = _parser("heat", "Compares the four ways to count heat on a task's own data.")
    add_options(parser, "counting", [Counting], {}, without=["heat", "heat_cap", "heat_z"])
    return parser


def _parsed(build: Callable[[], Parser], words: Sequence[str]) -> dict[str, Any] | None:
    """What was typed; None if help was wanted."""
    if any(word in ("-h", "--help") for word in words):
        parser = build()
        add_mechanisms(parser, [])
        add_settings(parser)
        parser.print_help()
        return None
    return named(with_settings(words, build).parse(words))


def _epsilon(epsilon: float) -> str:
    return f"{epsilon:,.3g}" if np.isfinite(epsilon) else "∞"
