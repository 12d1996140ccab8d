"""The gate in front of a SuperLink: nothing of a request is read before it is known who sends it.

flwr 1.41 serves everything on one port, reads and parses whole requests first, and lets whoever
reaches the port control it. The gate decides by the header alone, and then reads the body itself:

    path            who                              proof                       largest body
    /health         all                              none                        nothing
    /v1/fleet/      nodes                            a signature by a known key  NODE_BODY
    /v1/runtime/    executors of named networks      flwr's tokens               RUNTIME_BODY
    /v1/fedrows/    the same operators               the control token           CONTROL_BODY
    the rest        operators of named networks      the control token           CONTROL_BODY

Named networks are this machine, and those of --control-from. A body that comes too slowly, or is
larger than may be, ends its connection. So does an answer to /health, and a connection whose last
request had no proof is the first to make room for others (`connections`).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections.abc import MutableMapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrows.flower.launch.connections import PROOF
from fedrows.flower.launch.control_token import HEADER
from fedrows.flower.launch.node_proof import NodeProof, Refused
from fedrows.flower.launch.notices import DATABASE, NOTICE, STARTED, Notices
from fedrows.flower.launch.operator_folder import PREFIX, OperatorFolder, answer_operator
from fedrows.flower.launch.processes import LaunchError

THIS_MACHINE = "127.0.0.0/8,::1/128"
SMALL_BODY = 65536  # what may be sent before flwr has looked at its own tokens
NODE_BODY, CONTROL_BODY, RUNTIME_BODY = 256 * 2**20, 64 * 2**20, 2 * 2**30
BODY_SECONDS = 20.0  # for a body to begin, and between two parts of it
BODY_RATE = 1000  # bytes a second, on average, after BODY_SECONDS
PULL = "/v1/fleet/pull-messages"
TASK_TOKEN = b"flwr-task-token"

Network = IPv4Network | IPv6Network


class Gate:
    """A web application in front of another: it lets a request pass once it knows who sends it."""

    def __init__(
        self,
        app: ASGIApp,
        networks: Sequence[Network],
        token: str,
        notices: Notices | None = None,
        node_body: int = NODE_BODY,
        operator: OperatorFolder | None = None,
    ) -> None:
        self.app, self.networks, self.token = app, networks, token
        self.notices = notices or Notices()
        self.node_body = node_body
        self.operator = operator or OperatorFolder(None)
        self.started = secrets.token_hex(8)
        self.nodes = NodeProof(self.notices)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        try:
            body = await read_body(receive, await self.largest_body(scope), declared(scope))
        except Refused as refusal:
            _note(scope, proof=False)
            await _refusal(refusal)(scope, receive, send)
            return
        if str(scope["path"]).startswith(PREFIX):
            await self._answer_operator(scope, receive, send, body)
            return
        if scope["path"] == "/health":
            send = _closing(send)
        elif str(scope["path"]).startswith("/v1/control/"):
            send = self._with_news(send)
        elif str(scope["path"]).startswith("/v1/fleet/"):
            send = self._excusing_clocks(scope, receive, send)
        await self.app(scope, _replay(body, receive), send)

    async def largest_body(self, scope: Scope) -> int:
        """How much the sender of a request may send; raises a Refused if it is nothing at all."""
        path, headers = str(scope.get("path", "")), dict(scope.get("headers", ()))
        if scope["type"] != "http" or b"upgrade" in headers:
            raise Refused(400, "This server upgrades no connection.")
        if path == "/health":
            _note(scope, proof=False)
            return 0
        if path.startswith("/v1/fleet/"):
            small = await self.nodes.check(scope, headers)
            _note(scope, proof=not small)
            if path == PULL and (sentence := self.notices.just_now(DATABASE)):
                raise Refused(503, sentence)  # there is nothing to pull, and the node must know why
            return min(self.node_body, SMALL_BODY) if small else self.node_body
        if not self.is_near(scope):
            raise Refused(403, "Only machines that the operator names may do this.")
        if path.startswith("/v1/runtime/"):
            _note(scope, proof=True)  # flwr checks it: these machines are named by the operator
            return RUNTIME_BODY if await _has_task(scope, headers) else SMALL_BODY
        if not hmac.compare_digest(headers.get(HEADER, b""), self.token.encode()):
            raise Refused(401, "Only operators with this SuperLink's control token may do this.")
        _note(scope, proof=True)
        return CONTROL_BODY

    def is_near(self, scope: Scope) -> bool:
        """Whether the one who asks is within the named networks."""
        try:
            address = ip_address((scope.get("client") or ("",))[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)

    async def _answer_operator(
        self, scope: Scope, receive: Receive, send: Send, body: bytes
    ) -> None:
        """Answers what flwr knows nothing of: how runs stand, and what operators want of them."""
        method, path = str(scope.get("method", "")), str(scope["path"])
        if method == "POST":
            self.nodes.forget()  # a key that was just revoked counts no longer
        status, text = await asyncio.to_thread(answer_operator, self.operator, method, path, body)
        answer = Response(text, status, media_type="application/json")
        await answer(scope, receive, self._with_news(send))

    def _with_news(self, send: Send) -> Send:
        """Adds to the header of an answer what the SuperLink says of itself."""

        async def added(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = _headers(message)
                headers[STARTED] = self.started
                notice = " ".join(self.notices.recent()).encode("ascii", "replace")[:2000]
                headers[NOTICE] = notice.decode("ascii")
            await send(message)

        return added

    def _excusing_clocks(self, scope: Scope, receive: Receive, send: Send) -> Send:
        """Answers "try again" when a clock jumped while a node's request was held.

        flwr looks at the time again when the request leaves the long poll, and refuses it. A node
        takes that as the end.
        """
        excused = False

        async def excusing(message: Message) -> None:
            nonlocal excused
            if message["type"] == "http.response.start" and message["status"] == 401:
                try:
                    await self.nodes.check(scope, dict(scope.get("headers", ())))
                except Refused as refusal:
                    if excused := refusal.status == 503:
                        await _refusal(refusal)(scope, receive, send)
            if not excused:
                await send(message)

        return excusing


async def read_body(
    receive: Receive,
    largest: int,
    length: int | None,
    seconds: float = BODY_SECONDS,
    rate: float = BODY_RATE,
) -> bytes:
    """The whole body of a request; raises a Refused if it is too large or comes too slowly.

    length: what its header says; None if it says nothing.
    """
    too_large = Refused(413, f"A body may have {largest} bytes here.")
    if length is not None and length > largest:
        raise too_large
    parts, size, more = list[bytes](), 0, True
    began = time.monotonic()
    while more:
        left = min(seconds, began + seconds + size / rate - time.monotonic())
        try:
            message = await asyncio.wait_for(receive(), max(left, 0))
        except TimeoutError:
            raise Refused(408, "The body of the request came too slowly.") from None
        if message["type"] != "http.request":
            raise Refused(400, "The request was broken off.")
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size > largest:
            raise too_large
        parts.append(part)
    return b"".join(parts)


def declared(scope: Scope) -> int | None:
    """The length of a body as its header says; None if it says nothing."""
    text = dict(scope.get("headers", ())).get(b"content-length", b"")
    return int(text) if text.isdigit() else None


def networks(text: str) -> list[Network]:
    """Networks from their comma-separated names, as in 127.0.0.0/8,::1/128."""
    try:
        return [ip_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise LaunchError(
            f"{text!r} are not networks ({error}): write them like {THIS_MACHINE}."
        ) from None


async def _has_task(scope: Scope, headers: MutableMapping[bytes, bytes]) -> bool:
    """Whether an app that flwr has started sends a large body; flwr itself checks small ones."""
    length = declared(scope)
    if length is not None and length <= SMALL_BODY:
        return False
    token, state = headers.get(TASK_TOKEN, b"").decode("latin-1"), scope["app"].state
    look = state.linkstate_factory.state().get_task_by_token
    return bool(token) and await asyncio.to_thread(look, token) is not None


def _replay(body: bytes, receive: Receive) -> Receive:
    """Gives an application the body that was read already, and then what else comes."""
    left = [body]

    async def replayed() -> Any:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return replayed


def _note(scope: Scope, proof: bool) -> None:
    """Says to the listener whether a request has a proof of who sends it."""
    if PROOF in scope:
        scope[PROOF](proof)


def _closing(send: Send) -> Send:
    """Closes the connection after the answer."""

    async def closing(message: Message) -> None:
        if message["type"] == "http.response.start":
            _headers(message)["connection"] = "close"
        await send(message)

    return closing


def _headers(message: Message) -> MutableHeaders:
    """The headers of an answer that begins, to be added to; an application may leave them out."""
    message.setdefault("headers", [])
    return MutableHeaders(scope=message)


def _refusal(refusal: Refused) -> Response:
    """An error message that closes the connection, if the rest of the request is not read."""
    headers = {} if refusal.status == 503 else {"connection": "close"}
    return PlainTextResponse(str(refusal), refusal.status, headers)
