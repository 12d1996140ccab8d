"""One device, or a stranger, takes nothing away from a gateway's other devices."""

from __future__ import annotations

import http.client
import json
import select
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import examples, run
from gateway_devices import (
    FREE,
    DeviceSession,
    DeviceStorage,
    GatewayRefused,
    SignedHttp,
    gateway,
    serving,
)
from gateway_programs import PLAIN, TorchProgram, running

from fedrows.flower.gateway import programs
from fedrows.flower.gateway.forms import RegistrationForm, UploadForm
from fedrows.flower.gateway.limits import BytesUnderWay, RequestRate
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import GatewayLimits, application
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack


def test_a_device_that_lies_about_its_steps_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = TorchProgram.train

    def lying(self: TorchProgram, *given: Any, **facts: Any) -> Any:
        result = honest(self, *given, **facts)
        if facts["number"] == 0:
            result.steps = 2**31 - 3
        return result

    monkeypatch.setattr(TorchProgram, "train", lying)
    data = examples()
    config = {**PLAIN, "batches": "epoch", "clients-per-round": 12, "min-answers": 1, "rounds": 1}
    with running(data, config, tmp_path) as it:
        it.devices.run(range(data.clients))
        run(it.fleet, data)
    assert not it.fleet.rejected
    assert it.fleet.last is not None
    assert it.fleet.last.answered == 11


def test_strangers_make_no_request_fail(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (tmp_path / "secret").write_text("secret")
    (page / "link").symlink_to(tmp_path / "secret")
    (page / "packed.gz").symlink_to(tmp_path / "secret")
    paths = ["/" + "a" * 300, "/%00", "/link", "/packed", "/..%2fsecret", "/%2e%2e/secret", "//x"]
    token = json.dumps({"token": "\ud800", "key": "00" * 32}).encode()
    with serving(application(GatewayStore(tmp_path / "s"), page)) as url:
        to = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
        for path in paths:
            for coding in ("gzip", "identity"):
                to.request("GET", path, headers={"accept-encoding": coding})
                answer = to.getresponse()
                assert (answer.status, b"secret" in answer.read()) == (404, False), path
        to.request("POST", "/v1/enrol", token)
        answer = to.getresponse()
        assert answer.status == 403, answer.read()
        to.close()
    assert "failed" not in caplog.text


def test_a_program_is_read_once_however_often_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = GatewayStore(tmp_path / "s")
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "start-0.f32").write_bytes(b"many rows")
    Programs(store).add("a" * 32, tmp_path / "made")
    Programs(store).publish("a" * 32, RegistrationForm({"item": 10}, 100))
    reads: list[int] = []
    original = programs.hashlib.sha256
    with serving(application(store)) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        session.enrol(store.make_token())

        def counted(data: bytes = b"") -> Any:
            reads.append(len(data)) if data == b"many rows" else None
            return original(data)

        monkeypatch.setattr(programs.hashlib, "sha256", counted)
        for _ in range(5):
            assert session.http.ask("GET", "/v1/program").json()["files"]["start-0.f32"]["bytes"]
        session.http.close()
    assert len(reads) == 1


def test_a_device_sends_so_much_at_a_time(tmp_path: Path) -> None:
    bodies = BytesUnderWay(10)
    with ExitStack() as held:
        assert [held.enter_context(bodies.hold("a", 4)) for _ in range(3)] == [True, True, False]
        assert held.enter_context(bodies.hold("b", 10))
    assert not bodies._held
    store = GatewayStore(tmp_path / "s")
    with serving(
        application(store, limits=GatewayLimits(piece=2**19, per_device=FREE, per_address=FREE))
    ) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        session.enrol(store.make_token())
        target = f"/v1/work/{'a' * 32}?offset=0&total=9&sha256={'0' * 64}"
        slow = [
            http.client.HTTPConnection(urlsplit(url).netloc) for _ in range(12)
        ]  # some may be refused
        for to in slow:
            headers = session.http._signature("PUT", target, b"")
            to.putrequest("PUT", target, skip_host=True)
            for name, value in {**headers, "content-length": str(2**19)}.items():
                to.putheader(name, value)
            to.endheaders(b"x")  # and the rest never comes
        until, answered = time.monotonic() + 60, list[Any]()
        while len(answered) < 8 and time.monotonic() < until:  # four are under way by then
            answered = select.select([to.sock for to in slow], [], [], 0.1)[0]
        with pytest.raises(GatewayRefused) as refused:
            session.http.ask("PUT", target, b"y" * 2**19)
        assert refused.value.status == 429
        for to in slow:
            to.close()
        session.http.close()


def test_a_stranger_uses_up_no_rate_of_a_device(tmp_path: Path) -> None:
    store = GatewayStore(tmp_path / "s")
    limits = GatewayLimits(per_device=RequestRate(0.001, 3), per_address=FREE)
    with serving(application(store, limits=limits)) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        session.enrol(store.make_token())
        stranger = SignedHttp(url)
        stranger.device, stranger.key = session.http.device, b"guessed"
        for _ in range(20):
            with pytest.raises(GatewayRefused, match="not that of this device's key"):
                stranger.ask("POST", "/v1/check-in")
        for _ in range(3):
            assert session.http.ask("POST", "/v1/check-in").json()["work"] is None
        with pytest.raises(GatewayRefused, match="too many requests"):
            session.http.ask("POST", "/v1/check-in")
        for to in (stranger, session.http):
            to.close()


def test_nothing_of_a_removed_device_stays(tmp_path: Path) -> None:
    form = UploadForm(77, {"item": 3}, {"item": 2}, {"bias": [1]}, [], False, 5, None)
    with gateway(tmp_path, examples()) as (devices, store):
        session, work = devices.session(0), WorkStore(store)
        put = NewWork(session.http.device, form.text(), b"rows")
        [id_] = work.put("run", 77, time.time() + 60, [put])
        target = f"/v1/work/{id_}?offset=0&total=99&sha256={'0' * 64}"
        assert session.http.ask("PUT", target, b"half").json()["received"] == 4
        assert store.remove_device(session.name)
        for table in ("pieces", "work", "nonces", "registrations", "keys", "devices"):
            assert store.row(f"SELECT count(*) FROM {table}") == (0,), table
        with pytest.raises(GatewayRefused, match="does not know the device"):
            session.http.ask("POST", "/v1/check-in")
        session.http.close()


def test_what_an_earlier_run_allowed_does_not_stop_a_later_one(tmp_path: Path) -> None:
    data, config = examples(), {**PLAIN, "rounds": 1, "min-answers": 1}
    with running(data, config, tmp_path, devices=data.clients + 1) as it:
        store = it.devices.store
        program = json.loads((tmp_path / "program" / "manifest.json").read_text())["contract"]
        held = pack(
            Message(
                "registration", {"examples": 10**9}, {"index/item": ids_to_bytes(torch.arange(3))}
            )
        )
        device = store.enrol(store.make_token(), b"k" * 32, "earlier")
        store.register(device.id, program, "0" * 32, 10**9, held)
        it.devices.run(range(data.clients))
        run(it.fleet, data)
        assert not it.fleet.rejected
        assert device.name not in {one.name for one in it.fleet.registry.clients}


def test_a_device_cannot_register_the_key_of_another(tmp_path: Path) -> None:
    """Nobody takes part in a sum with one key twice, so a copied key would end all sums."""
    store, programs_ = GatewayStore(tmp_path / "s"), ("a" * 32, "b" * 32)

    def body(key: bytes) -> bytes:
        return pack(Message("registration", {"examples": 1}, {"key": key}))

    with serving(application(store)) as url:
        sessions = []
        for name in ("victim", "before"):
            sessions.append(
                DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / name), tmp_path)
            )
            sessions[-1].enrol(store.make_token(), name)
        victim, liar = sessions
        for program in programs_:  # in a later run the liar is first
            Programs(store).publish(program, RegistrationForm({}, 1, private=True))
            target = f"/v1/registration?program={program}"
            order = sessions if program == "a" * 32 else sessions[::-1]
            for one in order:
                if one is victim:
                    one.http.ask("PUT", target, body(b"k" * 32))
                else:
                    with pytest.raises(GatewayRefused, match="The key is another device's"):
                        one.http.ask("PUT", target, body(b"k" * 32))
            assert [x.name for x in store.registered(program)] == ["victim"]
        liar.http.ask("PUT", target, body(b"o" * 32))
        assert len(store.registered(program)) == 2
        for one in sessions:
            one.http.close()
