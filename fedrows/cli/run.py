"""`fedrows run`: one algorithm on one task, in a folder of its own."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.catalogue import DEFAULT
from fedrows.cli.anchor_table import ANCHORS_HELP, write_anchors
from fedrows.cli.carry_out import (
    carry_out,
    check_machine,
    close,
    conclude,
    load,
    run_of,
    say_threads,
)
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.live import LivePage
from fedrows.cli.parse import algorithms_of, folder_of, parse, parser_of, watched
from fedrows.cli.per_algorithm import add_rates
from fedrows.cli.settings import add_privacy, choose, extended
from fedrows.cli.several_processes import follow, one_voice, threads_of
from fedrows.cli.show import say
from fedrows.cli.stop import Stop
from fedrows.data.federation import FederatedData
from fedrows.measure.all_anchors import check_data
from fedrows.options import options
from fedrows.runs.driver import checked_early_stop
from fedrows.runs.folder import RunFolder, check_free
from fedrows.runs.resume import begin, go_back_, resumed
from fedrows.runs.settings import Settings, from_config
from fedrows.simulation import Simulation, threads
from fedrows.simulator import process_group
from fedrows.watch import Observers, Watching


def main(words: Sequence[str]) -> int:
    """Runs, or goes on; gives the exit code."""
    with one_voice():
        typed = parse(words, _parser)
        if typed is None:
            return 0
        if process_group.rank() > 0:
            others = {item.name for item in options(Watching)}
            return _main({k: v for k, v in typed.items() if k not in others}, Observers())
        with watched(typed) as observer:
            return _main(typed, observer)


def _main(typed: dict[str, Any], observer: Observers) -> int:
    command, live = typed.pop("command"), LivePage.typed(typed)
    resume, out, seconds = typed.pop("resume"), typed.pop("out"), typed.pop("checkpoint_seconds")
    overwrite, anchored = typed.pop("overwrite"), typed.pop("anchors")
    named = algorithms_of(typed)
    if len(named) > 1:
        raise UsageError(f"--algorithm is {','.join(named)}, but run takes one: use compare.")
    algorithm = named[0] if named else None
    task, _ = typed.pop("task"), typed.pop("algorithm")
    usual = f"{algorithm or DEFAULT}-{typed.get('seed', 0)}"
    if resume is not None:
        path = folder_of(resume, out, task, usual)
        return _resume(path, task, algorithm, typed, seconds, observer, anchored, live)
    if task is None:
        raise UsageError(f"Name a task to run: one of {', '.join(catalogue.names('task'))}.")
    path = folder_of(None, out, task, usual)
    name = algorithm or DEFAULT
    settings = choose(catalogue.task(task), [name], typed)[name].resolved()
    settings.privacy.check_packages()
    say_threads(settings.plan, typed)
    if process_group.rank() == 0:
        check_free(path, overwrite=overwrite)
    with threads(settings.plan.threads):
        data = load(settings.task, settings.options, [settings.plan])
        if anchored:
            check_data(data)
        simulation = settings.simulation(data, path)
        simulation.prepare()
        checked_early_stop(simulation)  # before there is a folder
        if not simulation.leads:
            return follow(simulation, _again(path))
        config = {**settings.config(), "command": command, **_processes(simulation)}
        folder = RunFolder.create(path, "run", config, overwrite=overwrite)
        with folder.locked():
            begin(folder, simulation, simulation.evaluator.facts())
            code = _go(folder, settings, simulation, seconds, observer, live)
            return _anchored(code, folder, settings, data, anchored)


def _resume(
    path: Path,
    task: str | None,
    algorithm: str | None,
    typed: dict[str, Any],
    seconds: float,
    observer: Observers,
    anchored: bool,
    live: LivePage,
) -> int:
    folder = RunFolder.open(path, "run")
    stored = from_config(folder.config, path)
    [settings] = stored.values()
    for flag, wanted, was in (
        ("TASK", task, settings.task.name),
        ("--algorithm", algorithm, settings.algorithm.name),
    ):
        if wanted is not None and wanted != was:
            raise UsageError(
                f"{flag} is {wanted}, but {path} is a run of {was}: leave it out, or start a new "
                "run with --out."
            )
    settings = extended(stored, typed, path)[settings.algorithm.name]
    check_machine(folder, settings.plan)
    own = threads_of(settings.plan.threads, folder.config.get("processes", 1))
    if process_group.rank() > 0:
        with threads(own):
            data = load(settings.task, settings.options, [settings.plan])
            simulation = settings.simulation(data, path)
            go_back_(simulation, folder)
            return follow(simulation, _again(path))
    with threads(own), folder.locked():
        data = load(settings.task, settings.options, [settings.plan])
        simulation = resumed(folder, settings, data)
        code = _go(folder, settings, simulation, seconds, observer, live)
        return _anchored(code, folder, settings, data, anchored)


def _go(
    folder: RunFolder,
    settings: Settings,
    simulation: Simulation,
    seconds: float,
    observer: Observers,
    live: LivePage,
) -> int:
    again, ranked = _again(folder.path), simulation.ranked
    name, plan = settings.algorithm.name, settings.plan
    at = simulation.progress.round
    say(
        f"{name} on {settings.task.name}, seed {plan.seed}, on {plan.device}"
        + (f" in {ranked.group.size} processes: " if ranked else ": ")
        + (f"going on after round {at} of {plan.rounds}" if at else f"{plan.rounds} rounds")
    )
    observer.begin(run_of(folder.path.resolve().name, folder, simulation))
    with live.following(folder.path):
        with Stop() as stop:
            done = carry_out(simulation, folder, observer, stop, name, again, seconds)
        code = close(folder, done, f"after round {simulation.progress.round}", again)
    conclude(observer, folder, done)
    return code


def _anchored(
    code: int, folder: RunFolder, settings: Settings, data: FederatedData, wanted: bool
) -> int:
    """The exit code of a run, after its anchors if they are wanted and it was not stopped."""
    if wanted and code == 0:
        write_anchors(folder, data, settings.plan.train_sample)
    return code


def _again(path: Path) -> str:
    """The command that goes on, in any number of processes."""
    return f"fedrows run --resume {shlex.quote(str(path))}"


def _processes(simulation: Simulation) -> dict[str, int]:
    """How many processes a run was begun in, if there are several."""
    return {} if simulation.ranked is None else {"processes": simulation.ranked.group.size}


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
