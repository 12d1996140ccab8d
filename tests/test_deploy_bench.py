"""The benchmark of deployments drives federations as they are now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from benchmarks import deploy, private_round
from fedrows.flower.launch.federation import LocalFederation, NodeSpec
from fedrows.flower.launch.processes import ProcessGroup, environment
from fedrows.flower.launch.starting import EXECUTOR, SUPERLINK


def test_nodes_reach_the_server_through_the_relay_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports: list[int] = []
    monkeypatch.setattr(LocalFederation, "begin_node", lambda own, _: ports.append(own.port))
    federation = deploy.FaultyFederation(tmp_path, [NodeSpec("n0", {})])
    federation.port = 12_345
    federation.begin_node(0)
    relay = federation.relay
    assert relay is not None
    assert ports == [relay.port] != [12_345]
    assert federation.port == 12_345
    assert (relay.up, relay.down) == (0, 0)


def test_processor_seconds_are_found_by_kind_of_process(tmp_path: Path) -> None:
    federation = LocalFederation(tmp_path, [NodeSpec("n0", {})])
    mark = environment(tmp_path, federation.mark)
    federation.link, federation.groups[0] = (ProcessGroup(tmp_path, mark) for _ in range(2))
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    try:
        for group, names in (
            (federation.link, (SUPERLINK, EXECUTOR)),
            (federation.groups[0], ("n0", "n0-app")),
        ):
            for name in names:
                group.start(name, sleep)
        federation.logs.mkdir(exist_ok=True)
        (federation.logs / "n0-app.log").write_text("Start `flwr-clientapp` process\n" * 3)
        spent = private_round._spent(federation)
    finally:
        federation.link.kill()
        federation.groups[0].kill()
    assert spent["client_apps"] == 3
    assert spent["superlink"] >= 0
