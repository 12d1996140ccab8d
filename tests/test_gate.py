"""The gate: who may ask what, and how large and how slow a body may be."""

from __future__ import annotations

import asyncio
import datetime
import stat
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr")
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fedrows.flower.launch import control_token, gate, node_proof
from fedrows.flower.launch.notices import Notices, notices_in
from fedrows.flower.launch.processes import LaunchError

TOKEN = "a" * 64
STRANGER, HERE = "198.51.100.9", "127.0.0.1"


# Who may ask what


class Node:
    """A node's key, and the header that it signs."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP384R1())
        self.public = public_key_to_bytes(self.private.public_key())

    def header(self, seconds: float = 0.0) -> dict[bytes, bytes]:
        when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
        stamp = when.isoformat().encode()
        signature = sign_message(self.private, stamp)
        return {
            node_proof.KEY: b64encode(self.public),
            node_proof.SIGNATURE: b64encode(signature),
            node_proof.TIME: stamp,
        }


KNOWN, UNKNOWN = Node(), Node()


class Link:
    """A SuperLink's state: it knows one node and one task."""

    def state(self) -> Link:
        return self

    def get_node_id_by_public_key(self, key: bytes) -> int | None:
        return 7 if key == KNOWN.public else None

    def get_task_by_token(self, token: str) -> str | None:
        return "task" if token == "right" else None


SAID: list[str] = []


def ask(
    path: str,
    client: str = STRANGER,
    headers: dict[bytes, bytes] | None = None,
    parts: tuple[bytes, ...] = (b"",),
    kind: str = "http",
    flwr: Callable[[], int] = lambda: 200,
    **more: Any,
) -> tuple[int, bytes]:
    """The status of an answer, and the body that reached flwr, which answers by `flwr`."""
    got, sent = bytearray(), list[dict[str, Any]]()
    waiting = list(parts)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        got.extend((await receive())["body"])
        await send({"type": "http.response.start", "status": flwr(), "headers": []})
        await send({"type": "http.response.body", "body": b"flwr"})

    async def receive() -> Any:
        if not waiting:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    state = SimpleNamespace(state=SimpleNamespace(linkstate_factory=Link()))
    scope = {
        "type": kind,
        "path": path,
        "client": (client, 1) if client else None,
        "headers": list((headers or {}).items()),
        "app": state,
    }
    allowed = gate.networks(f"{gate.THIS_MACHINE},10.0.0.0/8")
    door = gate.Gate(app, allowed, TOKEN, **{"notices": Notices(SAID.append), **more})
    asyncio.run(door(scope, receive, send))
    assert all(b"traceback" not in m.get("body", b"").lower() for m in sent)
    return int(sent[0]["status"]), bytes(got)


OPERATOR = {control_token.HEADER: TOKEN.encode()}


@pytest.mark.parametrize(
    ("path", "client", "headers", "status"),
    [
        ("/health", STRANGER, {}, 200),
        ("/v1/fleet/pull-messages", STRANGER, {}, 401),
        ("/v1/fleet/pull-messages", STRANGER, KNOWN, 200),
        ("/v1/fleet/pull-messages", STRANGER, UNKNOWN, 401),
        ("/v1/fleet/activate-node", STRANGER, UNKNOWN, 200),  # flwr says why not
        ("/v1/control/start-run", STRANGER, OPERATOR, 403),
        ("/v1/control/register-node", f"::ffff:{STRANGER}", OPERATOR, 403),
        ("/v1/runtime/acquire-task", "2001:db8::1", {}, 403),
        ("/docs", "", {}, 403),
        ("/docs", HERE, {}, 401),
        ("/v1/control/start-run", HERE, {}, 401),
        ("/v1/control/start-run", HERE, {control_token.HEADER: b"b" * 64}, 401),
        ("/v1/control/start-run", HERE, OPERATOR, 200),
        ("/v1/control/start-run", f"::ffff:{HERE}", OPERATOR, 200),
        ("/v1/control/start-run", "::1", OPERATOR, 200),
        ("/v1/control/start-run", "10.1.2.3", OPERATOR, 200),
        ("/v1/runtime/acquire-task", HERE, {}, 200),  # flwr has its own secret for these
    ],
)
def test_a_request_passes_by_its_header_alone(
    path: str, client: str, headers: dict[bytes, bytes] | Node, status: int
) -> None:
    # A node signs the time, so its header is made here, and not when tests are collected.
    header = headers.header() if isinstance(headers, Node) else headers
    assert ask(path, client, header)[0] == status


def test_the_control_interface_needs_the_token_on_its_own_machine_too() -> None:
    for wrong in ({}, {control_token.HEADER: b""}, {control_token.HEADER: TOKEN[:-1].encode()}):
        assert ask("/v1/control/stop-run", HERE, wrong) == (401, b"")
    assert ask("/v1/control/stop-run", HERE, OPERATOR, (b"run",)) == (200, b"run")


@pytest.mark.parametrize("change", [node_proof.KEY, node_proof.SIGNATURE, node_proof.TIME])
@pytest.mark.parametrize("text", [b"", b"%%%", b"A" * 4000, "ü".encode(), b"2026-11-17T09:00:00"])
def test_a_forged_header_is_refused(change: bytes, text: bytes) -> None:
    header = {**KNOWN.header(), change: text}
    assert ask("/v1/fleet/push-object", headers=header, parts=(b"x" * 99,)) == (401, b"")
    other = {**KNOWN.header(), node_proof.SIGNATURE: UNKNOWN.header()[node_proof.SIGNATURE]}
    assert ask("/v1/fleet/push-object", headers=other) == (401, b"")


@pytest.mark.parametrize(("seconds", "way"), [(3600, "ahead of"), (-3600, "behind")])
def test_a_node_whose_clock_is_off_is_told_so_and_may_try_again(seconds: int, way: str) -> None:
    SAID.clear()
    assert ask("/v1/fleet/pull-messages", headers=KNOWN.header(seconds))[0] == 503
    assert ask("/v1/fleet/pull-messages", headers=UNKNOWN.header(seconds))[0] == 401
    (sentence,) = notices_in("\n".join(SAID))
    assert sentence.startswith("The clock of node 7")
    assert f" s {way} the SuperLink's" in sentence


def test_a_clock_that_jumps_while_a_request_is_held_is_no_refusal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """flwr's 401 would end the node; it is passed on when the clock is not the reason."""
    SAID.clear()

    def jumps() -> int:
        later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=3600)
        monkeypatch.setattr("flwr.supercore.date.now", lambda: later)
        return 401

    path = "/v1/fleet/pull-messages"
    assert ask(path, headers=KNOWN.header(), flwr=lambda: 401)[0] == 401
    assert not SAID
    assert ask(path, headers=KNOWN.header(), flwr=jumps)[0] == 503
    assert "3600 s behind the SuperLink's" in SAID[0]


def test_nodes_are_told_that_the_superlink_cannot_write() -> None:
    notices = Notices(SAID.append)
    notices.add("database", "The disk is full.")
    assert ask("/v1/fleet/pull-messages", headers=KNOWN.header(), notices=notices)[0] == 503
    assert ask("/v1/fleet/push-messages", headers=KNOWN.header(), notices=notices)[0] == 200
    assert ask("/v1/fleet/pull-messages", notices=notices)[0] == 401


def test_a_large_body_needs_a_proof_and_a_limit() -> None:
    large = (b"x" * 60_000, b"x" * 60_000)
    declared = {b"content-length": b"120000"}
    assert ask("/v1/fleet/push-object", headers=declared, parts=large) == (401, b"")
    assert ask("/health", headers=declared, parts=large) == (413, b"")
    new = {**UNKNOWN.header(), **declared}
    assert ask("/v1/fleet/activate-node", headers=new, parts=large) == (413, b"")
    both = {**KNOWN.header(), **declared}
    assert len(ask("/v1/fleet/push-object", headers=both, parts=large)[1]) == 120_000
    assert ask("/v1/fleet/push-object", headers=both, parts=large, node_body=119_999)[0] == 413
    unsaid = KNOWN.header()  # nothing says how long it is
    assert ask("/v1/fleet/push-object", headers=unsaid, parts=large, node_body=9)[0] == 413
    assert ask("/v1/runtime/push-object", HERE, declared, large) == (413, b"")
    task = {**declared, gate.TASK_TOKEN: b"right"}
    assert ask("/v1/runtime/push-object", HERE, task, large)[0] == 200
    assert ask("/v1/runtime/push-object", HERE, {**task, gate.TASK_TOKEN: b"no"}, large)[0] == 413


def test_a_body_that_comes_too_slowly_is_not_waited_for() -> None:
    async def stops() -> Any:
        await asyncio.sleep(3600)

    async def drips() -> Any:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    for receive in (stops, drips):
        reading = gate.read_body(receive, 1000, None, seconds=0.2, rate=1000)
        with pytest.raises(node_proof.Refused, match="too slowly") as refused:
            asyncio.run(reading)
        assert refused.value.status == 408


def test_upgrades_are_refused_in_a_sentence() -> None:
    assert ask("/v1/fleet/x", headers={b"upgrade": b"websocket"})[0] == 400
    assert ask("/v1/fleet/x", kind="websocket")[0] == 400


def test_networks_are_checked() -> None:
    with pytest.raises(LaunchError, match="are not networks"):
        gate.networks("here")


# The token


def test_a_token_is_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = control_token.make_token(tmp_path / "superlink")
    assert control_token.make_token(tmp_path / "superlink") == path
    token = control_token.read_token(path)
    assert control_token.find_token("localhost", 8000) is None
    control_token.publish(path, 8000)
    found = control_token.find_token("localhost", 8000)
    assert found is not None
    assert control_token.read_token(found) == token
    for file in (path, found):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert control_token.find_token("localhost", 8001) is None
    assert control_token.find_token("192.0.2.1", 8000) is None  # another machine never gets it
    for text in ("", "x" * 64, "ü"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(control_token.TokenError, match="--token"):
            control_token.read_token(path)
