"""`fedrows privacy`: who learns what in a private run, and what each way to count heat costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedrows import catalogue
from fedrows.catalogue import DEFAULT
from fedrows.cli.flags import HELP, Parser, UsageError, add_options, values_for
from fedrows.cli.parse import algorithms_of, parse, task_named
from fedrows.cli.settings import add_privacy, choose
from fedrows.cli.show import print_table, say
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, UnknownNameError
from fedrows.measure.summary import show_bytes, show_number
from fedrows.privacy.counting import Counting, table, values_of
from fedrows.privacy.explain import ExplainedRun, text
from fedrows.privacy.ledger_file import LedgerFile, combined
from fedrows.privacy.values import rows_per_value
from fedrows.runs.folder import LEDGER
from fedrows.runs.settings import Settings

SUBCOMMANDS = {
    "explain": "Say who learns what, at which ε, for which bytes and seconds.",
    "heat": "Compare the four ways to count heat: bytes, error, ε, and the least count they show.",
    "ledger": "Say what the runs that share a ledger have spent.",
}


def main(words: Sequence[str]) -> int:
    if not words or words[0] in HELP:
        lines = "\n".join(f"  {name:8} {text}" for name, text in SUBCOMMANDS.items())
        say(f"usage: fedrows privacy COMMAND …\n\n{lines}")
        return 0
    if words[0] not in SUBCOMMANDS:
        raise UnknownNameError("command of fedrows privacy", words[0], SUBCOMMANDS)
    return {"explain": _explain, "heat": _heat, "ledger": _ledger}[words[0]](words[1:])


def _explain(words: Sequence[str]) -> int:
    typed = parse(words, _explain_parser)
    name = (algorithms_of(typed) or [DEFAULT])[0]
    task, policy = task_named(typed.pop("task")), _policy(typed.pop("policy"))
    for used in ("algorithm", "command"):
        del typed[used]
    settings = choose(task, [name], typed)[name]
    data = settings.task.load(settings.options)
    say(text(setting_of(settings, data)))
    if settings.privacy.secret_sums and settings.privacy.min_contributors > 1:
        from fedrows.privacy.relations import warning

        if caution := warning(data):
            say(f"\n{caution}")
    say(policy)
    from fedrows.flower.gateway.device_runs import explain_devices, why_declined

    privacy, weighting = settings.privacy, settings.plan.weighting
    declined = why_declined(privacy, weighting, data) if privacy.secret_sums else None
    say("\n" + "\n".join(explain_devices(privacy.secret_sums, declined)))
    return 0


def _policy(file: str | None) -> str:
    """What a node asks of a run, by a policy or by default."""
    from fedrows.flower.node.policy import NodePolicy, read_policy

    policy = read_policy(Path(file)) if file else NodePolicy()
    lines = [
        f"\nA deployed node takes part if the run keeps to the node's policy "
        f"({file or 'the default of a node with peers'}):"
    ]
    return "\n".join([*lines, *(f"  {line}" for line in policy.lines())])


def _heat(words: Sequence[str]) -> int:
    dials, typed = values_for(Counting, parse(words, _heat_parser))
    task = task_named(typed.pop("task"))
    del typed["command"]
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


def _ledger(words: Sequence[str]) -> int:
    parser = Parser("privacy ledger", "Says what the runs that share a ledger have spent.")
    parser.add_argument("file", metavar="FILE", nargs="?", help="The file of --ledger.")
    parser.add_argument("--delta", metavar="X", help="δ at which ε is reported (default: 1e-6).")
    typed = parser.parse(words)
    if typed["file"] is None:
        raise UsageError("Name the file of a ledger, as in: fedrows privacy ledger FILE.")
    path = Path(typed["file"])
    if path.is_dir():
        path /= LEDGER
    if not path.exists():
        raise UsageError(f"There is no ledger {path}: name the FILE that runs had as --ledger.")
    try:
        delta = float(typed["delta"] or 1e-6)
    except ValueError:
        raise UsageError(f"--delta is {typed['delta']!r}, but must be a number.") from None
    ledger_file = LedgerFile(path)
    total = ledger_file.ledger(delta)
    runs = list(dict.fromkeys(each.run for each in ledger_file.spendings()))
    parts = {run: combined(ledger_file.of(run), delta) for run in runs}
    rows = [
        [run, str(max(each.round for each in ledger_file.of(run)))]
        + [_epsilon(part.spent(kind)) for kind in total.kinds]
        for run, part in parts.items()
    ]
    rows.append(["all runs", ""] + [_epsilon(total.spent(kind)) for kind in total.kinds])
    print_table(["Run", "Rounds", *total.kinds], rows)
    say(f"ε of each kind at δ = {delta:g}. Kinds do not add up with each other.")
    return 0


def setting_of(settings: Settings, data: FederatedData) -> ExplainedRun:
    """A run as far as privacy is concerned, with the sizes of its data."""
    privacy, plan = settings.privacy, settings.plan
    schema = settings.made(data)[1].schema
    shared = {t: table_kind for t, table_kind in schema.tables.items() if t not in data.local}
    sizes, behind = np.zeros(data.clients), 1
    values = set_values = value_rows = 0
    for name, table_kind in shared.items():
        index, named = data.index[name], values_of(data, name)
        sizes += index.lengths.numpy()
        owner, rows = index.owner.cpu().numpy(), index.ids.cpu().numpy()
        behind = max(behind, rows_per_value(named, owner, rows))
        values += len(np.unique(named.of(np.arange(table_kind.rows))[0]))
        pairs = np.unique(np.stack([owner, named.of(rows)[0]]), axis=1)
        of_value = np.bincount(named.of(np.unique(rows))[0], minlength=table_kind.rows)
        set_values += pairs.shape[1]
        value_rows += int(of_value[pairs[1]].sum())
    if plan.clients_per_round > data.clients:
        raise PlanError(
            f"clients-per-round is {plan.clients_per_round}, but {data.name} has {data.clients} "
            "clients with training data."
        )
    union_bytes = 0.0
    if privacy.secret_sums:
        from fedrows.privacy.row_space import RowSpace
        from fedrows.privacy.server_side import plan_bytes, union_plan

        space = RowSpace({name: table_kind.rows for name, table_kind in shared.items()})
        how = union_plan(privacy, space, plan.buffer_size, int(sizes.max()), "explained")
        union_bytes = float(plan_bytes(how))
    return ExplainedRun(
        privacy=privacy,
        clients=data.clients,
        cohort=plan.buffer_size,
        grouped=plan.mode == "async" and privacy.secret_sums,
        rounds=plan.rounds,
        weighting=plan.weighting,
        rows={name: table_kind.rows for name, table_kind in shared.items()},
        widths={name: table_kind.width for name, table_kind in shared.items()},
        dense=schema.dense_size,
        set_size=round(float(sizes.mean())),
        rows_per_value=behind,
        set_values=round(set_values / data.clients),
        value_rows=round(value_rows / data.clients),
        values=values,
        union_bytes=union_bytes,
        counted=data.fields[data.target[0]] if plan.start == "counted" and data.target else None,
    )


def _parser(command: str, description: str) -> Parser:
    parser = Parser(f"privacy {command}", description)
    tasks = ", ".join(catalogue.names("task"))
    parser.add_argument("task", metavar="TASK", nargs="?", help=f"One of {tasks}.")
    return parser


def _explain_parser() -> Parser:
    parser = _parser("explain", "Says who learns what in a run, without running it.")
    parser.add_argument("--algorithm", metavar="NAME", help=f"Which (default: {DEFAULT}).")
    parser.add_argument("--policy", metavar="FILE", help="A node's policy to show.")
    add_privacy(parser)
    return parser


def _heat_parser() -> Parser:
    parser = _parser("heat", "Compares the four ways to count heat on a task's own data.")
    add_options(parser, "counting", [Counting], {}, without=["heat", "heat_cap", "heat_z"])
    return parser


def _epsilon(epsilon: float) -> str:
    return f"{epsilon:,.3g}" if np.isfinite(epsilon) else "∞"
