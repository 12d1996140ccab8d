"""One run in its folder: rounds, metrics, checkpoints, and a stop that loses nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from fedrows.cli.show import Show, say
from fedrows.cli.stop import Stop
from fedrows.cli.together import agreed
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, RunFolderError
from fedrows.files.whole import reason
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT, CONFIG, DATA, REPORT, RunFolder
from fedrows.runs.settings import Settings, check_clients
from fedrows.simulation import Simulation
from fedrows.simulator.group import GoneError
from fedrows.task import Task
from fedrows.watch import Facts, Observer, Run

TOLD = 5  # notes of a private run


class Clock:
    """How long each phase of a round took."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, phase: str, seconds: float) -> None:
        """Adds to a phase."""
        self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        since = time.perf_counter()
        yield
        self.add(phase, time.perf_counter() - since)

    def taken(self) -> dict[str, float]:
        """What was added since the last time this was asked."""
        found, self._seconds = self._seconds, {}
        return found


def load(task: Task, options: Any, plans: Iterable[Plan]) -> FederatedData:
    """The task's data, checked against the plans; what is odd about them is said."""
    data = task.load(options)
    for plan in plans:
        check_clients(plan, data)
    for note in data.notes:
        say(f"Note: {note}")
    return data


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


def begin(folder: RunFolder, simulation: Simulation) -> None:
    """Writes what a run folder has before the first round, so that it can always be resumed."""
    try:
        folder.write_json(DATA, simulation.evaluator.facts())
        checkpoint.save(folder.path / CHECKPOINT, simulation)
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be written ({reason(error)}): make room, then run again with "
            "--overwrite."
        ) from error


def restored(folder: RunFolder, settings: Settings, data: FederatedData) -> Simulation:
    """The run as its checkpoint has it; nothing is written."""
    plan = settings.plan
    simulation = settings.simulation(data, folder.path)
    checkpoint.restore_(simulation, folder.path / CHECKPOINT)
    at = simulation.progress.round
    if plan.rounds < at:
        raise RunFolderError(
            f"rounds is {plan.rounds}, but the run in {folder.path} has done {at}: "
            f"ask for at least {at}."
        )
    return simulation


def go_back(folder: RunFolder, settings: Settings, data: FederatedData) -> Simulation:
    """The same; metrics that lie past the checkpoint are dropped."""
    simulation = restored(folder, settings, data)
    plan, every, at = settings.plan, settings.plan.evaluate_every, simulation.progress.round
    lines = folder.lines()
    # The last round is always evaluated; once the run is made longer, it is like any other.
    kept = [x for x in lines if x["round"] <= at and (x["round"] % every == 0 or at == plan.rounds)]
    found = [x["round"] for x in kept if x["round"] % every == 0]
    wanted = list(range(every, at + 1, every))
    if found != wanted:
        odd = min(set(found) ^ set(wanted), default=at)
        raise RunFolderError(
            f"The metrics in {folder.path} do not fit its checkpoint of round {at}, look at round "
            f"{odd}: run again with --overwrite."
        )
    try:
        if kept != lines:
            folder.keep_lines(kept)
        config = folder.config
        now = {**config, "plan": {**config["plan"], "rounds": plan.rounds}}
        if settings.privacy.private:
            now["privacy"] = settings.privacy.config()
        if now != config:
            config |= now
            folder.write_json(CONFIG, config)
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be written ({reason(error)}).") from error
    return simulation


def run_of(name: str, folder: RunFolder, simulation: Simulation) -> Run:
    """The run as observers hear of it."""
    at, rounds = simulation.progress.round, simulation.plan.rounds
    return Run(name, folder.config, rounds, at, folder.path)


def facts_of(simulation: Simulation, seconds: Mapping[str, float]) -> Facts:
    """The last round of a simulation, in which everyone who is asked answers."""
    progress, pooled = simulation.progress, simulation.algorithm.pooled
    asked = 1 if pooled else simulation.plan.clients_per_round
    return Facts(
        round=progress.round,
        asked=asked,
        answered=asked,
        bytes_down=None if pooled else progress.bytes_down * asked,
        bytes_up=None if pooled else progress.bytes_up * asked,
        seconds=seconds,
    )


def tell(simulation: Simulation) -> None:
    """Says what turned out while a run went, and why it ended early if it did."""
    notes = simulation.simulated.notes
    for note in notes[:TOLD]:
        say(f"Note: {note}")
    if len(notes) > TOLD:
        say(f"Note: and {len(notes) - TOLD} more like these.")
    if simulation.stopped:
        say(f"Ended after round {simulation.progress.round}: {simulation.stopped}.")


def conclude(observer: Observer, folder: RunFolder, done: bool) -> None:
    """Tells of the report, if there is a new one, and of the end."""
    report = folder.path / REPORT
    if done and report.exists():
        observer.event("report", {"path": str(report)})
    observer.end(done)


def carry_out(
    simulation: Simulation,
    folder: RunFolder,
    show: Show,
    observer: Observer,
    stop: Stop,
    label: str,
    again: str,
    checkpoint_seconds: float,
) -> bool:
    """Runs the rounds that are left; False if it was stopped before the last of them.

    again: the command that goes on, for messages. A round is measured before it is saved, so a
    checkpoint never lacks a line; lines past it are dropped when the run goes on. Mapped tables
    whose log of changes has become long are saved before their time.
    """
    place, table_folder = folder.path / CHECKPOINT, simulation.progress.table_folder
    rounds = simulation.plan.rounds
    saved = simulation.progress.round
    next_save = time.monotonic() + checkpoint_seconds
    clock, asked = Clock(), agreed(stop, simulation)

    def save() -> None:
        nonlocal saved, next_save
        with clock("save"):
            folder.sync()
            checkpoint.save(place, simulation)
        saved, next_save = simulation.progress.round, time.monotonic() + checkpoint_seconds
        observer.event("saved", {"path": str(place)})

    def measure() -> None:
        with clock("evaluate"):
            line = simulation.evaluate()
        folder.append(line)
        observer.measured(line)
        show.measured(line)

    show.begin(label, saved, rounds)
    try:
        if saved == rounds and all(line["round"] != saved for line in folder.lines()):
            measure()  # a run that was stopped here, and is now to end here
        before = simulation.seconds
        for progress in simulation:
            at = progress.round
            clock.add("round", simulation.seconds - before)
            before = simulation.seconds
            if simulation.due:
                measure()
            due = time.monotonic() >= next_save or (
                table_folder is not None and table_folder.log_is_long
            )
            if at == rounds or asked() or due:
                save()
            show.step(at)
            observer.round(facts_of(simulation, clock.taken()))
            if asked():
                break
        at = simulation.progress.round
        if simulation.stopped:
            if all(line["round"] != at for line in folder.lines()):
                measure()
            save()
        return at == rounds or bool(simulation.stopped)
    except BrokenPipeError:
        save()
        raise
    except RunFolderError:
        raise
    except GoneError as error:
        if simulation.progress.round > saved:
            save()
        raise GoneError(error.what, f"go on from round {saved} with `{again}`") from error
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be written ({reason(error)}): make room, then go on from "
            f"round {saved} with `{again}`."
        ) from error
    except KeyboardInterrupt:
        show.end()
        say(f"Stopped at once. Go on from round {saved} with: {again}")
        raise
    finally:
        show.end()
