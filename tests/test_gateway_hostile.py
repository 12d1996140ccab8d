"""A gateway trusts no device: what is forged, replayed, too large or foreign changes nothing."""

from __future__ import annotations

import hashlib
import http.client
import json
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import difference, examples, run, simulated
from gateway_devices import (
    FREE,
    DeviceSession,
    DeviceStorage,
    SignedHttp,
    gateway,
    serving,
)
from gateway_programs import PLAIN, running

from fedrows.flower.gateway.forms import RegistrationForm, UploadForm
from fedrows.flower.gateway.limits import RequestBuckets, RequestRate
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import GatewayLimits, application
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack

Headers = dict[str, str]
Sent = tuple[int, dict[str, Any], http.client.HTTPMessage]


class Raw:
    """Sends requests as they are."""

    def __init__(self, url: str) -> None:
        self._to = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)

    def ask(self, method: str, target: str, body: bytes, headers: Headers) -> Sent:
        """The status of an answer, its JSON, and its headers."""
        try:
            self._to.request(method, target, body or None, headers)
            with self._to.getresponse() as answer:
                data = answer.read()
        except (OSError, http.client.HTTPException):
            self._to.close()
            return self.ask(method, target, body, headers)
        return answer.status, json.loads(data or b"{}"), answer.headers

    def close(self) -> None:
        self._to.close()


def test_a_thousand_hostile_requests_change_nothing(tmp_path: Path) -> None:
    data, config = examples(), {**PLAIN, "rounds": 3}
    limits = GatewayLimits(piece=2**16, per_device=FREE, per_address=FREE, after=0.05)
    statuses: Counter[tuple[str, int]] = Counter()
    with running(data, config, tmp_path, limits) as it:
        store = it.devices.store
        folder = DeviceStorage(tmp_path / "intruder")
        intruder = DeviceSession(SignedHttp(it.devices.url), folder, tmp_path)
        intruder.enrol(store.make_token())  # and never registers
        honest: list[str] = []
        sign = intruder.http._signature
        used = json.dumps({"token": store.make_token(), "key": "00" * 32}).encode()
        raw = Raw(it.devices.url)
        status, _, _ = raw.ask("POST", "/v1/enrol", used, {"content-length": str(len(used))})
        assert status == 201
        replayed = sign("POST", "/v1/check-in", b"")
        assert raw.ask("POST", "/v1/check-in", b"", replayed)[0] == 200
        others: list[str] = []
        form, upload = form_and_upload()
        works = WorkStore(store)

        def forged(kind: str) -> tuple[str, str, bytes, Headers]:
            nothing = b""
            if kind == "unsigned":
                return "POST", "/v1/check-in", nothing, {}
            if kind == "wrong key":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"fedrows-signature": "0" * 64}
            if kind == "other path":
                return "POST", "/v1/check-in?wait=0", nothing, sign("POST", "/v1/check-in", nothing)
            if kind == "other body":
                target = f"/v1/registration?program={'0' * 32}"
                return "PUT", target, b"other", sign("PUT", target, b"body")
            if kind == "replayed":
                return "POST", "/v1/check-in", nothing, replayed
            if kind == "unknown device":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"fedrows-device": "0" * 32}
            if kind == "old clock":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"fedrows-time": "1000000000"}
            if kind == "too large":
                target, body = (
                    f"/v1/work/{'0' * 32}?offset=0&total=9&sha256={'0' * 64}",
                    b"x" * 70_000,
                )
                return "PUT", target, body, sign("PUT", target, body)
            if kind == "foreign origin":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"origin": "https://evil.example"}
            if kind == "foreign site":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"sec-fetch-site": "cross-site"}
            if kind == "signed for another host":
                elsewhere = SignedHttp(it.devices.url.replace("127.0.0.1", "localhost"))
                elsewhere.device, elsewhere.key = intruder.http.device, intruder.http.key
                headers = elsewhere._signature("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"host": replayed["host"]}
            if kind == "foreign host":
                headers = sign("POST", "/v1/check-in", nothing)
                return "POST", "/v1/check-in", nothing, headers | {"host": "evil.example"}
            if kind == "wrong token":
                body = json.dumps({"token": secrets.token_hex(8), "key": "11" * 32}).encode()
                return "POST", "/v1/enrol", body, {}
            if kind == "used token":
                return "POST", "/v1/enrol", used.replace(b"00" * 32, b"22" * 32), {}
            if kind == "no JSON":
                return "POST", "/v1/enrol", secrets.token_bytes(50), {}
            if kind in uploads:  # well signed, for work that is really the intruder's
                body = uploads[kind]
                own = NewWork(intruder.http.device, form.text(), b"rows")
                [id_] = works.put("other", 77, time.time() + 60, [own])
                digest = hashlib.sha256(body).hexdigest()
                target = f"/v1/work/{id_}?offset=0&total={len(body)}&sha256={digest}"
                return "PUT", target, body, sign("PUT", target, body)
            if kind == "other device's work" and others:
                target = f"/v1/work/{others[0]}?offset=0&total=9&sha256={'0' * 64}"
                return "PUT", target, b"something", sign("PUT", target, b"something")
            if kind == "other device's rows" and others:
                return (
                    "GET",
                    f"/v1/work/{others[0]}",
                    nothing,
                    sign("GET", f"/v1/work/{others[0]}", nothing),
                )
            target = f"/v1/program/{'0' * 32}/..%2fgateway.db"
            return "GET", target, nothing, sign("GET", target, nothing)

        odd = np.full((3, 2), np.nan, "<f4")
        uploads = {
            "wrong shapes": upload(update__item=odd[:2].tobytes()),
            "not finite": upload(update__item=odd.tobytes()),
            "too many steps": upload(steps=ids_to_bytes(torch.tensor([2**31]))),
        }
        kinds = [
            *uploads,
            "unsigned", "wrong key", "other path", "other body", "replayed", "unknown device",
            "old clock", "too large", "foreign origin", "foreign site", "foreign host",
            "signed for another host",
            "wrong token", "used token", "no JSON", "other device's work", "other device's rows",
            "outside file",
        ]  # fmt: skip

        def attack() -> None:
            try:
                for i in range(1000):
                    others[:] = [r[0] for r in store.rows("SELECT id FROM work LIMIT 1")]
                    kind = kinds[i % len(kinds)]
                    method, target, body, headers = forged(kind)
                    status, content, _ = raw.ask(method, target, body, headers)
                    statuses[kind, status] += 1
                    sentence = str(content.get("error"))
                    if not 400 <= status < 500 or not sentence.endswith("."):
                        honest.append(f"{kind}: {status} {content}")
            except BaseException as error:
                honest.append(repr(error))

        attacking = threading.Thread(target=attack)
        attacking.start()
        it.devices.run(range(data.clients))
        found = run(it.fleet, data)
        attacking.join(60)
        intruder.http.close()
        raw.close()
        assert not honest
        assert sum(statuses.values()) == 1000
        assert {kind for kind, _ in statuses} == set(kinds)
        assert all(statuses[kind, 422] > 40 for kind in uploads)
        assert works.collect(77) == {}
        assert len(store.devices()) == data.clients + 2  # the intruder, and who used the token
        assert difference(found.whole(), simulated(it.fleet, data)) < 1e-6
        assert not it.fleet.rejected


def form_and_upload() -> tuple[UploadForm, Callable[..., bytes]]:
    """The form of some work, and honest uploads with parts replaced."""
    form = UploadForm(77, {"item": 3}, {"item": 2}, {"bias": [1]}, [], False, 5, 100.0)

    def upload(tag: int = 77, kind: str = "trained", **parts: bytes) -> bytes:
        honest = {
            "update/item": np.ones((3, 2), "<f4").tobytes(),
            "update.bias": np.ones(1, "<f4").tobytes(),
            "steps": ids_to_bytes(torch.tensor([4])),
        }
        changed = {name.replace("__", "/").replace("_dot_", "."): x for name, x in parts.items()}
        return pack(Message(kind, {"tag": tag}, honest | changed))

    return form, upload


def test_uploads_are_checked_as_the_server_checks_them(tmp_path: Path) -> None:
    form, upload = form_and_upload()
    numbers = np.ones((3, 2), "<f4")
    infinite, large = numbers.copy(), numbers * 1e4
    infinite[1, 1] = np.nan
    hostile = {
        "another tag": upload(tag=78),
        "another kind": upload(kind="work"),
        "not finite": upload(update__item=infinite.tobytes()),
        "fewer rows": upload(update__item=numbers[:2].tobytes()),
        "more rows": upload(update__item=np.ones((4, 2), "<f4").tobytes()),
        "positions beyond": upload(update__item__at=ids_to_bytes(torch.tensor([1, 2, 9]))),
        "a part more": upload(secret=b"x"),
        "who answered": upload(answered=ids_to_bytes(torch.tensor([0]))),
        "too many steps": upload(steps=ids_to_bytes(torch.tensor([7]))),
        "no steps": upload(steps=b""),
        "too long": upload(update__item=large.tobytes()),
        "cut off": upload()[:-3],
        "no message": b"FROW" + secrets.token_bytes(60),
        "a pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtins\x94.",
    }
    with gateway(tmp_path, examples()) as (devices, store):
        session, work = devices.session(0), WorkStore(store)
        device = session.http.device
        for name, data in hostile.items():
            [id_] = work.put("run", 77, time.time() + 60, [NewWork(device, form.text(), b"rows")])
            with pytest.raises(Exception, match="refused") as error:
                session._send(id_, data, 0)
            assert getattr(error.value, "status", 0) == 422, name
            assert work.collect(77) == {}, name
        [id_] = work.put("run", 77, time.time() + 60, [NewWork(device, form.text(), b"rows")])
        session._send(id_, upload(), 0)
        session._send(id_, upload(), 0)  # once more is harmless
        with pytest.raises(Exception, match="taken already"):
            session._send(id_, upload(steps=ids_to_bytes(torch.tensor([3]))), 0)
        assert work.collect(77) == {id_: upload()}
        session.http.close()


def test_a_round_may_end_while_an_upload_or_a_download_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device is told that the round is over, as after the end; its session goes on."""
    form, upload = form_and_upload()

    def ends_first(name: str) -> None:
        plain = getattr(WorkStore, name)

        def last(self: WorkStore, *args: Any) -> Any:
            self.collect(77)
            return plain(self, *args)

        monkeypatch.setattr(WorkStore, name, last)

    with gateway(tmp_path, examples()) as (devices, store):
        session, work = devices.session(0), WorkStore(store)
        calls: dict[str, Callable[[str], object]] = {
            "add_piece": lambda id_: session._send(id_, upload(), 0),
            "message": lambda id_: session.http.ask("GET", f"/v1/work/{id_}?offset=0"),
        }
        for name, call in calls.items():
            new = NewWork(session.http.device, form.text(), b"rows")
            [id_] = work.put("run", 77, time.time() + 60, [new])
            ends_first(name)
            with pytest.raises(Exception, match="gone on without this device") as error:
                call(id_)
            assert getattr(error.value, "status", 0) == 410
        session.http.close()


def test_an_upload_goes_on_where_it_was_cut_off(tmp_path: Path) -> None:
    form, upload = form_and_upload()
    data = upload()
    with gateway(tmp_path, examples()) as (devices, store):
        session, work = devices.session(0), WorkStore(store)
        [id_] = work.put(
            "run", 77, time.time() + 60, [NewWork(session.http.device, form.text(), b"the rows")]
        )
        assert session.http.ask("GET", f"/v1/work/{id_}?offset=4").body == b"rows"
        digest = hashlib.sha256(data).hexdigest()
        target = f"/v1/work/{id_}?offset=%d&total={len(data)}&sha256={digest}"
        assert session.http.ask("PUT", target % 0, data[:20]).json()["received"] == 20
        assert session.http.ask("PUT", target % 10, data[10:30]).json()["received"] == 30
        assert work.collect(78) == {}
        with pytest.raises(Exception, match="goes on at byte 30"):
            session.http.ask("PUT", target % 40, data[40:])
        offered = work.offer(session.http.device)
        assert offered is not None
        assert offered.received == 30
        session._send(id_, data, offered.received)
        assert work.collect(77) == {id_: data}
        session.http.close()


def test_registrations_are_checked(tmp_path: Path) -> None:
    store = GatewayStore(tmp_path)
    form = RegistrationForm({"item": 10}, 100)
    Programs(store).publish("a" * 32, form)

    def registration(examples: Any = 5, kind: str = "registration", **parts: bytes) -> bytes:
        own = {"index/item": ids_to_bytes(torch.tensor([1, 9]))}
        named = {name.replace("__", "/"): x for name, x in parts.items()}
        return pack(Message(kind, {"examples": examples}, own | named))

    hostile = [
        registration(0), registration(101), registration("5"), registration(True),
        registration(kind="trained"), registration(index__user=b""),
        registration(index__item=ids_to_bytes(torch.tensor([1, 10]))), b"", b"x" * 100,
    ]  # fmt: skip
    with serving(application(store)) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        session.enrol(store.make_token(), "one")
        for data in hostile:
            with pytest.raises(Exception, match="refused"):
                session.http.ask("PUT", f"/v1/registration?program={'a' * 32}", data)
        assert store.count_registered("a" * 32) == 0
        session.http.ask("PUT", f"/v1/registration?program={'a' * 32}", registration())
        assert store.count_registered("a" * 32) == 1
        session.http.close()


def test_whoever_asks_too_often_waits(tmp_path: Path) -> None:
    store = GatewayStore(tmp_path)
    limits = GatewayLimits(per_address=RequestRate(0.001, 3))
    with serving(application(store, limits=limits)) as url:
        raw = Raw(url)
        answers = [raw.ask("POST", "/v1/check-in", b"", {}) for _ in range(5)]
        raw.close()
    assert [status for status, _, _ in answers] == [401] * 3 + [429] * 2
    assert int(answers[-1][2]["retry-after"]) > 0
    buckets = RequestBuckets(RequestRate(1, 1))
    for i in range(50_000):
        buckets.wait(str(i))
    assert len(buckets._buckets) == 20_000


def test_every_answer_keeps_other_pages_out(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<p>hello")
    (page / "a.wasm").write_bytes(b"plain")
    (page / "a.wasm.gz").write_bytes(b"packed")
    with serving(application(GatewayStore(tmp_path / "s"), page)) as url:
        to = http.client.HTTPConnection(urlsplit(url).netloc)
        for path, packed in (("/", False), ("/a.wasm", True), ("/none", False)):
            to.request("GET", path, headers={"accept-encoding": "gzip" if packed else "identity"})
            answer = to.getresponse()
            body = answer.read()
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert "access-control-allow-origin" not in answer.headers
            if packed:
                assert (body, answer.headers["content-encoding"]) == (b"packed", "gzip")
                assert answer.headers["content-type"] == "application/wasm"
        to.close()
