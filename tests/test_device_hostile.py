"""A device trusts no gateway with its files, its memory or its time."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("pandas")
pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

import onnx
import pandas as pd
from gateway_devices import DeviceSession, DeviceStorage, GatewayRefused, SignedHttp, serving
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedrows import FederatedData
from fedrows.device.program import _vocabulary

from fedrows_device.batches import Examples  # isort: skip
from fedrows_device.program import Program, ProgramError  # isort: skip
from fedrows_device.session import SessionError  # isort: skip
from fedrows_device.signed_http import LONGEST_PAUSE, pause_of  # isort: skip
from fedrows_device.wire import MessageError, submodel_from_parts, unpack  # isort: skip


def step_that_reads(location: str) -> bytes:
    """An ONNX file whose only tensor is the first 16 bytes of a file."""
    kind = onnx.TensorProto
    tensor = kind(name="w", data_type=kind.UINT8, dims=[16], data_location=kind.EXTERNAL)
    for key, value in {"location": location, "offset": "0", "length": "16"}.items():
        tensor.external_data.add(key=key, value=value)
    out = onnx.helper.make_tensor_value_info("y", kind.UINT8, [16])
    node = onnx.helper.make_node("Identity", ["w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [out], [tensor])
    opset = [onnx.helper.make_opsetid("", 18)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=9)
    return bytes(model.SerializeToString())


def test_a_step_reads_no_file_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    step = step_that_reads("secret")
    longer = step.replace(b"\x0a\x08location", b"\x0a\x88\x00location")  # the same in protobuf
    for content in (step, longer):
        manifest = {"format": 1, "step": {"sha256": hashlib.sha256(content).hexdigest()}}
        with pytest.raises(ProgramError, match="asks for tensors in other files"):
            Program.of(manifest, content)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ".", "", "a/b", None, 3])
def test_a_manifest_names_no_file_outside_of_its_program(tmp_path: Path, name: Any) -> None:
    (tmp_path / "secret").write_bytes(np.arange(8, dtype="<f4").tobytes())
    folder = tmp_path / "program"
    folder.mkdir()
    manifest = {
        "format": 1,
        "step": {"file": name},
        "tables": {"user": {"rows": 4, "width": 2, "start": {"file": name}}},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ProgramError, match="which is no file of a program"):
        Program.load(folder)
    with pytest.raises(ProgramError, match="which is no file of a program"):
        Program(manifest, None, folder).local_start("user", np.array([0, 1]))


@pytest.mark.parametrize(
    "plan", [{"local_steps": 10**9}, {"batch_size": 10**9}, {"local_steps": 0}, {"batch_size": -1}]
)
def test_a_program_takes_so_many_steps(plan: dict[str, int]) -> None:
    usual = {"batches": "draw", "local_steps": 5, "batch_size": 4}
    facts = {"tables": {}, "dense": {}, "algorithm": {}, "keeps": False}
    program = Program({**facts, "plan": {**usual, **plan}}, None)
    own = Examples({}, {}, np.ones(3))
    with pytest.raises(ProgramError, match=r"steps of .* but a device takes at most 100,000"):
        program.train(own, {}, {}, round=1, number=0, lr=0.1)


@pytest.mark.parametrize("name", ["start-0.f32", "vocabulary.json"])
def test_every_file_of_a_program_is_the_manifests(tmp_path: Path, name: str) -> None:
    """So a pinned manifest pins the vocabulary and where rows begin, too."""
    digest = hashlib.sha256(b"").hexdigest()
    start = {"user": {"start": {"file": "start-0.f32", "sha256": digest}}}
    manifest = {"format": 1, "step": {"file": "step.onnx"}, "tables": start, "vocabulary": digest}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    for file in ("step.onnx", "start-0.f32", "vocabulary.json"):
        (tmp_path / file).write_bytes(b"x" * (file == name))
    with pytest.raises(ProgramError, match=f"{name} is damaged"):
        Program.load(tmp_path)


def test_messages_that_no_gateway_sends_are_refused() -> None:
    for facts in (b"[1]", b"3", b"[" * 100_000, b"{"):
        head = b"FROW\x01\x00\x04\x00\x00" + len(facts).to_bytes(4, "little")
        with pytest.raises(MessageError, match="cannot be read"):
            unpack(head + b"work" + facts)
    for bad in (np.nan, np.inf):
        rows = np.array([[1, bad]], dtype="<f4").tobytes()
        with pytest.raises(MessageError, match="not finite"):
            submodel_from_parts("model", {"model/item": rows}, {"item": (1, 2)}, {})


def test_a_gateway_takes_neither_a_device_s_memory_nor_its_time(tmp_path: Path) -> None:
    async def takes_nothing(_: object) -> Response:
        return JSONResponse({"received": 0, "state": "open"})

    async def never_ends(_: object) -> Response:
        return Response(b" " * (2**20 + 1))

    async def elsewhere(_: object) -> Response:
        return Response(status_code=307, headers={"location": "/v1/work/x"})

    routes = [
        Route("/v1/work/{id}", takes_nothing, methods=["PUT"]),
        Route("/v1/program", never_ends),
        Route("/v1/check-in", elsewhere, methods=["POST"]),
    ]
    with serving(Starlette(routes=routes)) as url:
        session = DeviceSession(SignedHttp(url), DeviceStorage(tmp_path / "d"), tmp_path)
        with pytest.raises(SessionError, match="takes in nothing"):
            session._send("a" * 32, b"an update", 0)
        with pytest.raises(GatewayRefused, match="over 1048576 bytes"):
            session.http.ask("GET", "/v1/program")
        with pytest.raises(GatewayRefused, match="cannot be read"):
            session.http.ask("POST", "/v1/check-in").json()  # no redirect is followed
        session.http.close()
    for after in (float("nan"), float("inf"), -1, 1e9, "soon", None, True):
        assert pause_of({"after": after}, 5.0) == 5.0
    assert pause_of({"after": LONGEST_PAUSE}, 5.0) == LONGEST_PAUSE


def test_the_values_of_local_tables_are_in_no_program() -> None:
    people, films = ["anna", "bert", "carl"], ["alien", "brazil"]
    columns = {
        "client": people * 2,
        "user": people * 2,
        "film": films * 3,
        "liked": [0, 1, 0, 1, 1, 0],
    }
    data = FederatedData.from_frame(
        pd.DataFrame(columns),
        client="client",
        label="liked",
        features=["user", "film"],
        local=["user"],
    )
    assert "user" in data.local
    text = _vocabulary(data)["vocabulary.json"].decode()
    assert all(film in text for film in films)
    assert not any(name in text for name in people)
    assert data.encoder is not None
    assert not any(name in json.dumps(data.encoder.as_facts()) for name in people)
