"""An executor that has torch imported already, and forks itself for every task.

flwr starts a new Python per message, which takes seconds to import torch. This executor imports
once: a ClientApp or ServerApp then starts in milliseconds. `python -m
fedrows.flower.launch.warm_executor` takes the options of flower-superexec that matter here.
FEDROWS_APPS has the hashes of the apps that may run; any may if it is empty.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import math
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from fedrows import catalogue
from fedrows.flower.launch.bell import Bell
from fedrows.flower.launch.flwr_calls import load_command, report_killed, run_command
from fedrows.flower.launch.flwr_patches import (
    PULL_SECONDS,
    app_hashes,
    fork_tasks,
    pin_apps,
    pull_objects_sooner,
    retry_more_often,
)
from fedrows.flower.launch.notices import FailedRequests
from fedrows.flower.launch.processes import LaunchError

APPS = "FEDROWS_APPS"
READY = "fedrows: the executor is warm."
PRELOADED = ("numpy", "torch", "fedrows", "fedrows.flower.apps", "fedrows.flower.demo")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def main(words: Sequence[str] | None = None) -> int:
    """Takes tasks from a SuperNode or SuperLink until it is gone."""
    typed = _parser().parse_args(words)
    try:
        run = fork_tasks(_run_task, report_killed, Bell(typed.bell))
        # A ClientApp begins while its SuperNode fetches the message, which may be long, and which
        # the SuperNode gives up for both.
        pull_objects_sooner(math.inf if typed.bell else PULL_SECONDS)
        own = os.getpid()  # a task ends when it is refused: its run was stopped
        retry_more_often(failed=FailedRequests(), refusals_end=lambda: os.getpid() != own)
        pin_apps(app_hashes(os.environ.get(APPS, "")))
    except LaunchError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return 2
    for command in ("flwr-clientapp", "flwr-serverapp"):
        load_command(command)
    _preload()
    secret = typed.superexec_auth_secret_file
    print(READY, flush=True)
    run(
        runtime_api_address=typed.runtime_api_address,
        insecure=typed.insecure,
        root_certificates_path=typed.root_certificates,
        superexec_auth_secret=Path(secret).read_bytes() if secret else None,
        parent_pid=typed.parent_pid,
    )
    return 0


def _preload() -> None:
    """Imports what apps need, and reads which plug-ins are installed, once for all tasks."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for kind in catalogue.FOLDERS:
        catalogue.names(kind)
    for kind in ("algorithm", "model"):
        for name in catalogue.built_in(kind):
            with contextlib.suppress(ImportError):
                catalogue.own(kind, name)


def _run_task(command: str, words: Sequence[str]) -> NoReturn:
    """Runs a task in the forked process, which ends here whatever happens."""
    code = 1
    try:
        _end_with(os.getppid())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        importlib.import_module(
            "flwr.supercore.exit.exit_handler"
        ).registered_exit_handlers.clear()  # they are the executor's
        _reseed()
        run_command(command, words)
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, where the kernel can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _reseed() -> None:
    """Seeds every generator anew: forks share their state, and would draw the same noise."""
    for name in ("numpy.random", "torch"):
        if (module := sys.modules.get(name)) is not None:
            module.seed()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "fedrows.flower.launch.warm_executor", description="A warm executor."
    )
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    parser.add_argument("--superexec-auth-secret-file")
    parser.add_argument("--parent-pid", type=int)
    parser.add_argument("--bell", help="The bell that is rung when there is a task.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
