"""One run in its folder on the command line: shown as it goes, and stopped without loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from fedrows import report
from fedrows.cli.several_processes import Stop, agreed
from fedrows.cli.show import print_table, say, show
from fedrows.data.federation import FederatedData
from fedrows.errors import INTERRUPTED, PlanError, RunFolderError
from fedrows.measure.all_anchors import COUNTED, TITLES, anchors, counted
from fedrows.measure.metric_choice import about, measured
from fedrows.measure.summary import Target, table
from fedrows.plan import Plan
from fedrows.runs.driver import InFolder, drive
from fedrows.runs.folder import ANCHORS, REPORT, RunFolder
from fedrows.runs.settings import check_clients, loaded
from fedrows.simulation import Simulation
from fedrows.simulator.process_group import GoneError
from fedrows.task import Task
from fedrows.watch import Observer, RunInfo

SHOWN = 5  # notes of a run
ANCHORS_HELP = "Then also fit centralised models to the same data, and show them in the report."


def load(task: Task, options: Any, plans: Iterable[Plan]) -> FederatedData:
    """The task's data, checked against the plans; what is odd about them is said."""
    data = loaded(task, options)
    for plan in plans:
        check_clients(plan, data)
    for note in data.notes:
        say(f"Note: {note}")
    return data


def say_threads(plan: Plan, typed: Mapping[str, Any]) -> None:
    """Says so if a run has fewer threads than PyTorch would take."""
    most = torch.get_num_threads()
    if "threads" not in typed and plan.threads is not None and plan.threads < most:
        say(
            f"Note: other programs keep the cores busy, so this run has {plan.threads} of {most} "
            "threads; --threads says otherwise."
        )


def check_machine(folder: RunFolder, plan: Plan) -> None:
    """Raises if this machine cannot go on with the run; says so if it may differ in last bits."""
    try:
        plan.torch_device  # noqa: B018 - it checks
    except PlanError:
        raise RunFolderError(
            f"{folder.path} was run on {plan.device}, which is not here: "
            "resume it on a machine that has one."
        ) from None
    was = folder.config.get("torch")
    if was != torch.__version__:
        say(
            f"Note: the run was begun with torch {was} and goes on with {torch.__version__}: "
            "last bits may differ."
        )


def run_of(name: str, folder: RunFolder, simulation: Simulation) -> RunInfo:
    at, rounds = simulation.progress.round, simulation.plan.rounds
    return RunInfo(name, folder.config, rounds, at, folder.path)


def close(
    folder: RunFolder, done: bool, where: str, again: str, target: Target | None = None
) -> int:
    """Writes summary and report of what is done, and gives the exit code."""
    if not done:
        say(f"Stopped {where}, and saved. Go on with: {again}")
        return INTERRUPTED
    summary = report.write_summary(folder.path, target)
    print_table(*table(summary))
    say(f"Report: {report.write(folder.path)}")
    return 0


def conclude(observer: Observer, folder: RunFolder, done: bool) -> None:
    """Tells of the report, if there is a new one, and of the end."""
    page = folder.path / REPORT
    if done and page.exists():
        observer.event("report", {"path": str(page)})
    observer.end(done)


def carry_out(
    simulation: Simulation,
    folder: RunFolder,
    observer: Observer,
    stop: Stop,
    label: str,
    again: str,
    checkpoint_seconds: float,
) -> bool:
    """Runs the rounds that are left; False if it was stopped before the last of them.

    again: the command that goes on, for messages.
    """
    keeper = InFolder(folder, simulation, checkpoint_seconds)
    display = show(label, simulation.progress.round, simulation.plan.rounds)
    try:
        with keeper.saying_what_is_kept(again):
            done = drive(simulation, keeper, [observer, display], agreed(stop, simulation))
    except BrokenPipeError:
        keeper.save()
        raise
    except GoneError as error:
        if simulation.progress.round > keeper.saved:
            keeper.save()
        raise GoneError(error.what, f"go on from round {keeper.saved} with `{again}`") from error
    except KeyboardInterrupt:
        display.end()
        say(f"Stopped at once. Go on from round {keeper.saved} with: {again}")
        raise
    finally:
        display.end()
    say_notes(simulation.notes, simulation.progress.round, simulation.stopped)
    return done


def say_notes(notes: Sequence[str], round_: int, stopped: str) -> None:
    """Says what turned out while a run went, and why it ended early if it did."""
    for note in notes[:SHOWN]:
        say(f"Note: {note}")
    if len(notes) > SHOWN:
        say(f"Note: and {len(notes) - SHOWN} more like these.")
    if stopped:
        say(f"Ended after round {round_}: {stopped}.")


def write_anchors(folder: RunFolder, data: FederatedData, train_sample: int) -> None:
    """Prints the table, writes its numbers into the run's folder, and draws them in its report.

    A DataError says that the data have no items, or labels that no anchor is fitted to.
    """
    say("Anchors: what needs no model, and models that are trained on all data in one place.")
    plain, fitted = counted(data, train_sample), anchors(data, say)
    folder.write_json(ANCHORS, {"baselines": plain, "anchors": fitted})
    shown = [x for x in measured([*plain.values(), *fitted.values()]) if x.startswith("test_")]
    rows = []
    for titles, results in ((COUNTED, plain), (TITLES, fitted)):
        for name, metrics in results.items():
            cells = [f"{metrics[x]:.{about(x)[2]}f}" if x in metrics else "–" for x in shown]
            rows.append([titles[name], *cells])
    print_table(["Anchor", *(about(x)[0] for x in shown)], rows)
    say(f"Anchors: {folder.path / ANCHORS}")
    report.write(folder.path)
