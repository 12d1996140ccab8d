"""An executor that is warm: each task of Flower's is a fork of a process that has all imported.

flwr starts a new Python per message, which takes seconds to import torch. This executor imports
once, then forks: a ClientApp or ServerApp starts in milliseconds.
`python -m fedrows.flower.launch.warm_executor` takes the options of flower-superexec that matter
here. Where flwr's insides are not as expected it says so and
becomes flower-superexec, which starts a process per task.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from fedrows.flower.launch.patience import shorten_pulls
from fedrows.flower.launch.pinned import APPS, pin_apps
from fedrows.flower.launch.processes import LaunchError
from fedrows.flower.launch.superlink import load_command, run_command

READY = "fedrows: the executor is warm."
PRELOADED = ("numpy", "torch", "fedrows", "fedrows.flower.apps")
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux


def main(words: Sequence[str] | None = None) -> int:
    """Takes tasks from a SuperNode or SuperLink until it is gone."""
    words = list(sys.argv[1:] if words is None else words)
    typed = _parser().parse_args(words)
    try:
        run = forking(importlib.import_module("flwr.supercore.superexec.run_superexec"))
    except (ImportError, AttributeError, TypeError) as error:
        if os.environ.get(APPS):
            print("fedrows: apps cannot be pinned with this flwr: use 1.41.", file=sys.stderr)
            return 2
        print(f"fedrows: this flwr ({error}) starts a process per task.", file=sys.stderr)
        run_command("flower-superexec", words)
        return 0
    for command in ("flwr-clientapp", "flwr-serverapp"):
        load_command(command)
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    shorten_pulls()
    try:
        pin_apps()
    except LaunchError as error:
        print(f"fedrows: {error}", file=sys.stderr)
        return 2
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


def forking(module: Any) -> Any:
    """flwr's run_superexec, made to fork; raises if flwr is not built as expected."""
    executors = importlib.import_module("flwr.supercore.superexec.executor")
    constants = importlib.import_module("flwr.supercore.constant")
    accepted = executors.LaunchResult.accepted
    commands = constants.TASK_TYPE_TO_COMMAND
    server_app = constants.TaskType.SERVER_APP
    module.get_executor  # noqa: B018 - raises if there is nothing to replace

    class Forking(executors.SubprocessExecutor):  # type: ignore[misc,name-defined]
        """Launches a task as a fork of this process."""

        def __init__(self) -> None:
            self.running: dict[int, Any] = {}

        def launch(self, spec: Any) -> Any:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                _carry_out(commands[spec.task_type], _words(spec))
            self.running[pid] = spec
            return accepted()

        def reconcile(self) -> None:
            for pid, spec in list(self.running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done:
                    continue
                del self.running[pid]
                if os.WIFSIGNALED(status) and spec.task_type == server_app:
                    _report_killed(spec, os.WTERMSIG(status))

    module.get_executor = lambda *_, **__: Forking()
    return module.run_superexec


def _carry_out(command: str, words: Sequence[str]) -> NoReturn:
    """Runs a task in the forked process, which ends here whatever happens."""
    code = 1
    try:
        _end_with(os.getppid())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)
        importlib.import_module(
            "flwr.supercore.exit.exit_handler"
        ).registered_exit_handlers.clear()  # they are the executor's
        _draw_anew()
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


def _words(spec: Any) -> list[str]:
    """The command line of a task, as flwr itself would write it."""
    words = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
    if spec.insecure:
        words.append("--insecure")
    elif spec.root_certificates_path is not None:
        words += ["--root-certificates", spec.root_certificates_path]
    return [*words, "--parent-pid", str(spec.parent_pid)]


def _end_with(parent: int) -> None:
    """Has the kernel kill this process when its parent ends, where the kernel can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we asked
        os._exit(1)


def _draw_anew() -> None:
    """Forks share the state of every generator: two rounds would draw the same noise."""
    for name in ("numpy.random", "torch"):
        if (module := sys.modules.get(name)) is not None:
            module.seed()


def _report_killed(spec: Any, number: int) -> None:
    """Tells the SuperLink at once that a ServerApp was killed; by itself it waits a minute."""
    with contextlib.suppress(Exception):  # it will find out
        runtime = importlib.import_module("flwr.supercore.runtime")
        interceptors = importlib.import_module("flwr.supercore.interceptors")
        messages = importlib.import_module("flwr.proto.runtime_pb2")
        certificates = spec.root_certificates_path
        client = runtime.RuntimeHttpClient.from_server_address(
            server_address=spec.runtime_api_address,
            insecure=spec.insecure,
            root_certificates=Path(certificates).read_bytes() if certificates else None,
            interceptors=[
                interceptors.RuntimeVersionHttpInterceptor(component_name="SuperExec"),
                interceptors.RuntimeTokenHttpInterceptor(spec.token),
            ],
        )
        details = f"The ServerApp was killed by signal {number}."
        client.PushTaskOutput(messages.PushTaskOutputRequest(sub_status="failed", details=details))
        client.close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "fedrows.flower.launch.warm_executor", description="A warm executor."
    )
    parser.add_argument("--runtime-api-address", required=True)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("--root-certificates")
    parser.add_argument("--superexec-auth-secret-file")
    parser.add_argument("--parent-pid", type=int)
    return parser


if __name__ == "__main__":
    sys.exit(main())
