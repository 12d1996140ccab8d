"""Groups of processes start, are found by their mark, and end whole."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.federation_faults import children
from fedrows.flower.launch import starting
from fedrows.flower.launch.processes import (
    MARK,
    LaunchError,
    ProcessGroup,
    check_port,
    end_marked,
    environment,
    free_port,
    marked,
)

SLEEPER = (
    "import subprocess, time; subprocess.Popen(['sleep', '600']); print('begun', flush=True); "
    "time.sleep(600)"
)


@pytest.fixture
def mark() -> Iterator[str]:
    name = os.urandom(8).hex()
    yield name
    end_marked(name)


def test_a_group_ends_with_its_children(tmp_path: Path, mark: str) -> None:
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    process = group.start("one", [sys.executable, "-c", SLEEPER])
    group.start("two", ["sleep", "600"])
    assert starting.wait_for(group, {"one": "begun"})
    assert len(list(marked(mark))) == 3
    assert len(children(process.pid)) == 1
    assert group.ended is None
    group.stop(grace=0.2)
    assert group.processes == {}
    _until(lambda: not list(marked(mark)))  # a killed grandchild is not ours to wait for


def test_a_group_is_frozen_and_thawed_whole(tmp_path: Path, mark: str) -> None:
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    group.start("one", [sys.executable, "-c", SLEEPER])
    assert starting.wait_for(group, {"one": "begun"})
    group.signal(signal.SIGSTOP)
    _until(lambda: {_state(pid) for pid in marked(mark)} == {"T"})
    group.signal(signal.SIGCONT)
    _until(lambda: "T" not in {_state(pid) for pid in marked(mark)})
    group.kill()
    _until(lambda: not list(marked(mark)))


def test_what_got_away_is_found_by_its_mark(tmp_path: Path, mark: str) -> None:
    detached = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    group.start("one", [sys.executable, "-c", detached]).wait()
    _until(lambda: len(list(marked(mark))) == 1)
    end_marked(mark)
    _until(lambda: not list(marked(mark)))


def test_no_mark_marks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MARK, raising=False)
    assert MARK not in environment(tmp_path, "")
    with pytest.raises(ValueError, match="empty mark"):
        end_marked("")


def test_a_groups_leader_ends_its_group_when_its_parent_was_killed(
    tmp_path: Path, mark: str
) -> None:
    leader = (
        "from fedrows.flower.launch.processes import end_with_parent; import subprocess, time; "
        "end_with_parent(); subprocess.Popen(['sleep', '600']); time.sleep(600)"
    )
    parent = (
        "import sys, time; from pathlib import Path; "
        "from fedrows.flower.launch.processes import ProcessGroup, environment; "
        f"path = Path({str(tmp_path)!r}); group = ProcessGroup(path, environment(path, {mark!r})); "
        f"group.start('leader', [sys.executable, '-c', {leader!r}]); time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", parent], env=environment(tmp_path, "") | {MARK: ""}
    )
    try:
        _until(lambda: len(list(marked(mark))) == 2)
    finally:
        process.kill()
        process.wait()
    _until(lambda: not list(marked(mark)))


def test_every_flower_process_is_told_to_keep_to_itself(tmp_path: Path) -> None:
    told = environment(tmp_path / "home", "x", EXTRA="1")
    assert told["FLWR_TELEMETRY_ENABLED"] == "0"
    assert told["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert told["FLWR_HOME"] == str(tmp_path / "home")
    assert told["PATH"].split(os.pathsep)[0] == str(Path(sys.executable).parent)
    assert told["EXTRA"] == "1"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(LaunchError, match=f"Port {port} .* in use"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", free_port())


def test_a_start_ends_when_its_group_is_killed(tmp_path: Path, mark: str) -> None:
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    group.start("node", [sys.executable, "-c", "import time; time.sleep(600)"])
    group.kill()
    with pytest.raises(LaunchError, match="node was killed while it started"):
        starting.wait_for(group, {"node": "never said"}, timeout=600)


def test_a_start_that_fails_names_the_reason_and_the_log(tmp_path: Path, mark: str) -> None:
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    group.start("node", [sys.executable, "-c", "print('Error: no luck'); print('bye')"])
    with pytest.raises(LaunchError, match=r"no luck.*node\.log"):
        starting.wait_for(group, {"node": "never said"})
    group = ProcessGroup(tmp_path, environment(tmp_path, mark))
    group.start("node", [sys.executable, "-c", "import sys; sys.exit(98)"])
    assert not starting.wait_for(group, {"node": "never said"})  # a lost port is tried again


def test_logs_of_an_earlier_start_are_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    for text in ("one", "two", "three"):
        starting._fresh(log)
        log.write_text(text)
    names = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert names == {"node.1.log": "one", "node.2.log": "two", "node.log": "three"}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _until(true: Any, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come true"
        time.sleep(0.02)
