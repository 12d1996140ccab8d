"""A run folder at the beginning, and when its run goes on: back to the checkpoint, to the bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, RunFolderError
from fedrows.files.whole import reason
from fedrows.plan import Plan
from fedrows.runs import checkpoint
from fedrows.runs.folder import BEST, CHECKPOINT, CONFIG, DATA, LEDGER, RunFolder
from fedrows.runs.run import TrainingRun
from fedrows.runs.settings import Settings
from fedrows.simulation import Simulation


def begin(folder: RunFolder, run: TrainingRun, facts: dict[str, Any]) -> None:
    """Writes what a run folder has before the first round, so that it can always be resumed.

    facts: what data.json says.
    """
    try:
        folder.write_json(DATA, facts)
        if run.private is not None:
            run.private.keep_ledger_(folder.path / LEDGER, 0)
        checkpoint.save(folder.path / CHECKPOINT, run)
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(
            f"{folder.path} cannot be written ({reason(error)}): make room, then go on "
            "with --resume."
        ) from error


def resumed(folder: RunFolder, settings: Settings, data: FederatedData) -> Simulation:
    """The run as its checkpoint has it, to go on with; metrics that lie past it are dropped.

    A run that was killed before its first checkpoint begins.
    """
    simulation = settings.simulation(data, folder.path)
    if never_saved(folder):
        simulation.prepare()
        begin(folder, simulation, simulation.evaluator.facts())
    else:
        go_back_(simulation, folder)
    try:
        drop_later_lines(simulation, folder)
        config = folder.config
        plan = {"rounds": settings.plan.rounds, "go_on": settings.plan.go_on}
        now = {**config, "plan": {**config["plan"], **plan}}
        if settings.privacy.private:
            now["privacy"] = settings.privacy.config()
        if now != config:
            config |= now
            folder.write_json(CONFIG, config)
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(f"{folder.path} cannot be written ({reason(error)}).") from error
    return simulation


def never_saved(folder: RunFolder) -> bool:
    """Whether the run was killed before its first checkpoint: it has neither that nor metrics."""
    return not (folder.path / CHECKPOINT).exists() and not folder.lines()


def go_back_(run: TrainingRun, folder: RunFolder) -> None:
    """Brings a new run to where the folder's checkpoint stands.

    Of a private run the ledger may be further on: rounds that were paid for and lost.
    """
    if never_saved(folder):
        return
    checkpoint.restore_(run, folder.path / CHECKPOINT)
    at = run.progress.round
    if run.private is not None:
        run.private.keep_ledger_(folder.path / LEDGER, at)
    if run.plan.rounds < at:
        raise RunFolderError(
            f"rounds is {run.plan.rounds}, but the run in {folder.path} has done {at}: "
            f"ask for at least {at}."
        )


def refuse_change(name: str, wanted: Any, was: Any, path: Path) -> PlanError:
    """The error of an option that would make another run of the one that is resumed."""
    return PlanError(
        f"{name} {wanted} would change the run in {path}, which has {was}: leave it out, or start "
        "a new run with --out."
    )


def check_longer(plan: Plan, rounds: int, path: Path) -> None:
    """Raises a PlanError if a run of the plan cannot be made so long."""
    if rounds != plan.rounds and plan.lr_schedule != "constant":
        raise PlanError(
            f"--rounds is {rounds}, but the {plan.lr_schedule} schedule of {path} spreads its "
            f"learning rates over {plan.rounds}: leave it out, or start a new run with --out."
        )


def drop_later_lines(run: TrainingRun, folder: RunFolder) -> None:
    """Drops the metrics that lie past where the run stands; an error if one before it is missing.

    The last round is always evaluated. Once the run is made longer, it is like any other, unless it
    is the round of the best model, whose line stays.
    """
    plan, every, at = run.plan, run.plan.evaluate_every, run.progress.round
    lines = folder.lines()
    best = folder.path / BEST
    kept_round = checkpoint.standing(best).round if best.exists() else None
    left = [
        x
        for x in lines
        if x["round"] <= at
        and (x["round"] % every == 0 or at == plan.rounds or x["round"] == kept_round)
    ]
    measured = [x["round"] for x in left if x["round"] % every == 0]
    wanted = list(range(every, at + 1, every))
    if measured != wanted:
        odd = min(set(measured) ^ set(wanted), default=at)
        raise RunFolderError(
            f"The metrics in {folder.path} do not fit its checkpoint of round {at}, look at round "
            f"{odd}: run again with --overwrite."
        )
    if left != lines:
        folder.keep_lines(left)
