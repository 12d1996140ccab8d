"""`fedrows tune`: searches rates and options of algorithms on a task's validation examples."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.compare import SEEDS
from fedrows.cli.flags import Parser, UsageError, whole_number_or_none
from fedrows.cli.live import LivePage
from fedrows.cli.parse import algorithms_of, folder_of, parse, parser_of, seeds_of, task_named
from fedrows.cli.settings import choose
from fedrows.cli.show import print_table, say
from fedrows.errors import INTERRUPTED
from fedrows.runs.folder import RunFolder, check_free
from fedrows.runs.resume import refuse_change
from fedrows.study.finished import StudyError
from fedrows.tuning.page import write
from fedrows.tuning.result import RATES, TRIALS
from fedrows.tuning.space import spaces
from fedrows.tuning.trials import TaskRun, Tunable
from fedrows.tuning.tune import rounds_of, with_validation
from fedrows.tuning.tuner import ETA, METHODS, SEED, Tuner

TUNE = "tune"  # the kind of folder
OWN = (
    *("task", "algorithms", "search", "method", "by", "budget", "trials", "eta", "tune_seed"),
    *("sampler", "confirm", "workers", "command"),
)
NUMBERS = {"budget": 1, "trials": 1, "eta": 1, "tune_seed": 0, "workers": 1}  # each at least
LATER = ("workers", "confirm")  # what a search that goes on may have new


def main(words: Sequence[str]) -> int:
    parsed = parse(words, _parser, without=["seed"])
    live = LivePage.typed(parsed)
    resume, out, overwrite = parsed.pop("resume"), parsed.pop("out"), parsed.pop("overwrite")
    typed = {name: value for name, value in parsed.items() if value is not None}
    if resume is None:
        path = folder_of(None, out, task_named(typed.get("task")).name, "tune")
        tuner = _tuner(typed, path)
        confirm = _confirm(typed)
        check_free(path, overwrite=overwrite)
        tuner.check(tests=bool(confirm))  # before there is a folder
        folder = RunFolder.create(path, TUNE, {"typed": typed}, overwrite=overwrite)
        for name in (TRIALS, RATES):
            (path / name).unlink(missing_ok=True)
    else:
        path = folder_of(resume, out, typed.get("task"), "tune")
        folder = RunFolder.open(path, TUNE)
        typed = _extended(folder.config["typed"], typed, path)
        tuner, confirm = _tuner(typed, path), _confirm(typed)
    with folder.locked(), live.following(path):
        return _go(tuner, path, confirm, folder.config["typed"]["command"])


def _go(tuner: Tuner, path: Path, confirm: Sequence[int], command: str) -> int:
    """Makes the trials that are missing, shows what they come to, and writes it."""
    say(
        f"{', '.join(tuner.runs)} on {tuner.name} by {tuner.method}: at most {tuner.budget:,} "
        f"rounds for each, {tuner.rounds} in a whole run"
    )
    try:
        tuned = tuner.run()
        if confirm:
            tuned = tuner.confirm(tuned, confirm)
    except KeyboardInterrupt:
        say(f"Stopped; trials that were finished are kept. Go on with: {_again(path)}")
        return INTERRUPTED
    print_table(*tuned.table())
    if tuned.confirmed:
        say("On test examples:")
        print_table(*tuned.test_table())
    rates = tuned.save(path)
    task = catalogue.reference("task", tuner.name) or tuner.name
    use = f"fedrows compare {shlex.quote(task)} --rates {shlex.quote(str(rates))}"
    say(f"Rates: {rates}; use them with: {use}")
    try:
        say(f"Page: {write(tuned, path, command)}")
    except StudyError as error:
        say(f"Note: {error}")
    return 0


def _tuner(typed: dict[str, Any], path: Path) -> Tuner:
    left = dict(typed)
    own = {name: left.pop(name, None) for name in OWN}
    number = {
        name: whole_number_or_none(f"--{name.replace('_', '-')}", own[name], least)
        for name, least in NUMBERS.items()
    }
    task = catalogue.task(own["task"])
    names = algorithms_of({"algorithms": own["algorithms"]})
    if not names:
        raise UsageError(f"Name algorithms to tune: --algorithms {catalogue.DEFAULT},fedavg.")
    device = left.pop("device", "auto")
    settings = choose(task, names, left)
    runs: dict[str, Tunable] = {
        name: TaskRun(with_validation(setting, left).config()) for name, setting in settings.items()
    }
    return Tuner(
        task.name,
        runs,
        spaces({name: type(run.algorithm) for name, run in runs.items()}, _search(own["search"])),
        own["method"] or METHODS[0],
        own["by"] or "",
        rounds_of(number["budget"], number["trials"], runs),
        number["eta"] or ETA,
        SEED if number["tune_seed"] is None else number["tune_seed"],
        own["sampler"] or "tpe",
        path,
        None,
        number["workers"],
        device,
        say,
    )


def _search(words: Sequence[str] | None) -> dict[str, str]:
    by_option: dict[str, str] = {}
    for word in words or ():
        name, equals, values = word.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--search {word} has no values: write --search lr=0.03..3.")
        if name in by_option:
            raise UsageError(f"--search names {name} twice: give all its values at once.")
        by_option[name.strip()] = values
    return by_option


def _extended(stored: dict[str, Any], typed: dict[str, Any], path: Path) -> dict[str, Any]:
    """What was typed when the search began, with what may be new; no other change goes."""
    for name, value in typed.items():
        if name not in (*LATER, "command") and value != stored.get(name):
            flag = "TASK" if name == "task" else f"--{name.replace('_', '-')}"
            raise refuse_change(flag, value, stored.get(name, "none"), path)
    return {**stored, **{name: typed[name] for name in LATER if name in typed}}


def _confirm(typed: Mapping[str, Any]) -> list[int]:
    return seeds_of("--confirm", typed["confirm"]) if "confirm" in typed else []


def _again(path: Path) -> str:
    return f"fedrows tune --resume {shlex.quote(str(path))}"


def _parser() -> Parser:
    parser = parser_of(
        "tune",
        "Searches learning rates and options on validation examples, with the same budget for "
        "every algorithm. Test examples have no say.",
        "The folder to write (default: runs/TASK-tune).",
        "Go on with a search; trials that were finished are not made again.",
        saves=False,
    )
    known = ", ".join(catalogue.names("algorithm"))

    def add(flag: str, metavar: str, text: str, **more: Any) -> None:
        parser.add_argument(flag, metavar=metavar, help=text, default=argparse.SUPPRESS, **more)

    add("--algorithms", "A,B", f"Which algorithms, of {known}.")
    add(
        "--search",
        "NAME=VALUES",
        "What to search: lr=0.03..3 (half-decades), tau=1e-8..1e-2:4 (four values), mu=0,0.01 "
        "(these), fedadam.tau=… (for one algorithm); may be given again (default: each "
        "algorithm's usual rates).",
        action="append",
    )
    add(
        "--method",
        "|".join(METHODS),
        "How to search (default: halving, which gives most rounds to the best).",
    )
    add("--by", "METRIC", "The validation metric that decides (default: validation_loss).")
    add("--budget", "N", "Rounds for each algorithm (default: what the largest space needs).")
    add("--trials", "N", "The budget in whole runs, in place of --budget.")
    add("--eta", "N", f"Halving keeps one of N, and runs it N times as long (default: {ETA}).")
    add("--sampler", "NAME", "With --method optuna: tpe, gp, cmaes or qmc (default: tpe).")
    add("--tune-seed", "N", f"The seed of the trials, and of random draws (default: {SEED}).")
    add(
        "--confirm",
        "N,N",
        f"Then train with the chosen values and these seeds, such as {SEEDS}, and show test "
        "metrics.",
    )
    add("--workers", "N", "Make trials in N processes (default: one for each core).")
    return parser
