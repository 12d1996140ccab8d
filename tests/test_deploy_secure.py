"""Real federations: one that leaves nothing behind, and one that lets only the right nodes in."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.federation_faults import (
    freeze_node,
    kill_node,
    kill_serverapp,
    kill_superlink,
    start_node,
    thaw_node,
)
from fedrows import cli
from fedrows.flower.launch import certificates, starting
from fedrows.flower.launch.control import ControlError, check_reachable
from fedrows.flower.launch.federation import LaunchError, LocalFederation, NodeSpec
from fedrows.flower.launch.processes import ProcessGroup, end_marked, environment, marked

pytestmark = [
    pytest.mark.slow(minutes=0.5),
    pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning"),
]

LIMIT = 300.0  # seconds, which only a failure takes

PROJECT = {
    "pyproject.toml": """
[project]
name = "echo"
version = "1.0.0"
dependencies = []

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.flwr.app]
publisher = "fedrows"

[tool.flwr.app.components]
serverapp = "echo.server_app:app"
clientapp = "echo.client_app:app"

[tool.flwr.app.config]
nodes = 1
rounds = 1
out = ""
""",
    "echo/__init__.py": "",
    "echo/client_app.py": """
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    said = {"name": context.node_config["name"], "node": str(context.node_id)}
    return Message(RecordDict({"said": ConfigRecord(said)}), reply_to=message)
""",
    "echo/server_app.py": """
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    for number in range(config["rounds"]):
        while len(nodes := list(grid.get_node_ids())) < config["nodes"]:
            time.sleep(0.1)
        left, lost = {}, 0

        def send(node):
            words = RecordDict({"x": ConfigRecord({"n": number})})
            [name] = grid.push_messages([Message(words, node, "train", ttl=60.0)])
            left[name] = node

        for node in nodes:
            send(node)
        while left:
            for reply in grid.pull_messages(list(left)):
                node = left.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    lost += reply.error.code == 3  # a message that expired is sent again
                    if reply.error.code != 3 or lost > 3:
                        raise RuntimeError(f"error {reply.error.code}: {reply.error.reason}")
                    send(node)
                    continue
                said = reply.content["said"]
                with Path(config["out"]).open("a") as out:
                    out.write(f"{number} {said['name']} {said['node']}\\n")
            time.sleep(0.05)
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name, text in PROJECT.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return folder


@pytest.fixture
def mark() -> Iterator[str]:
    name = os.urandom(8).hex()
    yield name
    end_marked(name)


def make_keys(folder: Path, *nodes: str) -> certificates.Certificates:
    certificates.make_authority(folder)
    certificates.make_server(folder, ["localhost"])
    for node in nodes:
        certificates.make_node_key(folder, node)
    return certificates.open_certificates(folder, nodes)


def said(out: Path) -> list[list[str]]:
    return sorted(line.split() for line in out.read_text().splitlines())


def test_an_exchange_and_an_error_that_takes_everything_down(tmp_path: Path, project: Path) -> None:
    out = tmp_path / "out"
    nodes = [NodeSpec(name, {"name": f'{name}\'s "own"'}) for name in ("a", "b")]
    federation = LocalFederation(tmp_path / "federation", nodes)

    def fail_after_an_exchange() -> None:
        with federation:
            run = federation.control.submit(project, {"nodes": 2, "out": str(out)})
            assert federation.wait(run, LIMIT) == "finished:completed"
            assert list(marked(federation.mark))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_after_an_exchange()
    assert list(marked(federation.mark)) == []
    assert [line[:3] for line in said(out)] == [["0", "a's", '"own"'], ["0", "b's", '"own"']]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_federation_ends_with_whoever_started_it(tmp_path: Path, mark: str, how: int) -> None:
    code = (
        "import sys, time; from pathlib import Path\n"
        "from fedrows.flower.launch.federation import LocalFederation, NodeSpec\n"
        f"federation = LocalFederation(Path({str(tmp_path)!r}), [NodeSpec('a')])\n"
        f"federation.mark = {mark!r}\n"
        "with federation:\n"
        "    print('up', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(tmp_path, ""),
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert len(list(marked(mark))) == 4
        process.send_signal(how)
        process.wait()
    until = time.monotonic() + LIMIT
    while list(marked(mark)):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_only_nodes_with_a_listed_key_and_the_right_authority_are_let_in(
    tmp_path: Path, project: Path
) -> None:
    keys = make_keys(tmp_path / "keys", "a", "stranger")
    others = make_keys(tmp_path / "others")
    out = tmp_path / "out"
    with LocalFederation(
        tmp_path / "federation", [NodeSpec("a", {"name": "a"})], keys
    ) as federation:
        run = federation.control.submit(project, {"nodes": 1, "out": str(out)})
        assert federation.wait(run, LIMIT) == "finished:completed"

        kill_node(federation, 0)
        start_node(federation, 0)  # the same key, so the same node
        run = federation.control.submit(project, {"nodes": 1, "out": str(out)})
        assert federation.wait(run, LIMIT) == "finished:completed"
        assert len({node for _, _, node in said(out)}) == 1

        def join(name: str, **with_: Path | None) -> None:
            home = tmp_path / f"home-{name}"
            group = ProcessGroup(federation.logs, environment(home, federation.mark))
            node = NodeSpec(name)
            try:
                starting.begin_node(node, federation.address, group, home, **with_)  # type: ignore[arg-type]
                starting.wait_for(group, {name: starting.ACTIVE})
            finally:
                group.kill()

        stranger = keys.node_keys["stranger"]
        with pytest.raises(LaunchError, match="does not admit node unlisted"):
            join("unlisted", ca=keys.ca, key=stranger)
        with pytest.raises(LaunchError, match="no node without a key"):
            join("keyless", ca=keys.ca, key=None)
        with pytest.raises(LaunchError, match="not one that misled trusts"):
            join("misled", ca=others.ca, key=keys.node_keys["a"])
        with pytest.raises(ControlError, match="does not speak plain HTTP"):
            check_reachable(federation.address, None)
        with pytest.raises(ControlError, match="does not vouch for"):
            check_reachable(federation.address, others.ca)
        (only,) = federation.control.nodes()
        assert str(only.node) == said(out)[0][2]
    assert list(marked(federation.mark)) == []


@pytest.mark.usefixtures("quick_starts")
def test_a_superlink_and_a_serverapp_that_were_killed_are_back_at_work(
    tmp_path: Path, project: Path
) -> None:
    out = tmp_path / "out"
    with LocalFederation(tmp_path / "federation", [NodeSpec("a", {"name": "a"})]) as federation:
        run = federation.control.submit(project, {"nodes": 1, "rounds": 1000, "out": str(out)})
        _until_said(out, 1)
        assert kill_serverapp(federation)
        assert federation.wait(run, LIMIT) == "finished:failed"

        federation.control.submit(project, {"nodes": 1, "rounds": 1000, "out": str(out)})
        _until_said(out, len(said(out)) + 1)
        kill_superlink(federation)
        federation.start_superlink()
        freeze_node(federation, 0)
        run = federation.control.submit(project, {"nodes": 1, "out": str(out)})
        before = len(said(out))
        time.sleep(2)
        assert len(said(out)) == before  # the node is frozen
        thaw_node(federation, 0)
        assert federation.wait(run, LIMIT) == "finished:completed", federation.control.look(run)
        assert len({node for _, _, node in said(out)}) == 1  # it was one node all the time


@pytest.mark.usefixtures("quick_starts")
def test_operators_see_and_stop_a_run_that_nobody_waits_for(
    tmp_path: Path, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = make_keys(tmp_path / "keys", "a")
    out = tmp_path / "out"
    with LocalFederation(
        tmp_path / "federation", [NodeSpec("a", {"name": "a"})], keys
    ) as federation:
        where = ["--superlink", f"localhost:{federation.port}", "--certificates", str(keys.ca)]
        token = ["--token", str(tmp_path / "federation/home/superlink/control.token")]

        def deploy(*words: str) -> tuple[int, str]:
            code = cli.main(["deploy", *words, *where])
            said = capsys.readouterr()
            return code, said.out + said.err

        settings = ["--config", "nodes=1", "rounds=1000", f"out={out}"]
        words = ["deploy", "run", str(project), *where, *token, *settings]
        command = [sys.executable, "-m", "fedrows", *words]
        with subprocess.Popen(command, env=environment(tmp_path, "")) as submitter:
            _until_said(out, 1)
            submitter.kill()
        for wrong in ("status", "stop"):  # on the SuperLink's own machine, too
            code, said_ = deploy(wrong)
            assert code == 2
            assert "the control token is missing or not the right one" in said_
        assert len(said(out)) < 1000
        code, said_ = deploy("status", *token)
        assert code == 0
        assert "running" in said_
        assert "online" in said_
        code, said_ = deploy("stop", "--wait", "1", *token)  # this app hears no operator
        assert code == 0
        assert "is broken off" in said_
        run = said_.split()[1]
        assert "finished:stopped" in deploy("status", run, *token)[1]
        assert "has ended already" in deploy("stop", run, *token)[1]
        code, said_ = deploy("stop", *token)
        assert (code, "No run is going on." in said_) == (2, True)
        assert deploy("stop", "12345", *token)[0] == 2
        (node,) = federation.control.nodes()
        assert deploy("revoke", str(node.node), *token)[0] == 0
        assert "No node is admitted." in deploy("status", *token)[1]


def _until_said(out: Path, lines: int) -> None:
    until = time.monotonic() + LIMIT
    while not out.exists() or len(said(out)) < lines:
        assert time.monotonic() < until
        time.sleep(0.1)
