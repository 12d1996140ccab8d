"""Every change that we make to flwr while it runs. All are written for flwr 1.41.

The two about answers of a SuperNode are in `flwr_answers`, all others here.

    who patches     patch                  without it
    SuperLink       guard_control_api      anybody who reaches the port may submit apps, admit nodes
    SuperLink       listen_with            half-open connections keep everybody else out
    SuperLink       clean_up_less_often    every request looks for tasks whose time is over
    SuperLink       queue_for_database     requests wait for each other by sleeping
    SuperLink       count_no_traffic       every part of a message writes statistics
    SuperNode       wait_for_bell          a node looks for messages every 3 seconds only
    SuperNode       ring_for_messages      an executor has to ask for work all the time
    SuperNode       answer_for_killed      a node whose ClientApp was killed is deaf for a minute
    SuperNode       send_every_answer      after a message that came in part, answers come too late
    SuperLink       excuse_database        nodes end and runs fail when a disk is full for a moment
    all             retry_more_often       a node notices after up to 20 s that its server is back,
                                           and ends if a connection breaks in its TLS handshake
    all             pull_objects_sooner    a message takes seconds, or minutes if its sender died
    executors       fork_tasks             every message starts a new Python, which imports torch
    executors       pin_apps               a node runs any app that somebody submits

flwr has no options for these. A patch changes the process that calls it, and no file. Each one
checks first that flwr has what it replaces: if not, it raises a LaunchError and nothing starts.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from fedrows.flower.launch.bell import Bell
from fedrows.flower.launch.flwr_lookup import module_with, unexpected
from fedrows.flower.launch.processes import LaunchError

FIRST_WAIT, LONGEST_WAIT = 0.05, 0.5  # seconds between two looks for a message's parts
PULL_SECONDS = 10.0  # in which a part of a message must come
RETRY_SECONDS = 5.0  # between two tries to reach a server


def guard_control_api(middleware: type, **options: Any) -> None:
    """Puts a middleware before flwr's own in the SuperLink's web server.

    flwr 1.41 serves nodes and operators on one port, and only nodes prove who they are there.
    """
    what = "its control API cannot be closed to strangers"
    module = module_with("flwr.superlink.main", ["_get_middleware"], what)
    wrap = module_with("starlette.middleware", ["Middleware"], what).Middleware
    before = module._get_middleware
    module._get_middleware = lambda: [wrap(middleware, **options), *before()]


def listen_with(serve: Callable[..., None]) -> None:
    """Has the SuperLink listen by `serve`, which takes what `uvicorn.run` does."""
    what = "its connections cannot be limited"
    module = module_with("flwr.superlink.cli.flower_superlink", ["uvicorn"], what)
    module.uvicorn = SimpleNamespace(run=serve)


def clean_up_less_often() -> None:
    """Has the SuperLink look for tasks whose time is over once a second, not in every call."""
    what = "it cannot be made to clean up less often"
    names = ["SqlCoreState._cleanup_expired_task_tokens"]
    module = module_with("flwr.supercore.corestate.sql_corestate", names, what)
    before = module.SqlCoreState._cleanup_expired_task_tokens
    last = [-1.0]

    def clean_up(state: Any) -> None:
        if time.monotonic() - last[0] >= 1.0:
            last[0] = time.monotonic()
            before(state)

    module.SqlCoreState._cleanup_expired_task_tokens = clean_up


def queue_for_database() -> None:
    """Lets one request at a time use the SuperLink's database.

    SQLite has one writer at a time anyway, and whoever finds it busy sleeps for up to 0.1 s.
    """
    what = "its requests cannot wait in line"
    module = module_with("flwr.supercore.sql_mixin", ["SqlMixin.session"], what)
    session, lock = module.SqlMixin.session, threading.RLock()

    @contextlib.contextmanager
    def one_at_a_time(state: Any) -> Iterator[Any]:
        with lock, session(state) as opened:
            yield opened

    module.SqlMixin.session = one_at_a_time


def count_no_traffic() -> None:
    """Has the SuperLink keep no statistics of bytes, which cost it a write for every object."""
    what = "it cannot be made to count no bytes"
    name = "flwr.server.superlink.linkstate.sql_linkstate"
    module = module_with(name, ["SqlLinkState.store_traffic"], what)
    module.SqlLinkState.store_traffic = lambda *_, **__: None


def wait_for_bell(bell: Bell, seconds: float) -> None:
    """Has the SuperNode's loop wait for the bell where flwr sleeps half a second.

    Where flwr sleeps 3 s because there was no message, it waits `seconds` from the time on when it
    asked. A SuperLink that holds the question until there is a message is asked again at once.
    """
    what = "its nodes cannot poll more often"
    names = ["time", "_pull_and_store_message"]
    module = module_with("flwr.supernode.start_client_internal", names, what)
    if module.time is not time:
        raise unexpected("flwr.supernode.start_client_internal.time", what)
    pull, asked = module._pull_and_store_message, [0.0]

    def pull_and_note(*words: Any, **more: Any) -> Any:
        asked[0] = time.monotonic()
        return pull(*words, **more)

    def sleep(wanted: float) -> None:
        if wanted < 1:
            bell.wait(wanted)
        else:
            time.sleep(min(max(asked[0] + seconds - time.monotonic(), 0.0), wanted))

    module._pull_and_store_message = pull_and_note
    module.time = SimpleNamespace(**{**vars(time), "sleep": sleep})


def ring_for_messages(bell: Bell) -> None:
    """Rings when the SuperNode gets a message for its app, or an answer from it."""
    what = "its executor cannot be called"
    methods = ("store_message", "store_object")
    names = [f"InMemoryNodeState.{method}" for method in methods]
    module = module_with("flwr.supernode.nodestate.in_memory_nodestate", names, what)
    state = module.InMemoryNodeState

    def ringing(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*words: Any, **more: Any) -> Any:
            result = function(*words, **more)
            bell.ring()
            return result

        return call

    for method in methods:
        setattr(state, method, ringing(getattr(state, method)))


def retry_more_often(
    failed: Callable[[Exception], None] = lambda error: None,
    refusals_end: Callable[[], bool] = lambda: True,
) -> None:
    """Tries a server that is away at least every `RETRY_SECONDS`; flwr waits up to 20.

    flwr gives up for good when a connection breaks during its TLS handshake. Here only a
    certificate that is not trusted ends the tries. failed: is called with every error.
    refusals_end: whether this process ends when its proof is refused, as flwr has it; a clock that
    jumps between the proof and its check is enough for that.
    """
    what = "lost connections cannot be tried again sooner"
    names = ["MAX_RETRY_DELAY", "RetryInvoker", "httpx"]
    module = module_with("flwr.supercore.retry.http_retry", names, what)
    module.MAX_RETRY_DELAY = min(RETRY_SECONDS, module.MAX_RETRY_DELAY)
    plain, transport = module.RetryInvoker, module.httpx.TransportError

    def invoker(*words: Any, should_giveup: Callable[[Exception], bool], **more: Any) -> Any:
        def gives_up(error: Exception) -> bool:
            failed(error)
            if isinstance(error, transport):
                return "certificate verify failed" in str(error).lower()
            if error.response.status_code == 401 and not refusals_end():  # type: ignore[attr-defined]
                return False
            return should_giveup(error)

        return plain(*words, should_giveup=gives_up, **more)

    module.RetryInvoker = invoker


def excuse_database(failed: Callable[[str], str]) -> None:
    """Answers "try again" when the SuperLink's database cannot be written or read for a while.

    flwr answers with an error, at which nodes end and runs fail. failed: gets the reason, and
    returns the sentence of the answer.
    """
    what = "a full disk cannot be waited for"
    module = module_with("flwr.superlink.main", ["http_error_translator"], what)
    trouble = module_with("sqlalchemy.exc", ["OperationalError"], what).OperationalError
    answer = module_with("starlette.responses", ["PlainTextResponse"], what).PlainTextResponse
    translate = module.http_error_translator

    async def excused(request: Any, call_next: Callable[[Any], Any]) -> Any:
        async def watched(inner: Any) -> Any:
            try:
                return await call_next(inner)
            except trouble as error:
                return answer(failed(str(error.orig)), status_code=503)

        return await translate(request, watched)

    module.http_error_translator = excused


def pull_objects_sooner(seconds: float = PULL_SECONDS) -> None:
    """Looks for a message's parts often, and gives up when none has come for `seconds`.

    The parts of a message are sent after the message itself. flwr looks for them again after 1, 2,
    4, … seconds, and for three minutes if the sender died in between, which holds up all other
    answers; and it gives up a long message after that time, even if its parts are coming in. A
    message that does not become whole comes as one with an error.
    """
    what = "messages cannot be fetched sooner"
    names = ["pull_objects", "pull_and_inflate_object_from_tree"]
    module = module_with("flwr.supercore.inflatable.inflatable_utils", names, what)
    errors = ["ObjectUnavailableError", "ObjectPullError"]
    raised = module_with("flwr.supercore.inflatable.inflatable_utils", errors, what)
    wanted = {
        "max_time": None,  # below
        "max_tries_per_object": None,
        "initial_backoff": FIRST_WAIT,
        "backoff_cap": LONGEST_WAIT,
    }
    before = module.pull_objects
    pull = getattr(before, "__wrapped__", before)  # a ServerApp waits otherwise than its executor
    for name, function in {names[0]: pull, names[1]: getattr(module, names[1])}.items():
        defaults = function.__kwdefaults__ or {}
        if not wanted.keys() <= defaults.keys():
            raise unexpected(name, what)
        function.__kwdefaults__ = {**defaults, **wanted}

    @functools.wraps(pull)
    def pull_while_parts_come(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **more: Any
    ) -> Any:
        last = [time.monotonic()]

        def part(object_id: str) -> bytes:
            try:
                content = pull_object_fn(object_id)
            except raised.ObjectUnavailableError:
                if time.monotonic() - last[0] >= seconds:
                    reason = f"no part has come for {seconds:g} s"
                    raise raised.ObjectPullError(object_id, reason) from None
                raise
            last[0] = time.monotonic()
            return content

        return pull(object_ids, part, **more)

    for loaded in list(sys.modules.values()):  # those that have it already, by its name
        if getattr(loaded, "__dict__", {}).get("pull_objects") is before:
            loaded.pull_objects = pull_while_parts_come  # type: ignore[attr-defined]


def fork_tasks(
    run: Callable[[str, Sequence[str]], None], killed: Callable[[Any, str], None], bell: Bell
) -> Callable[..., None]:
    """Returns flwr's run_superexec, made to start every task as a fork by `run(command, words)`.

    killed: called with the task and how it ended when it did not end well.
    bell: rung when there may be a task; flwr asks for one every second or so in any case.
    """
    what = "its tasks cannot be forked"
    module = module_with("flwr.supercore.superexec.run_superexec", ["get_executor", "time"], what)
    names = ["SubprocessExecutor", "LaunchResult"]
    executors = module_with("flwr.supercore.superexec.executor", names, what)
    constants = module_with("flwr.supercore.constant", ["TASK_TYPE_TO_COMMAND", "TaskType"], what)
    executor = _forking_executor(executors, constants, run, killed)()
    module.get_executor = lambda *_, **__: executor
    sleep = {"sleep": lambda wanted: bell.wait(wanted, executor.has_ended)}
    module.time = SimpleNamespace(**{**vars(time), **sleep})
    return module.run_superexec


def pin_apps(allowed: Sequence[str]) -> None:
    """Has this process install only apps of these SHA-256 hashes; any app if there are none.

    A run's app comes over the network, from whoever may submit runs. What is checked are the very
    bytes that are about to be installed: the .fab file that `flwr build` writes.
    """
    if not allowed:
        return
    what = "apps cannot be pinned"
    module = module_with("flwr.supernode.runtime.run_clientapp", ["install_from_fab"], what)
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
    killed: Callable[[Any, str], None],
) -> Any:
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

        def has_ended(self) -> bool:
            look = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return any(os.waitid(os.P_PID, pid, look) for pid in self.running)

        def reconcile(self) -> None:
            for pid, task in list(self.running.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if not done:
                    continue
                del self.running[pid]
                if os.WIFSIGNALED(status):
                    killed(task, f"was killed by signal {os.WTERMSIG(status)}")
                elif status and task.task_type != constants.TaskType.SERVER_APP:
                    killed(task, f"ended with exit code {os.waitstatus_to_exitcode(status)}")

    return ForkingExecutor


def _task_words(task: Any) -> list[str]:
    """The command line of a task, as flwr itself would write it."""
    words = ["--runtime-api-address", task.runtime_api_address, "--token", task.token]
    if task.insecure:
        words.append("--insecure")
    elif task.root_certificates_path is not None:
        words += ["--root-certificates", task.root_certificates_path]
    return [*words, "--parent-pid", str(task.parent_pid)]
