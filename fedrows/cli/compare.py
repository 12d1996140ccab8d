"""`fedrows compare`: several algorithms on one task, over several seeds, side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.cli.carry_out import (
    ANCHORS_HELP,
    carry_out,
    check_machine,
    close,
    conclude,
    load,
    run_of,
    say_notes,
    say_threads,
    write_anchors,
)
from fedrows.cli.flags import Parser, UsageError, whole_number_or_none
from fedrows.cli.parse import (
    TrainingCommand,
    parse,
    parser_of,
    seeds_of,
    task_named,
    watched,
)
from fedrows.cli.per_algorithm import add_rates, add_set
from fedrows.cli.settings import add_privacy, choose, extended, shared_plan
from fedrows.cli.several_processes import Stop, one_voice
from fedrows.cli.show import metrics_of, say, show
from fedrows.data.federation import FederatedData
from fedrows.errors import NotFiniteError, PlanError, UnknownNameError
from fedrows.files.whole import Json
from fedrows.measure.all_anchors import check_data
from fedrows.measure.metric_choice import DIVERGED
from fedrows.measure.summary import METRICS, Target
from fedrows.runs.folder import RunFolder, check_free
from fedrows.runs.resume import refuse_change
from fedrows.runs.settings import Settings, resolve
from fedrows.simulation import threads
from fedrows.simulator import process_group
from fedrows.study.compared import ComparedRun, replay
from fedrows.study.comparison import Comparison
from fedrows.study.scheduling import ReportRound, executor_for
from fedrows.watch import Observers, RoundReport, RunInfo

SEEDS = "0,1,2"


def main(words: Sequence[str]) -> int:
    with one_voice():
        if process_group.several():
            raise UsageError(
                "compare has one process: start it without torchrun, or use `fedrows run` for each "
                "algorithm."
            )
    typed = parse(words, _parser, without=["seed"])
    with watched(typed) as observer:
        command = TrainingCommand.taken(typed, observer)
        workers = whole_number_or_none("--workers", typed.pop("workers"))
        listed = typed.pop("seeds")
        seeds = [] if listed is None else sorted(seeds_of("--seeds", listed))
        target, path = _target(typed), command.folder("compare")
        if command.resume is None:
            comparison, data = _new(path, command, seeds, target, typed, workers)
        else:
            comparison, data = _extended(path, command, seeds, target, typed)
        with threads(comparison.plan.threads), command.live.following(path):
            return _go(comparison, data, command, workers)


def _new(
    path: Path,
    command: TrainingCommand,
    seeds: list[int],
    target: Target | None,
    typed: dict[str, Any],
    workers: int | None,
) -> tuple[Comparison, FederatedData]:
    """A comparison that begins, and its data."""
    left_out: dict[str, str] | None = None if command.algorithms else {}
    algorithms = command.algorithms or catalogue.built_in("algorithm")
    seeds = seeds or [int(seed) for seed in SEEDS.split(",")]
    task = task_named(command.task)
    share = min(workers or 1, len(algorithms) * len(seeds))
    with threads(max(1, torch.get_num_threads() // share)):  # the part that each process has
        made = choose(task, algorithms, typed, left_out)
        settings = {name: setting.resolved() for name, setting in made.items()}
        plan = resolve(shared_plan(task, typed))
    first = next(iter(settings.values()))
    first.privacy.check_packages()
    if workers is None:
        say_threads(plan, typed)
    check_free(path, overwrite=command.overwrite)
    with threads(plan.threads):
        data = load(task, first.options, [setting.plan for setting in settings.values()])
        settings = _usable(settings, data, left_out)
        if command.anchors:
            check_data(data)
        comparison = Comparison.new(
            path, settings, plan, seeds, target or Target(), command.words, command.overwrite
        )
        with comparison.folder.locked():
            comparison.begin(data)
    return comparison, data


def _usable(
    settings: dict[str, Settings], data: FederatedData, left_out: dict[str, str] | None
) -> dict[str, Settings]:
    """The settings whose algorithms can train on the data; those left out are said to be.

    left_out: those that were left out already, and why; None: all were asked for by name, and one
    that cannot is an error.
    """
    usable = {}
    for name, setting in settings.items():
        try:
            setting.check_data(data)
        except PlanError as error:
            if left_out is None:
                raise
            left_out[name] = str(error)
        else:
            usable[name] = setting
    for name, why in (left_out or {}).items():
        say(f"Left out {name}: {why}")
    return usable


def _extended(
    path: Path,
    command: TrainingCommand,
    seeds: list[int],
    target: Target | None,
    typed: dict[str, Any],
) -> tuple[Comparison, FederatedData]:
    """The comparison in a folder, perhaps with more seeds or rounds, and its data."""
    old = Comparison.opened(path)
    settings, stored, algorithms = old.settings, old.seeds, command.algorithms
    if command.task is not None and command.task != old.task.name:
        raise refuse_change("TASK", command.task, old.task.name, path)
    if algorithms and sorted(algorithms) != sorted(settings):
        raise refuse_change("--algorithms", ",".join(algorithms), ",".join(settings), path)
    if missing := sorted(set(stored) - set(seeds or stored)):
        raise refuse_change("--seeds without", missing[0], _listed(stored), path)
    settings = extended(settings, typed, path)
    comparison = Comparison(old.folder, settings, seeds or stored, target or old.target)
    if comparison.plan.rounds < old.plan.rounds:
        raise refuse_change("--rounds", comparison.plan.rounds, old.plan.rounds, path)
    check_machine(old.folder, comparison.plan)
    with threads(comparison.plan.threads):
        first = next(iter(settings.values()))
        data = load(first.task, first.options, [setting.plan for setting in settings.values()])
        with comparison.folder.locked():
            comparison.begin(data)
    return comparison, data


def _go(
    comparison: Comparison, data: FederatedData, command: TrainingCommand, workers: int | None
) -> int:
    """Makes the runs that are missing: here one after another, or in processes."""
    folder, plan, again = comparison.folder, comparison.plan, comparison.again
    observer, seconds = command.observer, command.checkpoint_seconds
    runs = comparison.runs()
    executor = None if workers is None else executor_for(workers, plan.device, len(runs))
    say(
        f"{', '.join(comparison.settings)} on {data.name}, seeds {_listed(comparison.seeds)}, "
        f"on {plan.device}: {len(runs)} runs of {plan.rounds} rounds"
    )
    titles = {run.label: f"{n}/{len(runs)} {run.label}" for n, run in enumerate(runs, start=1)}
    with Stop() as stop:
        if executor is None:

            def here(run: ComparedRun, heard: ReportRound) -> tuple[Json, str]:
                try:
                    return {"done": _run(run, data, observer, stop, titles[run.label])}, ""
                except NotFiniteError as error:  # a result too; the others are made all the same
                    say(f"{run.label}: {error}")
                    return {"done": True, DIVERGED: str(error), "round": _next_round(run)}, ""

            stopped = comparison.run(
                here=here, stopping=lambda: stop.asked, checkpoint_seconds=seconds
            )
        else:
            stopped = _run_elsewhere(comparison, executor, observer, stop, titles, seconds)
    where = f"in {', '.join(run.label for run in stopped)}"
    code = close(folder, not stopped, where, again, comparison.target)
    if not stopped:
        name, rounds = folder.path.resolve().name, plan.rounds
        observer.begin(RunInfo(name, folder.config, rounds, rounds, folder.path))
        conclude(observer, folder, True)
    if command.anchors and code == 0:
        with folder.locked():
            write_anchors(folder, data, plan.train_sample)
    return code


def _run(
    run: ComparedRun, data: FederatedData, observer: Observers, stop: Stop, title: str
) -> bool:
    """Makes one run, or what is left of it; False if it was stopped."""
    with run.opened(data) as (folder, simulation):
        observer.begin(run_of(_name(run), folder, simulation))
        done = carry_out(
            simulation, folder, observer, stop, title, run.again, run.checkpoint_seconds
        )
    observer.end(done)
    return done


def _run_elsewhere(
    comparison: Comparison,
    executor: Executor,
    observer: Observers,
    stop: Stop,
    titles: Mapping[str, str],
    seconds: float,
) -> list[ComparedRun]:
    """Makes the runs in processes; observers hear of each when it is made."""
    runs = comparison.runs()
    rounds = {run.label: run.rounds if run.finished else 0 for run in runs}
    display = show("All runs", sum(rounds.values()), comparison.plan.rounds * len(runs))

    def progress(done: int, of: int, label: str, round_: int) -> None:
        rounds[label] = round_
        display.round(RoundReport(sum(rounds.values()), 0, 0))

    def shown(run: ComparedRun, content: Json) -> None:
        config = RunFolder.open(run.path, "run").config
        observer.begin(RunInfo(_name(run), config, run.rounds, content["at"], run.path))
        replay(content["heard"], observer)
        observer.end(content["done"])
        words = [titles[run.label], f"round {content['round']}/{run.rounds}"]
        say("  ".join([*words, *(word for line in run.lines()[-1:] for word in metrics_of(line))]))
        say_notes(content["notes"], content["round"], content["stopped"])

    try:
        return comparison.run(
            executor,
            progress=progress,
            report=shown,
            stopping=lambda: stop.asked,
            checkpoint_seconds=seconds,
        )
    except KeyboardInterrupt:
        display.end()
        say(f"Stopped at once. Go on with: {comparison.again}")
        raise
    finally:
        display.end()
        executor.shutdown()


def _next_round(run: ComparedRun) -> int:
    """The round in which a run that has diverged was to be evaluated next."""
    last = max((line["round"] for line in run.lines()), default=0)
    return min(last + run.settings.plan.evaluate_every, run.rounds)


def _name(run: ComparedRun) -> str:
    return f"{run.path.resolve().parents[1].name}/{run.path.name}"


def _target(typed: dict[str, Any]) -> Target | None:
    metric, rounds = typed.pop("target_metric"), typed.pop("target_rounds")
    value = typed.pop("target_value")
    if metric is None and rounds is None and value is None:
        return None
    if metric is not None and metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    try:
        number = None if value is None else float(value)
    except ValueError:
        number = math.nan
    if number is not None and not math.isfinite(number):
        raise UsageError(f"--target-value is {value!r}, but must be a finite number.")
    within = whole_number_or_none("--target-rounds", rounds)
    return Target(metric or "train_loss", number, within)


def _listed(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _parser() -> Parser:
    parser = parser_of(
        "compare",
        "Trains several algorithms on a task over several seeds, and shows them side by side.",
        "The folder to write (default: runs/TASK-compare).",
        "Finish an interrupted comparison; more --seeds or --rounds extend it.",
    )
    known = ", ".join(catalogue.names("algorithm"))
    add = parser.add_argument
    add("--algorithms", metavar="A,B", help=f"Which algorithms, of {known} (default: all of ours).")
    add("--seeds", metavar="N,N", help=f"A run for each of these seeds (default: {SEEDS}).")
    add(
        "--target-rounds",
        metavar="N",
        help="The target is CentralSGD's best within N rounds (default: two thirds of --rounds).",
    )
    add(
        "--target-metric",
        metavar="NAME",
        help=f"One of {', '.join(METRICS)} (default: train_loss).",
    )
    add(
        "--workers",
        metavar="N",
        help="Make the runs in N processes, each with its part of the cores unless --threads says "
        "how many (default: in this one, one after another, as always on a GPU).",
    )
    add("--anchors", action="store_true", help=ANCHORS_HELP)
    add_rates(parser)
    add_set(parser)
    add_privacy(parser)
    add("--target-value", metavar="X", help="A target of your own instead of CentralSGD's best.")
    return parser
