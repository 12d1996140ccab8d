"""Files of nodes and servers: only their user may read them, and what a sum leaves behind goes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import Loopback, fresh

from fedrows.cli.deploy_policy import NodeFolderWatch
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal
from fedrows.flower.launch.processes import ProcessGroup, environment
from fedrows.flower.node.node_sums import EXPIRY, LONGEST, NodeSums, forget_sums
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.runs.folder import CHECKPOINT

RUNS = ("0" * 16, "1" * 16)


def unfinished(state: Path) -> list[str]:
    """Two sums that the server never ends, each in a run of its own."""
    names = SumNames()
    left = [names.make() for _ in RUNS]
    for run, name in zip(RUNS, left, strict=True):
        sums = NodeSums(state / run / "sums")
        sums.begin({"sum": name, "use": "heat"})
        sums.put_inputs(name, {"words": np.arange(5)})
        sums.put_asked(name, {"wanted": np.arange(5)})
    return left


def age(path: Path, seconds: float) -> None:
    for one in (path, *path.rglob("*")):
        os.utime(one, (time.time() - seconds,) * 2)


def left_in(state: Path) -> set[str]:
    return {path.name for path in state.glob("*/sums/**/*") if path.name != "newest"}


def test_what_a_sum_leaves_behind_expires_whatever_its_run(tmp_path: Path) -> None:
    first, second = unfinished(tmp_path)
    forget_sums(tmp_path)
    kept = {"half", "facts.json", "inputs.npz", f"{first}.npz", f"{second}.npz"}
    assert {first, second} | kept <= left_in(tmp_path)
    age(tmp_path / RUNS[0], EXPIRY + 1)
    forget_sums(tmp_path)
    assert not left_in(tmp_path / RUNS[0])
    assert list(tmp_path.glob(f"{RUNS[1]}/sums/{second}/half"))
    for run, name in zip(RUNS, (first, second), strict=True):  # the name stays used
        assert NodeSums(tmp_path / run / "sums").newest == name[:16]


def test_where_rounds_may_be_long_sums_are_kept_for_longer(tmp_path: Path) -> None:
    """The answers of a union wait for the update of its round, which two rounds are before."""
    (name, _), sums = unfinished(tmp_path), tmp_path / RUNS[0] / "sums"
    NodeSums(sums, longest=2 * EXPIRY)
    for hours, kept in ((1.1, {RUNS[0]}), (5.9, {RUNS[0]}), (6.1, set[str]())):
        age(tmp_path, hours * EXPIRY)
        forget_sums(tmp_path)
        assert {path.parts[-3] for path in tmp_path.glob(f"*/sums/{name}.npz")} == kept
    unfinished(tmp_path / "again")
    NodeSums(tmp_path / "again" / RUNS[0] / "sums", longest=1e9)  # whatever a server says
    age(tmp_path / "again", LONGEST + 1)
    forget_sums(tmp_path / "again")
    assert not left_in(tmp_path / "again") - {"expiry"}


def test_a_message_of_one_run_ends_what_expired_in_another(tmp_path: Path) -> None:
    unfinished(tmp_path / "n0")
    age(tmp_path / "n0", EXPIRY + 1)
    data = examples(clients=3)
    node = fresh(task_of(data), CONFIG, data, tmp_path / "n0", "n0")
    contract = make_contract(task_of(data), CONFIG)
    from fedrows.flower.wire.message import Message, pack

    facts = {"contract": contract.fingerprint(contract.model(data), data), "run": "2" * 16}
    node(pack(Message("enrol", facts | {"version": 1}, {})))
    assert not left_in(tmp_path / "n0")


def test_a_node_that_starts_has_forgotten_every_sum_and_says_why_it_declines(
    tmp_path: Path,
) -> None:
    state, said = NodeState(tmp_path), list[str]()
    state.decline("An old reason.")
    unfinished(tmp_path)
    watch = NodeFolderWatch(tmp_path, said.append)
    assert not left_in(tmp_path)
    watch()
    assert said == []
    state.decline("A new reason.")
    watch._next = 0.0
    watch()
    watch._next = 0.0
    watch()
    assert said == ["This node declines: A new reason."]


def modes(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*"))}


def test_what_a_started_process_writes_is_its_users_alone(tmp_path: Path) -> None:
    """The SuperLink's database, the logs and a run's folder are such files."""
    home = tmp_path / "state"
    group = ProcessGroup(home / "logs", environment(home, ""))
    code = f"import os; os.mkdir({str(home / 'runs')!r}); print(open({str(home / 'db')!r}, 'w'))"
    before = os.umask(0o022)
    try:
        group.start("writer", [sys.executable, "-c", code]).wait()
    finally:
        os.umask(before)
    assert {path.name for path in home.iterdir()} == {"logs", "runs", "db"}
    assert set(modes(home).values()) == {0}


@pytest.mark.parametrize("privacy", ["clear", "index"])
def test_the_servers_files_are_its_users_alone(tmp_path: Path, privacy: str) -> None:
    data, loopback = examples(clients=4), Loopback()
    config: dict[str, Any] = {**CONFIG, "rounds": 1, "clients-per-round": 4, "privacy": privacy}
    config |= {"peers": str(tmp_path / "peers.json"), "device": "cpu"}
    shards = shards_of(data, 4)
    if privacy != "clear":
        keys = {name: own_key(tmp_path / name).public for name in shards}
        write_peers(tmp_path / "peers.json", keys)
    for number, (name, shard) in enumerate(shards.items(), start=1):
        loopback.here[number] = fresh(task_of(data), config, shard, tmp_path / name, name)
    deployment = Deployment(make_contract(task_of(data), config), loopback, config, lambda _: None)
    before = os.umask(0o022)
    try:
        with Journal.opened(tmp_path / "run", deployment) as journal:
            for _ in deployment:
                journal.save()
    finally:
        os.umask(before)
    folder = tmp_path / "run"
    assert folder.stat().st_mode & 0o777 == 0o700
    secret = [*folder.glob("registry-*"), *folder.glob("heat.*"), folder / CHECKPOINT]
    assert len(secret) == (2 if privacy == "clear" else 3)
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in secret)
