"""Flower is as we expect it: these fail first when it changes."""

import hashlib
import importlib
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedrows import cli
from fedrows.flower.launch import (
    flwr_answers,
    flwr_calls,
    flwr_patches,
    gate,
    starting,
    warm_executor,
)
from fedrows.flower.launch.bell import Bell
from fedrows.flower.launch.processes import LaunchError


def in_a_process(code: str) -> None:
    root = str(Path(cli.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})


# Waits and processes


def test_this_flwr_can_be_made_to_wait_less() -> None:
    code = (
        "from fedrows.flower.launch import flwr_patches as patches; "
        "from flwr.supercore.inflatable.inflatable_utils import pull_objects; "
        "from fedrows.flower.launch.bell import Bell; "
        "patches.wait_for_bell(Bell(None), 0.1); patches.pull_objects_sooner(7.0); "
        "patches.retry_more_often(); "
        "from flwr.supercore.retry import http_retry; assert http_retry.MAX_RETRY_DELAY == 5.0; "
        "assert pull_objects.__wrapped__.__kwdefaults__['max_time'] is None; "
        "from flwr.supernode import start_client_internal; import time; then = time.monotonic(); "
        "start_client_internal.time.sleep(30); assert time.monotonic() - then < 20"
    )
    in_a_process(code)


@pytest.mark.parametrize(
    ("patch", "what"),
    [
        (lambda: flwr_patches.pull_objects_sooner(), "fetched sooner"),
        (lambda: flwr_patches.retry_more_often(), "tried again sooner"),
        (lambda: flwr_patches.wait_for_bell(Bell(None), 1.0), "poll more often"),
        (lambda: flwr_patches.ring_for_messages(Bell(None)), "called"),
        (lambda: flwr_answers.answer_for_killed(), "were killed"),
        (lambda: flwr_answers.send_every_answer(), "answers in time"),
        (lambda: flwr_patches.clean_up_less_often(), "clean up"),
        (lambda: flwr_patches.queue_for_database(), "in line"),
        (lambda: flwr_patches.count_no_traffic(), "count no bytes"),
        (lambda: flwr_patches.fork_tasks(print, print, Bell(None)), "forked"),
        (lambda: flwr_patches.guard_control_api(gate.Gate), "closed to strangers"),
        (lambda: flwr_patches.listen_with(print), "connections cannot be limited"),
        (lambda: flwr_patches.pin_apps(["0" * 64]), "pinned"),
    ],
)
def test_another_flwr_is_refused(
    monkeypatch: pytest.MonkeyPatch, patch: Callable[[], None], what: str
) -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    with monkeypatch.context() as patched:
        patched.setattr(importlib, "import_module", missing)
        with pytest.raises(LaunchError, match=rf"{what}.*: use flwr 1\.41"):
            patch()


def test_a_fork_runs_the_task_and_gives_its_exit_code() -> None:
    code = (
        "import os, sys\n"
        "from fedrows.flower.launch import warm_executor\n"
        "for wanted in (0, 3):\n"
        "    warm_executor.run_command = lambda name, words: sys.exit(wanted)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        warm_executor._run_task('x', [])\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == wanted\n"
    )
    in_a_process(code)


@pytest.mark.parametrize(("bell", "seconds"), [([], 10.0), (["--bell", "x"], math.inf)])
def test_a_clientapp_waits_for_its_message_as_long_as_its_node_does(
    monkeypatch: pytest.MonkeyPatch, bell: list[str], seconds: float
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(warm_executor, "pull_objects_sooner", waits.append)
    monkeypatch.setattr(warm_executor, "fork_tasks", lambda *_: lambda **_: None)
    for name in ("retry_more_often", "load_command", "_preload"):
        monkeypatch.setattr(warm_executor, name, lambda *_, **__: None)
    assert warm_executor.main(["--runtime-api-address", "x", *bell]) == 0
    assert waits == [seconds]


# The gate


def test_the_gate_comes_first_in_flwr(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.superlink.main")
    monkeypatch.setattr(module, "_get_middleware", module._get_middleware)
    flwr_patches.guard_control_api(gate.Gate, networks=[], token="x")
    first = module._get_middleware()[0]
    assert first.cls is gate.Gate
    monkeypatch.delattr(module, "_get_middleware")
    with pytest.raises(LaunchError, match=r"1\.41"):
        flwr_patches.guard_control_api(gate.Gate)


def test_a_superlink_may_be_asked_by_its_own_executor() -> None:
    assert starting._own_address("0.0.0.0") == ""
    assert starting._own_address("192.0.2.7") == "192.0.2.7"
    assert gate.networks("127.0.0.0/8,192.0.2.7")


# Pinned apps


def test_only_pinned_apps_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    installed: list[bytes] = []
    known = hashlib.sha256(b"known").hexdigest()
    monkeypatch.setattr(module, "install_from_fab", lambda data, **_: installed.append(data))
    flwr_patches.pin_apps(flwr_patches.app_hashes(f"{'0' * 64},{known.upper()}"))
    module.install_from_fab(b"known", skip_prompt=True)
    with pytest.raises(LaunchError, match="does not run the app"):
        module.install_from_fab(b"other", skip_prompt=True)
    assert installed == [b"known"]


def test_a_node_that_cannot_pin_apps_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
    monkeypatch.delattr(module, "install_from_fab")
    flwr_patches.pin_apps([])  # nothing to pin
    with pytest.raises(LaunchError, match=r"1\.41"):
        flwr_patches.pin_apps(["0" * 64])


# Projects


def test_projects_of_one_name_are_read_from_their_own_folders(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        package = tmp_path / folder / "shop"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "app.py").write_text(f"{folder} = None\n")
        (tmp_path / folder / "pyproject.toml").write_text(
            '[project]\nname = "shop"\nversion = "1.0.0"\nlicense = "Apache-2.0"\n'
            'dependencies = []\n\n[tool.flwr.app]\npublisher = "shop"\n\n'
            "[tool.flwr.app.components]\n"
            f'serverapp = "shop.app:{folder}"\nclientapp = "shop.app:{folder}"\n'
        )
    flwr_calls.start_request(tmp_path / "first", {})
    shutil.rmtree(tmp_path / "first")
    assert flwr_calls.start_request(tmp_path / "second", {}).fab.content
    assert "shop" not in sys.modules
