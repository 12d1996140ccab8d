"""A gateway that answers wrongly in every way: a device says so, and loses nothing."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

import device_programs
from gateway_devices import (
    DeviceSession,
    DeviceStorage,
    GatewayRefused,
    GatewayUnreachable,
    LoadedPrograms,
    SessionError,
    SignedHttp,
    StorageError,
    serving,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedrows_device.wire import DeviceMessage, pack  # isort: skip

ID, RUN, WORK, TAG = "a" * 32, "0" * 16, "b" * 32, (3 << 31) + 1
JUNK = [None, True, -1, 0, 2**70, 1e400, "", "../..", "x" * 500, [], [[]], {}, {"a": 1}, "0" * 32]
EXPECTED = (SessionError, StorageError, GatewayRefused, GatewayUnreachable, ValueError)


class LyingGateway:
    """Answers as a gateway does, with something changed in one answer after the other."""

    def __init__(self, program: Path, seed: int) -> None:
        self.files = {path.name: path.read_bytes() for path in program.iterdir()}
        self.draw, self.lies, self.told = random.Random(seed), True, 0
        rows = np.full((2, 5), 0.25, dtype="<f4")
        facts = {"run": RUN, "program": ID, "tag": TAG, "accepted": 7, "round": 3, "number": 1}
        parts = {"model/item": rows.tobytes(), "model.bias": np.zeros(1, "<f4").tobytes()}
        self.facts: dict[str, Any] = {**facts, "lr": 0.1}
        self.parts = parts
        self.registered: str | None = None

    def changed(self, honest: Any, keep: str = "") -> Any:
        """Some JSON with a fact left out, or of another value, however deep it lies."""
        if not self.lies or self.draw.random() < 0.8:
            return honest
        self.told += 1
        facts = json.loads(json.dumps(honest))
        inside = facts
        while isinstance(inside, dict) and (names := [x for x in inside if x != keep]):
            name = self.draw.choice(names)
            if not isinstance(inside[name], dict) or not inside[name] or self.draw.random() < 0.3:
                if self.draw.random() < 0.3:
                    del inside[name]
                else:
                    inside[name] = self.draw.choice(JUNK)
                break
            inside = inside[name]
        return facts

    def mangled(self, data: bytes) -> bytes:
        """Bytes of which some are cut off, changed or added."""
        if not self.lies or self.draw.random() < 0.93:
            return data
        self.told += 1
        at = self.draw.randrange(len(data) + 1)
        noise = self.draw.randbytes(self.draw.randrange(1, 9))
        return self.draw.choice([data[:at], data[:at] + noise + data[at + 4 :], noise, b"", b"{"])

    def _json(self, honest: Any) -> Response:
        status = self.draw.choice([200] * 60 + [204, 302, 409, 410, 418, 500]) if self.lies else 200
        body = json.dumps(self.changed(honest)).encode()
        return Response(b"" if status == 204 else self.mangled(body), status)

    def answer(self, path: str, method: str, query: Any) -> Response:
        """The answer to a request."""
        manifest = json.dumps(
            self.changed(self.changed(json.loads(self.files["manifest.json"])))
        ).encode()
        if path == "/v1/check-in":
            offered = {"id": WORK, "bytes": len(self.work), "received": 0, "deadline": 9e9}
            state = {"program": ID, "registration": self.registered, "after": 0.0}
            return self._json({**state, "work": offered if self.registered else None})
        if path == "/v1/program":
            self.manifest = manifest
            files = {**self.files, "manifest.json": manifest}
            sums = {
                name: {"bytes": len(x), "sha256": hashlib.sha256(x).hexdigest()}
                for name, x in files.items()
            }
            return self._json({"program": ID, "files": sums, "private": False})
        if path.startswith("/v1/program/"):
            name = path.rpartition("/")[2]
            known = {**self.files, "manifest.json": self.manifest}
            return Response(self.mangled(known.get(name, b"")))
        if path == "/v1/registration":
            return self._json({"version": self.registered})
        if method == "GET":
            return Response(self.mangled(self.work)[int(query.get("offset", 0)) :])
        return self._json({"received": int(query["total"]), "state": "taken"})

    @property
    def work(self) -> bytes:
        facts = {**self.facts, "registration": self.registered}
        parts = {name: self.mangled(x) for name, x in self.parts.items()}
        return pack(DeviceMessage("work", self.changed(facts, keep="accepted"), parts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_gateway_that_answers_anything_ends_no_device_in_a_traceback(
    tmp_path: Path, seed: int
) -> None:
    device_programs.program(device_programs.factors()).save(tmp_path / "program")
    gate = LyingGateway(tmp_path / "program", seed)

    async def any_request(request: Request) -> Response:
        body = await request.body()
        if request.url.path == "/v1/registration":
            gate.registered = hashlib.sha256(body).hexdigest()[:32]
        return gate.answer(request.url.path, request.method, request.query_params)

    methods = ["GET", "PUT", "POST"]
    said: set[str] = set()
    with serving(Starlette(routes=[Route("/{path:path}", any_request, methods=methods)])) as url:
        storage = DeviceStorage(tmp_path / "device")
        storage.put_identity({"device": ID, "key": "ab" * 32, "name": "tablet"})
        storage.put_memory(RUN, 7, {"local/user": np.ones((1, 5)), "local/user/ids": np.array([3])})
        known = {name: storage.read(name) for name in ("device.json", f"runs/{RUN}/7.npz")}
        own = tmp_path / "examples.json"
        own.write_text(json.dumps({"ids": {"user": [3, 3], "item": [4, 9]}, "label": [1, 0]}))
        for _ in range(300):
            if gate.draw.random() < 0.3:
                storage.remove("program")  # or its first manifest would be the only one
            session = DeviceSession(SignedHttp(url), storage, own, LoadedPrograms())
            try:
                session.step(wait=0)
            except EXPECTED as error:
                said.add(str(error))
            session.http.close()
            assert {name: storage.read(name) for name in known} == known
        gate.lies, done = False, ""
        storage.remove("program")
        for _ in range(4):  # and with an honest gateway it goes on from what it has
            session = DeviceSession(SignedHttp(url), storage, own)
            done = session.step(wait=0).done
            session.http.close()
        assert done == "trained"
        assert set(storage.names(f"runs/{RUN}")) == {"7.npz", f"{TAG}.npz"}
    print(*sorted(said), sep="\n")
    assert gate.told > 100
    assert len(said) > 10
    assert all(text and "\n" not in text for text in said), said
