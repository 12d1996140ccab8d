"""Processes start, are found and end; keys are made once; bad input is one sentence."""

import asyncio
import contextlib
import hashlib
import importlib
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedrows import cli
from fedrows.errors import FedrowsError
from fedrows.flower import (
    control,
    launch,
    patience,
    pinned,
    security,
    starting,
    superlink,
    supernode,
    warm,
)
from fedrows.flower.persist import persist
from fedrows.flower.processes import (
    MARK,
    Group,
    LaunchError,
    check_port,
    children,
    end_marked,
    environment,
    free_port,
    marked,
)

# flwr's own imports make use of what click is about to take away
pytestmark = pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning")

SLEEPER = (
    "import subprocess, time; subprocess.Popen(['sleep', '600']); print('begun', flush=True); "
    "time.sleep(600)"
)


def deploy(*words: str) -> int:
    from fedrows.cli import deploy as command

    cli.COMMANDS.setdefault("deploy", "Run a federation on Flower.")
    assert command.ACTIONS
    return cli.main(["deploy", *words])


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1
    assert text.startswith("fedrows: ")
    return text


@pytest.fixture
def mark() -> Iterator[str]:
    name = os.urandom(8).hex()
    yield name
    end_marked(name)


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    security.make_authority(folder)
    security.make_server(folder, ["superlink.example.org", "192.0.2.7"])
    security.make_node_key(folder, "a")
    return folder


# -- processes --


def test_a_group_ends_with_its_children(tmp_path: Path, mark: str) -> None:
    group = Group(tmp_path, environment(tmp_path, mark))
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
    group = Group(tmp_path, environment(tmp_path, mark))
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
    group = Group(tmp_path, environment(tmp_path, mark))
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
        "from fedrows.flower.processes import end_with_parent; import subprocess, time; "
        "end_with_parent(); subprocess.Popen(['sleep', '600']); time.sleep(600)"
    )
    parent = (
        "import sys, time; from pathlib import Path; "
        "from fedrows.flower.processes import Group, environment; "
        f"group = Group(Path({str(tmp_path)!r}), environment(Path({str(tmp_path)!r}), {mark!r})); "
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


def test_a_start_that_fails_names_the_reason_and_the_log(tmp_path: Path, mark: str) -> None:
    group = Group(tmp_path, environment(tmp_path, mark))
    group.start("node", [sys.executable, "-c", "print('Error: no luck'); print('bye')"])
    with pytest.raises(LaunchError, match=r"no luck.*node\.log"):
        starting.wait_for(group, {"node": "never said"})
    group = Group(tmp_path, environment(tmp_path, mark))
    group.start("node", [sys.executable, "-c", "import sys; sys.exit(98)"])
    assert not starting.wait_for(group, {"node": "never said"})  # a lost port is tried again


def test_logs_of_an_earlier_start_are_put_aside(tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    for text in ("one", "two", "three"):
        starting._fresh(log)
        log.write_text(text)
    names = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert names == {"node.1.log": "one", "node.2.log": "two", "node.log": "three"}


def test_nodes_need_names_and_keys_of_their_own(tmp_path: Path, keys: Path) -> None:
    twice = [launch.NodeSpec("a"), launch.NodeSpec("a")]
    with pytest.raises(LaunchError, match="its own name"):
        launch.Federation(tmp_path, twice)
    with pytest.raises(LaunchError, match="Node b has no key"):
        launch.Federation(tmp_path, [launch.NodeSpec("b")], security.open_security(keys, ["a"]))


# -- flwr is as we expect it; these fail first when it changes --


def test_this_flwr_can_be_made_to_wait_less() -> None:
    code = (
        "from fedrows.flower.supernode import shorten_waits; "
        "from fedrows.flower.patience import shorten_pulls, shorten_retries; "
        "from flwr.supercore.inflatable.inflatable_utils import pull_objects; "
        "assert shorten_waits(0.1) and shorten_pulls(7.0) and shorten_retries(2.0); "
        "from flwr.supercore.retry import http_retry; assert http_retry.MAX_RETRY_DELAY == 2.0; "
        "assert pull_objects.__kwdefaults__['max_time'] == 7.0; "
        "from flwr.supernode import start_client_internal; import time; then = time.monotonic(); "
        "start_client_internal.time.sleep(30); assert time.monotonic() - then < 20"
    )
    root = str(Path(cli.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})


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
    monkeypatch.setattr(warm, "forking", lambda module: module.not_there)
    monkeypatch.setattr(warm, "run_command", lambda name, words: ran.append((name, list(words))))
    words = ["--runtime-api-address", "127.0.0.1:1", "--insecure"]
    assert warm.main(words) == 0
    assert ran == [("flower-superexec", words)]
    assert "a process per task" in capsys.readouterr().err


def test_a_fork_runs_the_task_and_gives_its_exit_code() -> None:
    code = (
        "import os, sys\n"
        "from fedrows.flower import warm\n"
        "for wanted in (0, 3):\n"
        "    warm.run_command = lambda name, words: sys.exit(wanted)\n"
        "    pid = os.fork()\n"
        "    if pid == 0:\n"
        "        warm._carry_out('x', [])\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == wanted\n"
    )
    root = str(Path(cli.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": root})


# -- the gate --


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


# -- pinned apps --


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


# -- keys --


def test_private_keys_are_for_their_owner_alone(keys: Path) -> None:
    for path in (keys / "ca.key", keys / "server.key", keys / "nodes" / "a.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(security.hosts_of(keys / "server.pem")) == {
        "superlink.example.org",
        "192.0.2.7",
        "localhost",
        "127.0.0.1",
        "::1",
    }
    security.check_node_key(keys / "nodes" / "a.key")


def test_nothing_is_overwritten(keys: Path) -> None:
    before = {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}
    for make in (
        lambda: security.make_authority(keys),
        lambda: security.make_server(keys, ["x"]),
        lambda: security.make_node_key(keys, "a"),
    ):
        with pytest.raises(security.SecurityError, match="exists already"):
            make()
    assert before == {path: path.read_bytes() for path in keys.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["", "../x", "a b", "-x", "x" * 64])
def test_a_nodes_name_is_a_plain_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(security.SecurityError, match="cannot be a node's name"):
        security.make_node_key(tmp_path, name)


def test_wrong_files_are_named(tmp_path: Path, keys: Path) -> None:
    (tmp_path / "odd").write_text("odd")
    with pytest.raises(security.SecurityError, match="odd is not a node's private key"):
        security.check_node_key(tmp_path / "odd")
    with pytest.raises(security.SecurityError, match="not a certificate"):
        security.read_certificate(tmp_path / "odd")
    (tmp_path / "ca.pem").write_bytes((keys / "ca.pem").read_bytes())
    with pytest.raises(security.SecurityError, match=r"server\.pem cannot be read"):
        security.open_security(tmp_path)
    with pytest.raises(security.SecurityError, match="neither a host name nor an address"):
        security.make_server(_authority(tmp_path / "new"), ["a:8000"])


# -- the SuperLink as operators see it --


@pytest.mark.parametrize(
    "address", ["", "host", "host:", ":8000", "host:0", "host:70000", "host:x"]
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    with pytest.raises(control.ControlError, match="write HOST:PORT"):
        control.split_address(address)
    assert control.split_address("[::1]:8000") == ("::1", 8000)


def test_settings_are_read_back_as_they_were() -> None:
    import tomllib

    config: dict[str, control.Value] = {
        "text": 'it\'s a "path" \\ with ü and\nlines \x7f',
        "rounds": 5,
        "rate": 1e-05,
        "yes": True,
        "a-b": "",
    }
    assert tomllib.loads(control.as_toml(config)) == config


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, keys: Path) -> None:
    import ssl

    other = _authority(tmp_path / "other")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for _ in range(2):
                plain, _address = listener.accept()
                with contextlib.suppress(OSError), plain, context.wrap_socket(plain, True):
                    pass

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(control.ControlError, match="does not vouch for"):
            control.check_reachable(f"127.0.0.1:{port}", other / "ca.pem")
        control.check_reachable(f"127.0.0.1:{port}", keys / "ca.pem")
        thread.join()


def test_a_superlink_with_tls_is_not_asked_without() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve() -> None:
            for answer in (b"\x15\x03\x01\x00\x02", b"HTTP/1.0 200 OK\r\n\r\n"):
                plain, _ = listener.accept()
                with plain:
                    plain.recv(100)
                    plain.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(control.ControlError, match="does not speak plain HTTP"):
            control.check_reachable(f"127.0.0.1:{port}", None)
        control.check_reachable(f"127.0.0.1:{port}", None)
        thread.join()


class Servers:
    """A SuperLink that answers as it was told to."""

    def __init__(self, *answers: tuple[str, str] | None) -> None:
        self.answers = list(answers)
        self.submitted = 0
        self.stopped: list[int] = []

    def submit(self, project: Path, config: Any) -> int:
        self.submitted += 1
        return self.submitted

    def look(self, run: int) -> tuple[str, str]:
        answer = self.answers.pop(0)
        if answer is None:
            raise control.ControlError("gone")
        return answer

    def stop(self, run: int) -> None:
        self.stopped.append(run)


RUNNING, DONE = ("running", ""), ("finished:completed", "")
KILLED = ("finished:failed", "The ServerApp was killed by signal 9.")


def test_a_run_is_submitted_again_when_its_servers_die() -> None:
    servers = Servers(RUNNING, KILLED, RUNNING, None, None, RUNNING, RUNNING, DONE)
    said: list[str] = []
    assert persist(servers, Path(), {}, 5, said.append, every=0.0) == 0
    assert servers.submitted == 3
    assert servers.stopped == [2]  # the one whose SuperLink was away
    assert said[-1] == "Run 3 has completed."


def test_a_run_is_not_tried_for_ever() -> None:
    servers = Servers(KILLED, KILLED, KILLED)
    with pytest.raises(control.ControlError, match="Run 3 broke off, and so did 2"):
        persist(servers, Path(), {}, 2, lambda _: None, every=0.0)


def test_an_app_that_raised_is_not_tried_again() -> None:
    failed = ("finished:failed", "ServerApp failed with exception: There is no task called 'x'.")
    servers = Servers(RUNNING, failed)
    with pytest.raises(control.ControlError, match="no task called 'x'"):
        persist(servers, Path(), {}, 5, lambda _: None, every=0.0)
    assert servers.submitted == 1


def test_a_stopped_run_is_over_and_ctrl_c_stops_one() -> None:
    assert persist(Servers(("finished:stopped", "")), Path(), {}, 5, print, every=0.0) == 130

    class Pressed(Servers):
        def look(self, run: int) -> tuple[str, str]:
            raise KeyboardInterrupt

    servers = Pressed()
    with pytest.raises(KeyboardInterrupt):
        persist(servers, Path(), {}, 5, lambda _: None, every=0.0)
    assert servers.stopped == [1]


# -- bad input on the command line --


def test_keys_are_made_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "keys")
    assert deploy("keys", folder) == 2
    assert "--host" in sentence(capsys)
    assert deploy("keys", folder, "--host", "example.org", "--nodes", "a,b") == 0
    assert len(capsys.readouterr().out.split()) == 4
    assert deploy("keys", folder, "--nodes", "c") == 0
    assert deploy("keys", folder) == 0
    capsys.readouterr()
    assert deploy("keys", folder, "--nodes", "a") == 2
    assert "a.key exists already" in sentence(capsys)
    assert deploy("keys", folder, "--host", "other.org") == 2
    assert "not for other.org" in sentence(capsys)


CASES = {  # what is typed, with words in capitals filled in, and what the sentence must say
    "no certificates": ("superlink", "--certificates"),
    "both": ("superlink --insecure --certificates KEYS", "contradict"),
    "missing folder": ("superlink --certificates none", "ca.pem cannot be read"),
    "odd port": ("superlink --insecure --port http", "--port is 'http'"),
    "port in use": ("superlink --insecure --host 127.0.0.1 --port BUSY", "Port BUSY"),
    "odd networks": ("superlink --insecure --control-from us", "are not networks"),
    "no superlink": ("node --insecure", "--superlink"),
    "no shard": ("node NODE OWN --shard none", "no shard"),
    "no key": ("node NODE --shard .", "--key"),
    "no such key": ("node NODE --shard . --key none", "none cannot be read"),
    "odd key": ("node NODE --shard . --key KEYS/ca.pem", "not a node's private"),
    "not reached": ("node NODE OWN --shard .", "cannot be reached"),
    "key without TLS": ("node --insecure --superlink x:1 --shard . --state s --key k", "--key"),
    "odd app": ("node NODE OWN --shard . --apps abc", "not the hash of an app"),
    "odd poll": ("node NODE OWN --shard . --poll 0", "--poll"),
    "no public key": ("admit --superlink x:1 CA", "public key"),
    "missing public key": ("admit none --superlink x:1 CA", "none cannot be read"),
    "no project": ("run --superlink x:1 CA", "Flower project"),
    "not a project": ("run . --superlink x:1 CA", "pyproject.toml"),
    "unknown setting": ("run project CA --superlink x:1 --config x=1", "no setting called"),
    "odd setting": ("run project CA --superlink x:1 --config rounds", "KEY=VALUE"),
    "nobody there": ("run project CA --superlink FREE", "cannot be reached"),
    "unknown action": ("undo", "no action called"),
    "unknown option": ("node --what", "--what"),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_one_sentence(
    case: str,
    keys: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _project(tmp_path / "project")
    typed, wanted = CASES[case]
    with socket.create_server(("127.0.0.1", 0)) as busy:
        filled = {
            "NODE": "--superlink FREE CA --state state",
            "CA": "--certificates KEYS",
            "KEYS": str(keys),
            "OWN": f"--key {keys}/nodes/a.key",
            "FREE": f"127.0.0.1:{free_port()}",
            "BUSY": str(busy.getsockname()[1]),
        }
        for word, text in filled.items():
            typed = re.sub(rf"\b{word}\b", text, typed)
            wanted = wanted.replace(word, text)
        assert deploy(*typed.split()) == 2
    assert wanted in sentence(capsys)
    assert not Path("state").exists()  # nothing was begun


def test_a_state_that_cannot_be_written(
    keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert deploy("superlink", "--insecure", "--state", str(tmp_path / "file" / "x")) == 2
    assert "is not a folder that can be written" in sentence(capsys)


@pytest.mark.parametrize("action", ["", "keys", "superlink", "node", "admit", "run"])
def test_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy(*filter(None, [action, "--help"])) == 0
    assert "fedrows deploy" in capsys.readouterr().out


def test_without_flower_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedrows.cli.deploy.importlib.util.find_spec", lambda name: None)
    assert deploy("keys", "x") == 2
    assert "install fedrows[flower]" in sentence(capsys)
    assert issubclass(security.SecurityError, FedrowsError)


# -- for the tests above --


def _project(folder: Path) -> None:
    folder.mkdir()
    text = "[tool.flwr.app]\n[tool.flwr.app.config]\nrounds = 5\n"
    (folder / "pyproject.toml").write_text(text)


def _authority(folder: Path) -> Path:
    security.make_authority(folder)
    return folder


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
