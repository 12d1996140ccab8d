"""`fedrows run`: one algorithm on one task, in a folder of its own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.catalogue import DEFAULT
from fedrows.cli.carry_out import (
    ANCHORS_HELP,
    carry_out,
    check_machine,
    close,
    conclude,
    load,
    run_of,
    say_threads,
    write_anchors,
)
from fedrows.cli.flags import Parser, UsageError, values_for
from fedrows.cli.parse import TrainingCommand, parse, parser_of, task_named, watched
from fedrows.cli.per_algorithm import add_rates
from fedrows.cli.settings import add_privacy, choose, extended
from fedrows.cli.several_processes import Stop, follow, one_voice, threads_of
from fedrows.cli.show import say
from fedrows.data.federation import FederatedData
from fedrows.measure.all_anchors import check_data
from fedrows.runs.driver import checked_early_stop
from fedrows.runs.folder import RunFolder, check_free
from fedrows.runs.resume import begin, go_back_, resumed
from fedrows.runs.settings import Settings, from_config
from fedrows.simulation import Simulation, threads
from fedrows.simulator import process_group
from fedrows.watch import Observers, Watching


def main(words: Sequence[str]) -> int:
    with one_voice():
        typed = parse(words, _parser)
        if process_group.rank() > 0:
            return _main(values_for(Watching, typed)[1], Observers())
        with watched(typed) as observer:
            return _main(typed, observer)


def _main(typed: dict[str, Any], observer: Observers) -> int:
    command = TrainingCommand.taken(typed, observer)
    if len(command.algorithms) > 1:
        listed = ",".join(command.algorithms)
        raise UsageError(f"--algorithm is {listed}, but run takes one: use compare.")
    [name] = command.algorithms or [DEFAULT]
    path = command.folder(f"{name}-{typed.get('seed', 0)}")
    if command.resume is not None:
        return _resume(path, command, typed)
    settings = choose(task_named(command.task), [name], typed)[name].resolved()
    settings.privacy.check_packages()
    say_threads(settings.plan, typed)
    if process_group.rank() == 0:
        check_free(path, overwrite=command.overwrite)
    with threads(settings.plan.threads):
        data = load(settings.task, settings.options, [settings.plan])
        if command.anchors:
            check_data(data)
        simulation = settings.simulation(data, path)
        simulation.prepare()
        checked_early_stop(simulation)  # before there is a folder
        if not simulation.leads:
            return follow(simulation, _again(path))
        config = {**settings.config(), "command": command.words}
        if simulation.ranked is not None:
            config["processes"] = simulation.ranked.group.size
        folder = RunFolder.create(path, "run", config, overwrite=command.overwrite)
        with folder.locked():
            begin(folder, simulation, simulation.evaluator.facts())
            return _go(folder, settings, simulation, data, command)


def _resume(path: Path, command: TrainingCommand, typed: dict[str, Any]) -> int:
    folder = RunFolder.open(path, "run")
    stored = from_config(folder.config, path)
    [settings] = stored.values()
    for flag, wanted, was in (
        ("TASK", command.task, settings.task.name),
        ("--algorithm", next(iter(command.algorithms), None), settings.algorithm.name),
    ):
        if wanted is not None and wanted != was:
            raise UsageError(
                f"{flag} is {wanted}, but {path} is a run of {was}: leave it out, or start a new "
                "run with --out."
            )
    settings = extended(stored, typed, path)[settings.algorithm.name]
    check_machine(folder, settings.plan)
    with threads(threads_of(settings.plan.threads, folder.config.get("processes", 1))):
        if process_group.rank() > 0:
            data = load(settings.task, settings.options, [settings.plan])
            simulation = settings.simulation(data, path)
            go_back_(simulation, folder)
            return follow(simulation, _again(path))
        with folder.locked():
            data = load(settings.task, settings.options, [settings.plan])
            simulation = resumed(folder, settings, data)
            return _go(folder, settings, simulation, data, command)


def _go(
    folder: RunFolder,
    settings: Settings,
    simulation: Simulation,
    data: FederatedData,
    command: TrainingCommand,
) -> int:
    """Runs the rounds that are left, then fits the anchors if they are wanted."""
    again, ranked = _again(folder.path), simulation.ranked
    name, plan, observer = settings.algorithm.name, settings.plan, command.observer
    at = simulation.progress.round
    say(
        f"{name} on {settings.task.name}, seed {plan.seed}, on {plan.device}"
        + (f" in {ranked.group.size} processes: " if ranked else ": ")
        + (f"going on after round {at} of {plan.rounds}" if at else f"{plan.rounds} rounds")
    )
    observer.begin(run_of(folder.path.resolve().name, folder, simulation))
    with command.live.following(folder.path):
        with Stop() as stop:
            seconds = command.checkpoint_seconds
            done = carry_out(simulation, folder, observer, stop, name, again, seconds)
        code = close(folder, done, f"after round {simulation.progress.round}", again)
    conclude(observer, folder, done)
    if command.anchors and code == 0:
        write_anchors(folder, data, plan.train_sample)
    return code


def _again(path: Path) -> str:
    """The command that goes on, in any number of processes."""
    return f"fedrows run --resume {shlex.quote(str(path))}"


def _parser() -> Parser:
    parser = parser_of(
        "run",
        "Trains one algorithm on a task and leaves metrics, a checkpoint and a report in a folder.",
        "The folder to write (default: runs/TASK-ALGORITHM-SEED).",
        "Continue an interrupted run; a larger --rounds makes a run longer.",
    )
    known = ", ".join(catalogue.names("algorithm"))
    parser.add_argument("--algorithm", metavar="NAME", help=f"One of {known} (default: {DEFAULT}).")
    parser.add_argument("--anchors", action="store_true", help=ANCHORS_HELP)
    add_rates(parser)
    add_privacy(parser)
    return parser
