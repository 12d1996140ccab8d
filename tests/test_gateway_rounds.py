"""Rounds through a gateway: light clients over HTTP, and the model is the simulation's.

Devices train with PyTorch here; test_gateway_federation.py has real programs.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import difference, examples, run, simulated, with_drop_outs, with_local_users
from gateway_devices import GatewayRefused, write_examples
from gateway_programs import PLAIN, running
from meddled_wire import meddled

from fedrows.data.federation import FederatedData
from fedrows.flower.gateway import gateway_node
from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.server import enrolment
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.server import Progress, begin, rounds


@pytest.mark.parametrize("algorithm", ["fedsubavg", "boundedsubavg", "scaffold"])
def test_devices_train_as_simulated(tmp_path: Path, algorithm: str) -> None:
    data, config = examples(), {**PLAIN, "algorithm": algorithm}
    if algorithm != "fedsubavg":
        del config["cap"]
    with running(data, config, tmp_path) as it:
        it.devices.run(range(data.clients))
        found = run(it.fleet, data)
        assert not it.fleet.rejected
        assert it.fleet.last is not None
        assert not it.fleet.last.dropped
        assert difference(found.whole(), simulated(it.fleet, data)) < 1e-6


def test_local_rows_and_kept_state_stay_on_the_devices(tmp_path: Path) -> None:
    data = with_local_users()
    config = {**PLAIN, "clients-per-round": 4, "rounds": 6}
    with running(data, config, tmp_path) as it:
        it.devices.run(range(data.clients))
        found, wanted = run(it.fleet, data), simulated(it.fleet, data)
    assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-6
    assert not found.params.tables["user"].any()
    assert wanted.tables["user"].any()
    assert len(list(tmp_path.glob("device-*/state/runs/*/*.npz"))) > 0
    assert not any("user" in p for _, x in it.loopback.sent for p in unpack(x).parts)


def test_a_download_goes_on_at_the_byte_where_it_broke(tmp_path: Path) -> None:
    """Of every piece of work, 40 bytes come, then 60 more, then nothing, then the rest."""
    data, config = examples(clients=2), {**PLAIN, "clients-per-round": 2, "rounds": 3}
    asked: dict[str, list[int]] = {}

    def before(line: str) -> int | None:
        method, target, _ = line.split()
        if method != "GET" or "/v1/work/" not in target:
            return None
        path, offset = target.split("?offset=")
        asked.setdefault(path, []).append(int(offset))
        return {1: 40, 2: 60, 3: 0}.get(len(asked[path]))

    with running(data, config, tmp_path) as it, meddled(it.devices.url, before) as url:
        it.devices.url = url
        it.devices.run(range(data.clients))
        found = run(it.fleet, data)
        assert difference(found.whole(), simulated(it.fleet, data)) < 1e-6
    assert list(asked.values()) == [[0, 40, 100, 100]] * 6


@pytest.mark.parametrize("facts", [{"devices": 2, "needed": 6}, {"devices": "two"}])
def test_a_gateway_whose_devices_come_late_is_asked_again_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]
) -> None:
    """One that says nothing of use is not let in, as any node that answers wrongly."""
    monkeypatch.setattr(gateway_node, "ENROL_SECONDS", 0.05)
    monkeypatch.setattr(enrolment, "SECONDS", 5.0)  # who is not let in is asked again after that
    monkeypatch.setattr(enrolment, "SOON", 0.05)
    data, said, kinds = examples(), list[str](), list[str]()
    (tmp_path / "policy.toml").write_text(NodePolicy.open().text())

    with running(data, PLAIN, tmp_path, policy=str(tmp_path / "policy.toml")) as it:

        def meddle(node: int, answer: bytes) -> bytes:
            if not kinds:
                it.devices.run(range(data.clients))
            kinds.append(unpack(answer).kind)
            return answer if len(kinds) > 1 else pack(Message("waiting", facts, {}))

        it.loopback.meddle, it.fleet._log = meddle, said.append
        found = run(it.fleet, data)
        assert difference(found.whole(), simulated(it.fleet, data)) < 1e-6
    assert kinds[0] == "waiting"
    refused = facts["devices"] == "two"
    assert dict(it.fleet.rejected) == ({"registration": 1} if refused else {})
    late = "not ready: it waits for devices: 2 have registered, and 6 are needed"
    assert any(late in line for line in said) != refused
    assert not it.fleet.turned_away


@pytest.mark.slow
def test_a_device_that_stays_away_is_left_out_and_named(tmp_path: Path) -> None:
    """The model is that of a simulation in which the same clients drop out."""
    data, lines = examples(), list[dict[str, Any]]()
    config = {**PLAIN, "timeout": 3.0, "min-answers": 3}
    with running(data, config, tmp_path) as it:
        gone = it.devices.session(0)  # enrols and registers, and is never seen again
        register = threading.Thread(target=_register, args=[gone])
        register.start()
        it.devices.run(range(1, data.clients))
        progress = _note_rounds(it, data, lines)
        register.join()
        gone.http.close()
    dropped = [line["dropped"] for line in lines if line["dropped"]]
    assert dropped
    assert all(x == {"its device did not answer in time": [0]} for x in dropped)
    its = it.fleet.contract
    wanted = with_drop_outs(its.model(data), its.algorithm, data, its.plan, lines)
    assert difference(progress.whole(), wanted.whole()) < 1e-6


@pytest.mark.slow
def test_a_round_that_asks_more_devices_than_it_needs_ends_with_the_first(tmp_path: Path) -> None:
    """Four of twelve are slow, except in the last round: what they did before leaves no trace."""
    data, lines, late = examples(), list[dict[str, Any]](), list[int]()
    config = {**PLAIN, "algorithm": "scaffold", "clients-per-round": 12, "min-answers": 8}
    del config["cap"]
    with running(data, config, tmp_path, enough=8 / 12) as it:
        plain = it.devices.session

        def slow(client: int) -> Any:
            made = plain(client)
            if client >= 4:
                return made
            ask = made.http.ask

            def holding(method: str, target: str, *args: Any, **more: Any) -> Any:
                begun = len(lines)
                while method == "PUT" and "/work/" in target and begun == len(lines) < 3:
                    time.sleep(0.01)
                try:
                    return ask(method, target, *args, **more)
                except GatewayRefused as error:
                    late.append(error.status)
                    raise

            made.http.ask = holding
            return made

        it.devices.session = slow  # type: ignore[method-assign]
        it.devices.run(range(data.clients))
        progress = _note_rounds(it, data, lines)
    assert [line["tries"] for line in lines] == [1] * 4
    assert [line["dropped"] for line in lines[:3]] == [
        {"its device did not answer in time": [0, 1, 2, 3]}
    ] * 3
    assert set(late) <= {404, 410}  # the work is deleted, or was not yet
    assert late
    its = it.fleet.contract
    wanted = with_drop_outs(its.model(data), its.algorithm, data, its.plan, lines)
    assert difference(progress.whole(), wanted.whole()) < 1e-6


def _note_rounds(it: Any, data: FederatedData, lines: list[dict[str, Any]]) -> Progress:
    """A run to its end, with a line for every round: its tries, and who dropped out of it."""
    its = it.fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    for _ in rounds(it.fleet, its.plan, progress):
        last = it.fleet.last
        assert last is not None
        names = {why: [int(str(x)[-5:]) for x in who] for why, who in last.dropped.items()}
        lines.append({"round": last.round, "tries": last.tries, "dropped": names})
    return progress


def _register(session: Any) -> None:
    while not session.storage.names("registered"):
        session.step(wait=1)


@pytest.mark.slow
def test_a_device_killed_at_any_point_loses_nothing(tmp_path: Path) -> None:
    """Scaffold keeps a state: a try that is repeated starts from what there was before it."""
    data, config = examples(), {**PLAIN, "algorithm": "scaffold", "rounds": 6}
    del config["cap"]
    killed: list[str] = []
    with running(data, config, tmp_path) as it:

        class Killed(Exception):
            """The device's process ends."""

        plain = it.devices.session

        def fragile(client: int) -> Any:
            """A session that dies once at each of its writes and requests, and begins again."""
            made, count = plain(client), [0]
            ask, write = made.http.ask, made.storage.write

            def counted(what: str, call: Any) -> Any:
                def wrapper(*args: Any, **kw: Any) -> Any:
                    count[0] += 1
                    if count[0] == deaths[client]:
                        gaps[client] += 1  # or it might die at the same place for ever
                        deaths[client] += gaps[client]
                        killed.append(f"{what} {args[0]}")
                        raise Killed
                    result = call(*args, **kw)
                    return result

                return wrapper

            made.http.ask = counted("asks", ask)
            made.storage.write = counted("writes", write)
            step = made.step

            def stepping(wait: int) -> Any:
                try:
                    return step(wait)
                except Killed:
                    made.http.close()
                    made.__init__(made.http, made.storage, made.data, it.devices.programs)
                    return type("Step", (), {"after": 0.0})()

            made.step = stepping
            return made

        deaths, gaps = dict.fromkeys(range(data.clients), 3), [3 + i % 4 for i in range(12)]
        it.devices.session = fragile  # type: ignore[method-assign]
        it.devices.run(range(data.clients))
        found = run(it.fleet, data)
        assert difference(found.whole(), simulated(it.fleet, data)) < 1e-6
    for what in ("writes runs", "writes work", "asks PUT", "asks GET", "asks POST"):
        assert any(what in x for x in killed), what


@pytest.mark.slow
def test_a_device_with_new_data_is_counted_with_them(tmp_path: Path) -> None:
    """A new registration reaches the server with the next answer; until then the old data count."""
    data, config = examples(), {**PLAIN, "rounds": 6, "clients-per-round": 12}
    with running(data, config, tmp_path) as it:
        it.devices.run(range(data.clients))
        its = it.fleet.contract
        progress, before = begin(its.model(data), its.algorithm, its.plan), {}
        for _ in rounds(it.fleet, its.plan, progress):
            if not before:
                before = {x.name: x.index["item"].tolist() for x in it.fleet.registry.clients}
                more = examples(seed=5)
                write_examples(more, 0, tmp_path / "device-0" / "examples.json")
        after = {x.name: x.index["item"].tolist() for x in it.fleet.registry.clients}
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"device-00000"}
    assert after["device-00000"] == sorted(set(more.index["item"].slice(0, 1).ids.tolist()))
    assert not it.fleet.rejected
