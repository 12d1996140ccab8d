"""Asynchronous runs through a gateway: nobody is waited for, and every update counts once."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")
pytest.importorskip("safetensors")

from asynchronous import replay
from deployed import difference, examples, task_of
from gateway_devices import Devices, gateway, gateway_node
from gateway_programs import PLAIN, TorchPrograms, write_program
from loopback import Loopback

from fedrows.data.federation import FederatedData
from fedrows.flower.deployment import Deployment
from fedrows.flower.gateway import gateway_node as node_side
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.server import async_fleet, gateway_work
from fedrows.flower.server.async_fleet import AsyncFlowerFleet
from fedrows.flower.server.node_records import SILENT
from fedrows.flower.server.update_log import UPDATES, BufferedUpdate, UpdateLog, read_updates
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.simulation import Simulation
from fedrows.watch import Observers

CONFIG: dict[str, Any] = {
    **PLAIN, "mode": "async", "buffer": 3, "concurrency": 6, "rounds": 6, "timeout": 60.0
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_side, "HOLD", 0.2)
    monkeypatch.setattr(gateway_work, "PAUSE", 0.0)


@dataclass
class Begun:
    """An asynchronous run whose one node is a gateway."""

    run: Deployment
    transport: Loopback
    devices: Devices
    again: Callable[[], Deployment]  # the server, started again

    @property
    def fleet(self) -> AsyncFlowerFleet:
        assert isinstance(self.run.fleet, AsyncFlowerFleet)
        return self.run.fleet


@contextlib.contextmanager
def begun(data: FederatedData, folder: Path, **more: Any) -> Iterator[Begun]:
    config = {**CONFIG, **{name.replace("_", "-"): x for name, x in more.items()}}
    if config["algorithm"] != "fedsubavg":
        del config["cap"]
    task, transport = task_of(data), Loopback()
    program = write_program(task, config, data, folder / "program")
    transport.here[1] = gateway_node(
        task, config, data, folder / "gate", program=str(program), devices=data.clients
    )

    def server() -> Deployment:
        made = Deployment(make_contract(task, config), transport, config, lambda text: None)
        made.fleet.run = "0" * 16
        return made

    with gateway(folder, data) as (devices, _):
        devices.programs = TorchPrograms(task, config, data)
        yield Begun(server(), transport, devices, server)


def test_when_all_devices_are_awaited_it_is_the_simulation(tmp_path: Path) -> None:
    data = examples(clients=5)
    with begun(data, tmp_path, buffer=5, concurrency=5) as it:
        it.devices.run(range(5))
        for exchange in it.run:
            assert not exchange.dropped
        its = it.run.contract
        waited = {**CONFIG, "mode": "sync", "clients-per-round": 5, "buffer": "", "concurrency": ""}
        plan = make_contract(task_of(data), waited).plan
        twin = Simulation(data, its.model(data), its.algorithm, plan)
        for _ in twin:
            pass
        assert difference(it.run.progress.whole(), twin.progress.whole()) < 1e-6


def registered(devices: Devices, client: int) -> Any:
    """A device that enrols and registers, and is then no longer there."""

    def until() -> None:
        session = devices.session(client)
        while not session.storage.names("registered"):
            session.step(wait=1)
        session.http.close()
        devices.store.close()

    thread = threading.Thread(target=until)
    thread.start()
    return thread


def test_a_device_that_never_answers_costs_its_own_work_only(tmp_path: Path) -> None:
    data = examples()
    with begun(data, tmp_path, concurrency=12, rounds=8) as it:
        gone = registered(it.devices, 0)
        it.devices.run(range(1, data.clients))
        asked = Counter[str]()
        for exchange in it.run:  # the time-out has not passed, and nobody waits for it
            assert not exchange.dropped
            asked += Counter({"steps": 1, "asked": exchange.asked})
        gone.join()
        left = it.fleet.under_way["gate"]
        took_part = {one.name for one in it.run.registry.clients if one.accepted}
    assert asked["steps"] == 8
    assert left >= 1
    assert "device-00000" not in took_part
    assert len(took_part) >= 8


def test_it_is_asked_again_when_its_time_is_up(tmp_path: Path) -> None:
    data = examples(clients=4)
    with begun(data, tmp_path, concurrency=4, buffer=2, rounds=40, timeout=0.8) as it:
        gone = registered(it.devices, 0)
        it.devices.run(range(1, 4))
        dropped = Counter[str]()
        for exchange in it.run:
            for why, who in exchange.dropped.items():
                dropped.update((why, name) for name in who)  # type: ignore[arg-type]
            if dropped:
                break
        gone.join()
        assert set(dropped) == {(SILENT, "device-00000")}
        it.devices.run(range(1))  # it is back
        for _ in it.run:
            if any(one.name == "device-00000" and one.accepted for one in it.run.registry.clients):
                break
        else:
            pytest.fail("the device that was back took no part")


class Enough(Exception):
    """The server has looked for answers often enough."""


@pytest.mark.parametrize("says", ["all are silent", "nothing"])
def test_a_gateway_that_answers_at_once_does_not_keep_the_server_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """As one does, too, of which a device spoils its work at once: each try costs the server."""
    looks, told = 0, list[Message]()
    with begun(examples(clients=4), tmp_path, concurrency=4, buffer=2) as it:
        gone = [registered(it.devices, client) for client in range(4)]
        honest, collect = it.transport.here[1], it.fleet.collect
        monkeypatch.setattr(gateway_work, "PAUSE", 10.0**6)
        monkeypatch.setattr(async_fleet, "POLL", 0.01)

        def hasty(message: bytes) -> bytes:
            asked = unpack(message)
            if asked.kind != "train":
                return honest(message)
            told.append(asked)
            tag, count = asked.facts["tag"], len(asked.parts["numbers"])
            silent = [(tag, place) for place in range(count)] if says != "nothing" else []
            return pack(Message("arrived", {"tag": tag, "silent": silent}, {}))

        def counted(step: int, wait: bool) -> list[BufferedUpdate]:
            nonlocal looks
            looks += 1
            if looks > 60:
                raise Enough
            return collect(step, wait)

        it.transport.here[1] = hasty
        monkeypatch.setattr(it.fleet, "collect", counted)
        with pytest.raises(Enough):
            list(it.run)
        for thread in gone:
            thread.join()
    assert 1 <= len(told) < 20


class Noted:
    """Updates that the server has accepted, by their keys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.accepted: dict[Any, BufferedUpdate] = {}
        accept = UpdateLog.accept

        def noting(log: UpdateLog, updates: Any) -> None:
            accept(log, updates)
            for one in updates:
                assert one.key not in self.accepted
                self.accepted[one.key] = one

        monkeypatch.setattr(UpdateLog, "accept", noting)


def test_answers_that_are_lost_or_come_twice_lose_and_double_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is worked out again from what was accepted; all that was trained came in."""
    data, noted = examples(), Noted(monkeypatch)
    faults, last = Counter[str](), list[bytes]()
    terms = {"algorithm": "fedavg", "weighting": "uniform", "rounds": 12}
    with begun(data, tmp_path, staleness="row", **terms) as it:

        def meddle(node: int, answer: bytes) -> bytes | str:
            message = unpack(answer)
            if message.kind != "arrived" or not message.parts:
                return answer
            faults["answers"] += 1
            if faults["answers"] % 3 == 0:
                faults["lost"] += 1
                return "the network failed"
            if faults["answers"] % 5 == 0 and last:  # what was sent before comes once more
                faults["twice"] += 1
                parts = dict(unpack(last[-1]).parts) | dict(message.parts)
                return pack(Message("arrived", message.facts, parts))
            last.append(answer)
            return answer

        it.transport.meddle = meddle  # type: ignore[assignment]
        it.devices.run(range(data.clients))
        with Journal.opened(tmp_path / "run", it.run) as journal:
            carry_out(it.run, journal, Observers())
        lines = read_updates(tmp_path / "run" / UPDATES)
        applied = [x for x in lines if "step" in x]
        keys = [(x["node"], x["client"], x["tag"]) for x in applied]
        assert len(keys) == len(set(keys)) == 12 * 3
        updates = [(x["step"], noted.accepted[key]) for x, key in zip(applied, keys, strict=True)]
        table = it.run.progress.params.tables["item"]
        torch.testing.assert_close(table, replay(it.run, updates, "row", 3), rtol=0, atol=1e-6)
        assert it.fleet.rejected == {"stale": sum(it.fleet.rejected.values())}
    assert faults["lost"] > 2
    assert faults["twice"] > 0


def test_a_server_that_is_started_again_goes_on_with_the_same_devices(tmp_path: Path) -> None:
    data = examples()
    with begun(data, tmp_path, rounds=10) as it:
        it.devices.run(range(data.clients))
        with Journal.opened(tmp_path / "run", it.run) as journal:
            watched = iter(it.run)
            for _ in range(4):
                next(watched)
                journal.save()
        second = it.again()
        with Journal.opened(tmp_path / "run", second) as journal:
            assert second.progress.round == 4
            carry_out(second, journal, Observers())
        assert second.progress.round == 10
        applied = [x for x in read_updates(tmp_path / "run" / UPDATES) if "step" in x]
        assert len({(x["client"], x["tag"]) for x in applied}) == len(applied) == 30


def test_a_device_that_lies_is_refused_by_itself(tmp_path: Path) -> None:
    """Of an answer with several uploads, too; and a device cannot speak of other devices."""
    data, told = examples(), 0
    with begun(data, tmp_path) as it:

        def meddle(node: int, answer: bytes) -> bytes:
            nonlocal told
            message = unpack(answer)
            if message.kind != "arrived" or not message.parts or told == 2:
                return answer
            told += 1
            key, part = next(iter(message.parts.items()))
            own = unpack(part)
            if told == 1:
                own.facts["tag"] = 5  # of no work
            own.facts |= {"changes": True, "clients": ["a stranger"], "left": [0]}
            own.parts["changed/examples"] = ids_to_bytes(torch.tensor([3]))
            own.parts["changed/index/item"] = ids_to_bytes(torch.tensor([1]))
            return pack(Message("arrived", message.facts, {**message.parts, key: pack(own)}))

        it.transport.meddle = meddle
        it.devices.run(range(data.clients))
        for exchange in it.run:
            assert not exchange.dropped
        assert it.fleet.rejected == {"stale": 1}
        sizes = {x.name: x.examples for x in it.run.registry.clients}
    assert told == 2
    assert sizes == {f"device-{i:05d}": int(size) for i, size in enumerate(data.sizes)}
