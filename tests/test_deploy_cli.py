"""The command deploy: keys are made, and bad input is one sentence before anything is begun."""

import re
import socket
from pathlib import Path

import pytest

from fedrows import cli
from fedrows.cli.deploy import ACTIONS
from fedrows.errors import FedrowsError
from fedrows.flower.launch import certificates
from fedrows.flower.launch.processes import free_port


def deploy(*words: str) -> int:
    return cli.main(["deploy", *words])


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    text = capsys.readouterr().err.strip()
    assert len(text.splitlines()) == 1
    assert text.startswith("fedrows: ")
    return text


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    assert deploy("keys", str(folder), "--host", "superlink.example.org", "--nodes", "a") == 0
    return folder


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
    "policy without apps": ("node NODE OWN --shard . --policy p", "protect nothing"),
    "peers without apps": ("node NODE OWN --shard . --peers p", "protect nothing"),
    "odd poll": ("node NODE OWN --shard . --poll 0", "--poll"),
    "no public key": ("admit --superlink x:1 CA", "public key"),
    "missing public key": ("admit none --superlink x:1 CA", "none cannot be read"),
    "no project": ("run --superlink x:1 CA", "Flower project"),
    "not a project": ("run . --superlink x:1 CA", "pyproject.toml"),
    "unknown setting": ("run project CA --superlink x:1 --config x=1", "no setting called"),
    "odd setting": ("run project CA --superlink x:1 --config rounds", "KEY=VALUE"),
    "nobody there": ("run project CA --superlink FREE", "cannot be reached"),
    "no token": ("status CA --superlink x:1 --token none", "control token none cannot be read"),
    "no run": ("stop CA --superlink x:1 last", "RUN is 'last'"),
    "no node": ("revoke CA --superlink x:1", "Name the node"),
    "no file": ("export CA --superlink x:1", "--to"),
    "odd rounds": ("run project CA --superlink x:1 --rounds many", "--rounds is 'many'"),
    "odd metrics": ("run project CA --superlink x:1 --metrics-port x", "--metrics-port is 'x'"),
    "host alone": ("run project CA --superlink x:1 --metrics-host x", "--metrics-port"),
    "odd wait": ("stop CA --superlink x:1 --wait soon", "--wait is 'soon'"),
    "nothing to hash": ("hash .", "is not a Flower project"),
    "nothing to rotate": ("rotate KEYS", "Choose what to replace"),
    "nothing listens": ("status CA --superlink FREE", "cannot be reached"),
    "no nodes there": ("nodes CA --superlink FREE", "cannot be reached"),
    "none to revoke": ("revoke north CA --superlink FREE", "cannot be reached"),
    "none to stop": ("stop CA --superlink FREE", "cannot be reached"),
    "none to export": ("export --to m.fedrows CA --superlink FREE", "cannot be reached"),
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


@pytest.mark.parametrize(
    "action", ["", *(action for action in ACTIONS if action not in ("demo", "policy"))]
)
def test_help(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert deploy(*filter(None, [action, "--help"])) == 0
    assert "fedrows deploy" in capsys.readouterr().out


def test_without_flower_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedrows.cli.deploy.importlib.util.find_spec", lambda name: None)
    assert deploy("keys", "x") == 2
    assert "install fedrows[flower]" in sentence(capsys)
    assert issubclass(certificates.CertificateError, FedrowsError)


def _project(folder: Path) -> None:
    folder.mkdir()
    text = "[tool.flwr.app]\n[tool.flwr.app.config]\nrounds = 5\n"
    (folder / "pyproject.toml").write_text(text)
