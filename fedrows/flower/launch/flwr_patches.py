"""Every change that we make to flwr while it runs. All are written for flwr 1.41.

    who patches     patch                  without it
    SuperLink       guard_control_api      anybody who reaches the port may submit apps, admit nodes
    SuperNode       poll_more_often        a node looks for messages every 3 seconds only
    SuperNode       retry_more_often       a node notices after up to 20 s that its server is back
    all             pull_objects_sooner    a message takes seconds, or minutes if its sender died
    executors       fork_tasks             every message starts a new Python, which imports torch
    executors       pin_apps               a node runs any app that somebody submits

flwr has no options for these. A patch changes the process that calls it, and no file. Each one
checks first that flwr has what it replaces: if not, it raises a LaunchError and nothing starts.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from fedrows.flower.launch.processes import LaunchError

FIRST_WAIT, LONGEST_WAIT = 0.05, 0.5  # seconds between two looks for a message's parts
PULL_SECONDS = 10.0  # for the parts of one message in all
RETRY_SECONDS = 5.0  # between two tries to reach a server


def guard_control_api(middleware: type, **options: Any) -> None:
    """Puts a middleware before flwr's own in the SuperLink's web server.

    flwr 1.41 serves nodes and operators on one port, and only nodes prove who they are there.
    """
    what = "its control API cannot be closed to strangers"
    module = _module("flwr.superlink.main", ["_get_middleware"], what)
    wrap = _module("starlette.middleware", ["Middleware"], what).Middleware
    before = module._get_middleware
    module._get_middleware = lambda: [wrap(middleware, **options), *before()]


def poll_more_often(seconds: float) -> None:
    """Makes no wait of the SuperNode's own loop longer than `seconds`; flwr's is fixed at 3."""
    what = "its nodes cannot poll more often"
    module = _module("flwr.supernode.start_client_internal", ["time"], what)
    if module.time is not time:
        raise _unexpected("flwr.supernode.start_client_internal.time", what)
    shorter = {**vars(time), "sleep": lambda wanted: time.sleep(min(wanted, seconds))}
    module.time = SimpleNamespace(**shorter)


def retry_more_often(seconds: float = RETRY_SECONDS) -> None:
    """Tries a server that is away at least every `seconds`; flwr waits up to 20."""
    what = "lost connections cannot be tried again sooner"
    module = _module("flwr.supercore.retry.http_retry", ["MAX_RETRY_DELAY"], what)
    module.MAX_RETRY_DELAY = min(seconds, module.MAX_RETRY_DELAY)


def pull_objects_sooner(seconds: float = PULL_SECONDS) -> None:
    """Looks for a message's parts often, and gives up after `seconds`.

    The parts of a message are sent after the message itself. flwr looks for them again after 1, 2,
    4, … seconds, and for three minutes if the sender died in between, which holds up all other
    answers. A message that is not whole by then comes as one with an error.
    """
    what = "messages cannot be fetched sooner"
    names = ["pull_objects", "pull_and_inflate_object_from_tree"]
    module = _module("flwr.supercore.inflatable.inflatable_utils", names, what)
    wanted = {"max_time": seconds, "initial_backoff": FIRST_WAIT, "backoff_cap": LONGEST_WAIT}
    for name in names:
        function = getattr(module, name)
        defaults = function.__kwdefaults__ or {}
        if not wanted.keys() <= defaults.keys():
            raise _unexpected(name, what)
        function.__kwdefaults__ = {**defaults, **wanted}


def fork_tasks(
    run: Callable[[str, Sequence[str]], None], killed: Callable[[Any, int], None]
) -> Callable[..., None]:
    """Returns flwr's run_superexec, made to start every task as a fork by `run(command, words)`.

    killed: called with the task and the signal when a ServerApp was killed.
    """
    what = "its tasks cannot be forked"
    module = _module("flwr.supercore.superexec.run_superexec", ["get_executor"], what)
    names = ["SubprocessExecutor", "LaunchResult"]
    executors = _module("flwr.supercore.superexec.executor", names, what)
    constants = _module("flwr.supercore.constant", ["TASK_TYPE_TO_COMMAND", "TaskType"], what)
    forking = _forking_executor(executors, constants, run, killed)
    module.get_executor = lambda *_, **__: forking()
    superexec: Callable[..., None] = module.run_superexec
    return superexec


def pin_apps(allowed: Sequence[str]) -> None:
    """Has this process install only apps of these SHA-256 hashes; any app if there are none.

    A run's app comes over the network, from whoever may submit runs. What is checked are the very
    bytes that are about to be installed: the .fab file that `flwr build` writes.
    """
    if not allowed:
        return
    what = "apps cannot be pinned"
    module = _module("flwr.supernode.runtime.run_clientapp", ["install_from_fab"], what)
    install = module.install_from_fab

    def install_known(content: Any, *words: Any, **more: Any) -> Any:
        data = content if isinstance(content, bytes) else content.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        if digest not in allowed:
            raise LaunchError(f"This node does not run the app {digest}: it is not pinned here.")
        return install(data, *words, **more)

    module.install_from_fab = install_known


def app_hashes(text: str) -> list[str]:
    """Reads the hashes of pinned apps from their comma-separated text."""
    hashes = [part.strip().lower() for part in text.split(",") if part.strip()]
    for one in hashes:
        if not re.fullmatch(r"[0-9a-f]{64}", one):
            raise LaunchError(
                f"{one!r} is not the hash of an app: give the SHA-256 of its .fab file, 64 digits."
            )
    return hashes


def _forking_executor(
    executors: Any,
    constants: Any,
    run: Callable[[str, Sequence[str]], None],
    killed: Callable[[Any, int], None],
) -> type:
    """The class that takes the place of flwr's SubprocessExecutor."""

    class ForkingExecutor(executors.SubprocessExecutor):  # type: ignore[misc]  # flwr's is untyped
        def __init__(self) -> None:
            self.running: dict[int, Any] = {}

        def launch(self, task: Any) -> Any:
            sys.stdout.flush()
            sys.stderr.flush()
            pid = os.fork()
            if pid == 0:
                run(constants.TASK_TYPE_TO_COMMAND[task.task_type], _task_words(task))
            self.running[pid] = task
            return executors.LaunchResult.accepted()

        def reconcile(self) -> None:
            for pid, task in list(self.running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done:
                    continue
                del self.running[pid]
                if os.WIFSIGNALED(status) and task.task_type == constants.TaskType.SERVER_APP:
                    killed(task, os.WTERMSIG(status))

    return ForkingExecutor


def _task_words(task: Any) -> list[str]:
    """The command line of a task, as flwr itself would write it."""
    words = ["--runtime-api-address", task.runtime_api_address, "--token", task.token]
    if task.insecure:
        words.append("--insecure")
    elif task.root_certificates_path is not None:
        words += ["--root-certificates", task.root_certificates_path]
    return [*words, "--parent-pid", str(task.parent_pid)]


def _module(name: str, attributes: Sequence[str], what: str) -> Any:
    """A module that has these attributes, or a LaunchError that says what cannot be done."""
    try:
        module = importlib.import_module(name)
    except ImportError:
        raise _unexpected(name, what) from None
    for attribute in attributes:
        if not hasattr(module, attribute):
            raise _unexpected(f"{name}.{attribute}", what)
    return module


def _unexpected(name: str, what: str) -> LaunchError:
    return LaunchError(
        f"This flwr is not built as expected ({name} is missing or different), so {what}: "
        "use flwr 1.41."
    )
