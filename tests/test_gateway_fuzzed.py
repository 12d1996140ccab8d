"""An enrolled device that asks for anything: the gateway refuses it in a sentence, and stands."""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from gateway_devices import FREE, DeviceSession, DeviceStorage, SignedHttp, serving
from test_gateway_hostile import form_and_upload

from fedrows.flower.gateway.forms import PhaseForm, RegistrationForm
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import GatewayLimits, application
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack

LIMITS = GatewayLimits(piece=2**16, per_device=FREE, per_address=FREE, after=0.05)
PROGRAM = "a" * 32
FORM, UPLOAD = form_and_upload()
COUNTS = ["0"] * 6 + ["1", "-1", "9999999", "1e3", "", "%D9%A3", "0x1", "999999999999999"]
FILES = ["manifest.json", "..", "x", "manifest.json%00", "%2e%2e%2fgateway.db", "a" * 300]
PATHS = [
    "/v1/program",
    "/v1/enrol",
    "/",
    "/v1/",
    "/%ff%fe",
    "/..%2f..%2fetc/passwd",
    "/" + "a" * 5000,
]


def mutated(data: bytes, draw: random.Random) -> bytes:
    """Bytes of which up to three pieces are changed, cut out or put in."""
    changed = bytearray(data)
    for _ in range(draw.randrange(4)):
        at, size = draw.randrange(len(changed) + 1), draw.randrange(9)
        changed[at : at + draw.randrange(9)] = draw.choice([b"\xff" * size, draw.randbytes(size)])
    return bytes(changed)


def request(draw: random.Random, work: str) -> tuple[str, str, bytes]:
    """Method, target and body of a request that is more or less one of a device."""
    count, kind = draw.choice(COUNTS), draw.randrange(7)
    if kind < 3:
        phase = Message("sum", {"sum": "c" * 32, "phase": draw.randrange(3)}, {"reply": b"xyz"})
        body = mutated(draw.choice([UPLOAD(), pack(phase), draw.randbytes(90)]), draw)
        total = draw.choice([str(len(body))] * 6 + COUNTS)
        sha256 = draw.choice([hashlib.sha256(body).hexdigest()] * 6 + ["0" * 64, "A" * 64, ""])
        return "PUT", f"/v1/work/{work}?offset={count}&total={total}&sha256={sha256}", body
    if kind == 3:
        examples = draw.choice([1, 5, 100, 0, -1, 2**63, "5", None, True])
        index = {"index/item": ids_to_bytes(torch.tensor([1, 9]))}
        body = mutated(pack(Message("registration", {"examples": examples}, index)), draw)
        program = draw.choice([PROGRAM, PROGRAM, "b" * 32, "", PROGRAM + "%00"])
        return "PUT", f"/v1/registration?program={program}", body
    if kind == 4:
        return "GET", f"/v1/work/{work}?offset={count}", b""
    if kind == 5:
        return "GET", f"/v1/program/{PROGRAM}/{draw.choice(FILES)}", b""
    method = draw.choice(["GET", "PUT", "POST", "DELETE", "OPTIONS"])
    return method, draw.choice([*PATHS, f"/v1/check-in?wait={count}"]), draw.randbytes(20)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_no_request_of_a_device_makes_the_gateway_fail(tmp_path: Path, seed: int) -> None:
    store, draw = GatewayStore(tmp_path / "gate"), random.Random(seed)
    programs, work = Programs(store), WorkStore(store)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "manifest.json").write_text(json.dumps({"contract": PROGRAM}))
    (tmp_path / "page").mkdir()
    programs.add(PROGRAM, tmp_path / "made")
    programs.publish(PROGRAM, RegistrationForm({"item": 30}, 100))
    statuses: Counter[int] = Counter()
    with serving(application(store, tmp_path / "page", limits=LIMITS)) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        session.enrol(store.make_token(), "one")
        for i in range(1500):
            if i % 10 == 0:
                form = draw.choice([FORM, FORM, PhaseForm("c" * 32, draw.randrange(3), 4000)])
                own = NewWork(session.http.device, form.text(), b"rows" * 50)
                [id_] = work.put("run", 77, time.time() + 60, [own])
            method, target, body = request(draw, id_)
            headers = session.http._signature(method, target, body)
            if draw.random() < 0.1:
                headers[draw.choice(list(headers))] = draw.choice(["", "0" * 32, "9" * 20, "é"])
            to = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
            to.request(method, target, body or None, headers)
            answer = to.getresponse()
            status, content = answer.status, answer.read()
            to.close()
            statuses[status] += 1
            assert status < 500, (method, target, body)
            if status >= 400 and content != b"Invalid HTTP request received.":
                assert json.loads(content)["error"].endswith(".")
        assert session.http.ask("POST", "/v1/check-in").json()["program"] == PROGRAM
        session.http.close()
    assert statuses.keys() >= {200, 400, 401, 403, 404, 405, 409, 413, 422}
