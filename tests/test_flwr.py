"""Flower is as we expect it: these fail first when it changes."""

import asyncio
import hashlib
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedrows import cli
from fedrows.flower.launch import patience, pinned, starting, superlink, supernode, warm_executor
from fedrows.flower.launch.processes import LaunchError


def in_a_process(code: str) -> None:
    root = str(Path(cli.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})


# Waits and processes


def test_this_flwr_can_be_made_to_wait_less() -> None:
    code = (
        "from fedrows.flower.launch.supernode import shorten_waits; "
        "from fedrows.flower.launch.patience import shorten_pulls, shorten_retries; "
        "from flwr.supercore.inflatable.inflatable_utils import pull_objects; "
        "assert shorten_waits(0.1) and shorten_pulls(7.0) and shorten_retries(2.0); "
        "from flwr.supercore.retry import http_retry; assert http_retry.MAX_RETRY_DELAY == 2.0; "
        "assert pull_objects.__kwdefaults__['max_time'] == 7.0; "
        "from flwr.supernode import start_client_internal; import time; then = time.monotonic(); "
        "start_client_internal.time.sleep(30); assert time.monotonic() - then < 20"
    )
    in_a_process(code)


def test_another_flwr_keeps_its_own_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", missing)
        kept = [patience.shorten_pulls(), patience.shorten_retries(), supernode.shorten_waits(1.0)]
    assert kept == [False] * 3


def test_another_flwr_gets_a_process_per_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(warm_executor, "forking", lambda module: module.not_there)
    monkeypatch.setattr(
        warm_executor, "run_command", lambda name, words: ran.append((name, list(words)))
    )
    words = ["--runtime-api-address", "127.0.0.1:1", "--insecure"]
    assert warm_executor.main(words) == 0
    assert ran == [("flower-superexec", words)]
    assert "a process per task" in capsys.readouterr().err


def test_a_fork_runs_the_task_and_gives_its_exit_code() -> None:
    code = (
        "import os, sys\n"
        "from fedrows.flower.launch import warm_executor\n"
        "for wanted in (0, 3):\n"
        "    warm_executor.run_command = lambda name, words: sys.exit(wanted)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        warm_executor._carry_out('x', [])\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == wanted\n"
    )
    in_a_process(code)


# The gate


@pytest.mark.parametrize(
    ("path", "client", "passes"),
    [
        ("/v1/fleet/pull-messages", "198.51.100.9", True),
        ("/health", "198.51.100.9", True),
        ("/v1/control/start-run", "198.51.100.9", False),
        ("/v1/control/register-node", "::ffff:198.51.100.9", False),
        ("/v1/runtime/acquire-task", "2001:db8::1", False),
        ("/docs", "", False),
        ("/v1/control/start-run", "127.0.0.1", True),
        ("/v1/control/start-run", "::ffff:127.0.0.1", True),
        ("/v1/control/start-run", "::1", True),
        ("/v1/control/start-run", "10.1.2.3", True),
    ],
)
def test_strangers_reach_only_what_nodes_need(path: str, client: str, passes: bool) -> None:
    reached: list[str] = []
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        reached.append(scope["path"])

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> None:
        return None

    allowed = superlink.networks(f"{superlink.THIS_MACHINE},10.0.0.0/8")
    scope = {"type": "http", "path": path, "client": (client, 1) if client else None}
    asyncio.run(superlink.Gate(app, allowed)(scope, receive, send))
    assert reached == ([path] if passes else [])
    assert [m.get("status") for m in sent] == ([] if passes else [403, None])


def test_the_gate_comes_first_in_flwr(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.superlink.main")
    monkeypatch.setattr(module, "_get_middleware", module._get_middleware)
    superlink.put_up_gate(superlink.networks(superlink.THIS_MACHINE))
    first = module._get_middleware()[0]
    assert first.cls is superlink.Gate
    monkeypatch.delattr(module, "_get_middleware")
    with pytest.raises(LaunchError, match=r"1\.41"):
        superlink.put_up_gate([])


def test_a_superlink_may_be_asked_by_its_own_executor() -> None:
    assert starting._own_address("0.0.0.0") == ""
    assert starting._own_address("192.0.2.7") == "192.0.2.7"
    assert superlink.networks("127.0.0.0/8,192.0.2.7")


def test_networks_are_checked() -> None:
    with pytest.raises(LaunchError, match="are not networks"):
        superlink.networks("here")


# Pinned apps


def test_only_pinned_apps_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    installed: list[bytes] = []
    known = hashlib.sha256(b"known").hexdigest()
    monkeypatch.setattr(module, "install_from_fab", lambda data, **_: installed.append(data))
    monkeypatch.setenv(pinned.APPS, f"{'0' * 64},{known.upper()}")
    pinned.pin_apps()
    module.install_from_fab(b"known", skip_prompt=True)
    with pytest.raises(LaunchError, match="does not run the app"):
        module.install_from_fab(b"other", skip_prompt=True)
    assert installed == [b"known"]


def test_a_node_that_cannot_pin_apps_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.delattr(module, "install_from_fab")
    pinned.pin_apps()  # nothing to pin
    monkeypatch.setenv(pinned.APPS, "0" * 64)
    with pytest.raises(LaunchError, match=r"1\.41"):
        pinned.pin_apps()
