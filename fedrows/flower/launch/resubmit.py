"""A run that outlives its servers: submitted again when the ServerApp or the SuperLink died.

The ServerApp goes on from its own run folder, so a submission again loses one round at most. An
app that raised an error is not tried again: it would raise it once more.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from fedrows.errors import INTERRUPTED
from fedrows.flower.launch.control import (
    FINISHED,
    ControlClient,
    ControlError,
    RunState,
    UnknownRunError,
    Value,
)
from fedrows.runs.signals import hearing_signals

OWN_FAULT = "ServerApp failed with exception: "
SAY_EVERY = 5.0  # seconds between two troubles that are said
SAY_AGAIN = 60.0  # seconds before the same one is said again
FORGOTTEN = (
    "the SuperLink knows nothing of it, for its database was deleted or is another one: admit the "
    "nodes again with `fedrows deploy admit`"
)
PATIENCE = 600.0  # seconds to wait for a SuperLink that is gone


def submit_until_done(
    control: ControlClient,
    project: Path,
    config: Mapping[str, Value],
    retries: int,
    say: Callable[[str], None],
    every: float = 1.0,
    patience: float = PATIENCE,
    follow: Callable[[int], str] = lambda run: "",
) -> int:
    """Submits and waits; 0 when a run has completed, 130 when it was stopped, else it raises.

    follow: is called all the time; "stopped" if the run itself says that it was asked to end.
    Ctrl-C and SIGTERM stop the run too: nothing is left running.
    """
    run: int | None = None
    with hearing_signals():
        try:
            for attempt in range(retries + 1):
                run = _insist(lambda: control.submit(project, config), attempt, every, patience)
                say(f"Run {run} is submitted.")
                state = _outcome(control, run, say, every, patience, follow)
                status, details = state.status, state.details
                if status == f"{FINISHED}:completed":
                    if follow(run) == "stopped":
                        say(f"Run {run} was stopped after a whole round, and is saved.")
                        return INTERRUPTED
                    say(f"Run {run} has completed.")
                    return 0
                if status == f"{FINISHED}:stopped":
                    say(f"Run {run} was stopped.")
                    return INTERRUPTED
                if details.startswith(OWN_FAULT):
                    raise ControlError(f"Run {run} failed: {details.removeprefix(OWN_FAULT)}")
                say(f"Run {run} broke off ({details or 'its server died'}).")
            raise ControlError(
                f"Run {run} broke off, and so did {retries} before it: look into the SuperLink's "
                "logs."
            )
        except KeyboardInterrupt:
            with contextlib.suppress(ControlError):
                if run is not None:
                    control.stop(run)
            raise


def _outcome(
    control: ControlClient,
    run: int,
    say: Callable[[str], None],
    every: float,
    patience: float,
    follow: Callable[[int], str],
) -> RunState:
    """How a run ended; a SuperLink that has started again ends the run."""
    gone_since: float | None = None
    started, last_trouble, said_at = control.heard.started, "", -SAY_AGAIN
    while True:
        try:
            state = control.look(run)
        except UnknownRunError:
            return RunState(run, f"{FINISHED}:failed", FORGOTTEN)
        except ControlError as error:
            gone_since = gone_since or time.monotonic()
            if time.monotonic() - gone_since > patience:
                raise
            trouble = f"{error} It is asked again."
        else:
            follow(run)
            if state.over:
                return state
            if control.heard.started != started:  # its ServerApp died with it, or is to
                with contextlib.suppress(ControlError):
                    control.stop(run)
                return RunState(run, f"{FINISHED}:failed", "the SuperLink was started again")
            gone_since, trouble = None, control.heard.notice
        pause = SAY_AGAIN if trouble == last_trouble else SAY_EVERY
        if trouble and time.monotonic() > said_at + pause:
            say(trouble)
            last_trouble, said_at = trouble, time.monotonic()
        time.sleep(every)


def _insist(ask: Callable[[], int], attempt: int, every: float, patience: float) -> int:
    """The answer; after the first attempt, refusals are waited out for a while."""
    until = time.monotonic() + patience
    while True:
        try:
            return ask()
        except ControlError:
            if not attempt or time.monotonic() > until:
                raise
        time.sleep(every)
