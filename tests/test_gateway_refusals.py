"""What devices, operators and servers get wrong: one sentence each, and nothing is lost."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import CONFIG, examples, run, shards_of, simulated, task_of
from gateway_devices import (
    DeviceSession,
    DeviceStorage,
    GatewayRefused,
    GatewayUnreachable,
    SessionError,
    SignedHttp,
    StorageError,
    device_main,
    gateway,
    gateway_node,
    signed_http,
    write_examples,
)
from gateway_programs import PLAIN, TorchPrograms, write_program
from loopback import federation

from fedrows.cli import deploy
from fedrows.errors import FedrowsError
from fedrows.flower.gateway import gateway_node as node_side
from fedrows.flower.gateway.device_runs import explain_devices
from fedrows.flower.gateway.forms import RegistrationForm
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.store import GatewayStore, StoreError
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, pack, unpack

PRIVATE: dict[str, Any] = {"privacy": "index", "row-clip": None, "weight-quantile": None}


def kept(folder: Path) -> dict[str, bytes]:
    """Every file of a device's folder."""
    return {str(x.relative_to(folder)): x.read_bytes() for x in folder.rglob("*") if x.is_file()}


def test_a_token_enrols_one_device_while_it_is_new(tmp_path: Path) -> None:
    with gateway(tmp_path, examples()) as (devices, store):

        def fresh(name: str) -> DeviceSession:
            made = SignedHttp(devices.url)
            return DeviceSession(made, DeviceStorage(tmp_path / name), tmp_path / "data")

        token, one, two = store.make_token(), fresh("one"), fresh("two")
        one.enrol(token, "first")
        with pytest.raises(GatewayRefused, match="used by another device"):
            two.enrol(token)
        with pytest.raises(GatewayRefused, match="too old"):
            two.enrol(store.make_token(hours=-1))
        with pytest.raises(GatewayRefused, match="not one of this gateway"):
            two.enrol("guessed")
        with pytest.raises(GatewayRefused, match="Another device is called 'first'"):
            two.enrol(spare := store.make_token(), "first")
        with pytest.raises(GatewayRefused, match="A name has 1 to 64 letters"):
            two.enrol(spare, "../second")
        two.enrol(spare, "second")
        # The answer was lost: the same key and token give the same device.
        known = one.storage.identity()
        one.storage.put_identity({"key": known["key"]})
        again = DeviceSession(one.http, one.storage, tmp_path / "data")
        again.enrol(token)
        assert one.storage.identity() == known
        assert [name for name, _, _ in store.devices()] == ["first", "second"]
        for session in (one, two):
            session.http.close()
    assert token not in (tmp_path / "gate" / "gateway.db").read_bytes().decode("latin-1")
    assert (tmp_path / "gate" / "gateway.db").stat().st_mode & 0o777 == 0o600


def test_a_wrong_clock_or_key_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with gateway(tmp_path, examples()) as (devices, _):
        session = devices.session(0)
        state = tmp_path / "device-0" / "state"
        before = kept(state)
        now = time.time()
        with monkeypatch.context() as patch:
            patch.setattr(signed_http, "time", SimpleNamespace(time=lambda: now - 4000))
            with pytest.raises(
                GatewayRefused, match=r"clock is (4000|3999|4001) s behind the gateway's"
            ):
                session.step(wait=0)
        key, session.http.key = session.http.key, b"x" * 32
        with pytest.raises(GatewayRefused, match="signature is not that of this device's key"):
            session.step(wait=0)
        session.http.key = key
        step = session.step(wait=0)  # the gateway has begun no run
        assert "no program yet: its federation has begun no run" in step.why
        assert kept(state) == before
        session.http.close()


def test_a_gateway_that_is_not_there_is_asked_again(tmp_path: Path) -> None:
    session = DeviceSession(
        SignedHttp("http://127.0.0.1:9"), DeviceStorage(tmp_path / "d"), tmp_path / "data"
    )
    with pytest.raises(GatewayUnreachable, match="does not answer"):
        session.enrol("token")
    key = session.storage.identity()["key"]
    with pytest.raises(GatewayUnreachable):
        session.enrol("token")
    assert session.storage.identity() == {"key": key}


def test_storage_that_fails_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = DeviceStorage(tmp_path / "d")
    storage.put_memory("ab", 5, {"x": np.ones(3)})
    before = kept(tmp_path / "d")

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"cannot be written \(No space left on device\)"):
        storage.put_memory("ab", 6, {"x": np.zeros(3)})
    assert kept(tmp_path / "d") == before
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        GatewayStore(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot be written"):
        DeviceStorage(tmp_path / "file" / "deeper")


def test_a_program_of_another_version_is_refused(tmp_path: Path) -> None:
    data, config = examples(), dict(PLAIN)
    task = task_of(data)
    program = write_program(task, config, data, tmp_path / "program")
    manifest = json.loads((program / "manifest.json").read_text()) | {"format": 9}
    (program / "manifest.json").write_text(json.dumps(manifest))
    with gateway(tmp_path, data) as (devices, store):
        node = node_side.Programs(store)
        node.add(manifest["contract"], program)
        node.publish(manifest["contract"], node_side.RegistrationForm({"item": 30}, 100))
        session = devices.session(0)
        with pytest.raises(ValueError, match="has format 9, but this client reads format 1"):
            session.step(wait=0)
        session.http.close()


def test_the_light_client_takes_no_part_in_private_runs(tmp_path: Path) -> None:
    data, config = examples(), dict(PLAIN)
    program = write_program(task_of(data), config, data, tmp_path / "program")
    contract = json.loads((program / "manifest.json").read_text())["contract"]
    with gateway(tmp_path, data) as (devices, store):
        node = node_side.Programs(store)
        node.add(contract, program)
        node.publish(contract, node_side.RegistrationForm({}, 1, private=True))
        session = devices.session(0)
        with pytest.raises(SessionError, match="makes no masks of secure sums"):
            session.step(wait=0)
        session.http.close()
        assert store.count_registered(contract) == 0


def test_a_program_of_another_contract_is_declined(tmp_path: Path) -> None:
    data, config = examples(), dict(PLAIN)
    task = task_of(data)
    program = write_program(task, {**config, "lr": 0.5}, data, tmp_path / "program")
    node = gateway_node(task, config, data, tmp_path / "gate", program=str(program))
    answer = node(enrolment(task, config))
    assert unpack(answer).kind == "declined"
    assert "of another contract than the run" in (tmp_path / "gate" / "declined.txt").read_text()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (PRIVATE, "this gateway has no list of peers: start it with --peers"),
        (PRIVATE | {"weighting": "examples"}, "devices tell nobody how many examples"),
        (PRIVATE | {"privacy": "full"}, "devices add no noise to secure sums"),
        ({"coding": "int8"}, "The run's coding is not float32"),
        ({"dtype": "float64"}, "The run's dtype is not float32"),
    ],
)
def test_runs_that_devices_cannot_join_are_declined(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    data, config = examples(), {**CONFIG, "dtype": "float32", **change}
    config = {name: x for name, x in config.items() if x is not None}
    node = gateway_node(task_of(data), config, data, tmp_path / "gate")
    assert unpack(node(pack(Message("enrol", {"contract": "", "run": "0" * 16}, {})))).kind == (
        "declined"
    )
    assert said in (tmp_path / "gate" / "declined.txt").read_text()


def enrolment(task: Any, config: dict[str, Any]) -> bytes:
    """A server's request to enrol."""
    agreed = make_contract(task, config)
    data = task.server(config)
    fingerprint = agreed.fingerprint(agreed.model(data), data)
    facts = {"contract": fingerprint, "run": "0" * 16, "version": 3}
    return pack(Message("enrol", facts, {}))


def test_too_few_devices_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_side, "ENROL_SECONDS", 0.05)
    data, config = examples(), dict(PLAIN)
    task = task_of(data)
    program = write_program(task, config, data, tmp_path / "program")
    node = gateway_node(task, config, data, tmp_path / "gate", program=str(program))
    answer = unpack(node(enrolment(task, config)))
    assert (answer.kind, answer.facts) == ("waiting", {"devices": 0, "needed": 6})
    assert not (tmp_path / "gate" / "refused.txt").exists()  # or the gateway would end


def meddled(answered: bytes) -> Any:
    """A node's answer with this part beside the updates of all of its clients."""

    def meddle(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if message.kind == "trained" and node == 1:
            message.parts["answered"] = answered
        return pack(message)

    return meddle


@pytest.mark.parametrize(
    "answered",
    [
        b"",  # nobody, with updates of two
        b"\x00",  # the first alone, with updates of two
        ids_to_bytes(torch.tensor([0, 9])),  # somebody who was not asked
        b"\x80",  # cut off
        b"\x00" * 50,  # more than were asked
    ],
)
def test_the_server_checks_who_is_said_to_have_answered(tmp_path: Path, answered: bytes) -> None:
    data = examples()
    config = {**CONFIG, "clients-per-round": 12, "min-answers": 1, "rounds": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)
    loopback.meddle = meddled(answered)
    run(fleet, data)
    assert fleet.rejected["wrong shape"] == 1
    assert fleet.last is not None
    assert fleet.last.answered == 8  # the clients of the other two nodes
    assert not fleet.last.dropped


def test_the_server_takes_whole_answers_that_name_all(tmp_path: Path) -> None:
    data = examples()
    config = {**CONFIG, "clients-per-round": 12}
    fleet, loopback = federation(task_of(data), config, shards_of(data), tmp_path)
    loopback.meddle = meddled(ids_to_bytes(torch.arange(4)))
    found = run(fleet, data)
    assert not fleet.rejected
    assert torch.equal(found.whole().tables["item"], simulated(fleet, data).tables["item"])


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = str(tmp_path / "state")
    assert deploy.main(["gateway-token", "--state", state, "--count", "2", "--hours", "1"]) == 0
    one, two = capsys.readouterr().out.split()
    store = GatewayStore(tmp_path / "state")
    assert store.enrol(one, b"k" * 32, "tablet").name == "tablet"
    assert one != two
    assert deploy.main(["gateway-devices", "--state", state]) == 0
    assert "device tablet  not registered  last seen 0 s ago" in capsys.readouterr().out
    assert deploy.main(["gateway-devices", "--state", state, "--remove", "tablet"]) == 0
    assert store.devices() == []
    with pytest.raises(FedrowsError, match="No device of this gateway is called 'tablet'"):
        deploy.main(["gateway-devices", "--state", state, "--remove", "tablet"])
    given = ["gateway", "--superlink", "127.0.0.1:9", "--insecure", "--state", state]
    with pytest.raises(FedrowsError, match="Name a sample of the data with --shard"):
        deploy.main(given)
    (tmp_path / "shard").write_text("")
    with pytest.raises(FedrowsError, match="is a share"):
        deploy.main([*given, "--shard", str(tmp_path / "shard"), "--enough", "3"])
    with pytest.raises(FedrowsError, match=r"127\.0\.0\.1:9"):  # there is no federation
        deploy.main([*given, "--shard", str(tmp_path / "shard"), "--port", "18443"])
    with pytest.raises(FedrowsError, match="this machine alone"):
        deploy.main([*given, "--shard", str(tmp_path / "shard"), "--host", "192.0.2.1"])
    with pytest.raises(FedrowsError, match="--peers and --policy protect nothing"):
        deploy.main([*given, "--shard", str(tmp_path / "shard"), "--peers", "peers.json"])


def test_the_device_program_says_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_examples(examples(), 0, tmp_path / "examples.json")
    common = ["--state", str(tmp_path / "d"), "--data", str(data)]
    assert device_main(["--gateway", "ftp://somewhere", *common]) == 2
    assert "write https://HOST:PORT" in capsys.readouterr().err
    assert device_main(["--gateway", "http://192.0.2.1:80", *common]) == 2
    assert "has no TLS" in capsys.readouterr().err
    with gateway(tmp_path, examples()) as (devices, _):
        assert device_main(["--gateway", devices.url, *common]) == 2
        assert "not enrolled: give it a token with --token" in capsys.readouterr().err
        assert device_main(["--gateway", devices.url, "--token", "guessed", *common]) == 2
        assert "The token is not one of this gateway" in capsys.readouterr().err


def test_a_device_runs_the_pinned_program_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of another one it does not even register."""
    data = examples()
    write_program(task_of(data), PLAIN, data, tmp_path / "made")
    right = hashlib.sha256((tmp_path / "made" / "manifest.json").read_bytes()).hexdigest()
    own = write_examples(data, 0, tmp_path / "examples.json")
    with gateway(tmp_path, data) as (devices, store):
        Programs(store).add("a" * 32, tmp_path / "made")
        Programs(store).publish("a" * 32, RegistrationForm({"item": 30}, 100))
        words = ["--gateway", devices.url, "--state", str(tmp_path / "d"), "--data", str(own)]
        words += ["--token", store.make_token()]
        assert device_main([*words, "--program", "sha"]) == 2
        assert "takes the SHA-256 of a manifest.json" in capsys.readouterr().err
        for _ in range(2):  # it has it by now, and still does not run it
            assert device_main([*words, "--program", "0" * 64]) == 2
            said = capsys.readouterr().err
            assert "not the pinned one" in said
            assert right in said
        assert store.count_registered("a" * 32) == 0
        programs = TorchPrograms(task_of(data), PLAIN, data)
        storage = DeviceStorage(tmp_path / "d")
        session = DeviceSession(SignedHttp(devices.url), storage, own, programs, right.upper())
        session.step(wait=0)
        assert store.count_registered("a" * 32) == 1
        session.http.close()


def test_it_is_explained_what_devices_show_to_whom() -> None:
    clear, private = "\n".join(explain_devices(False)), "\n".join(explain_devices(True))
    declined = "\n".join(explain_devices(True, "Why not."))
    assert "every single update" in clear
    assert "its examples, rows of local tables, kept state" in clear
    assert "every single update" not in private
    assert "This holds if the gateway keeps to the protocol" in private
    assert "A gateway declines this run" in declined
    assert "Why not." in declined
