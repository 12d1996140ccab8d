"""The server of the live page: one page and one stream of events, for those who have the token.

It answers GET alone, on loopback, to a Host that is this machine, so that no page from elsewhere
can read it through a browser. One task reads the folders; what is new is encoded once for everyone.
A viewer that does not keep up is let go, and its browser comes back for a new snapshot.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrows.files.whole import finite
from fedrows.live.followed import Followed
from fedrows.live.page import page, policy

EVERY = 0.25  # seconds between two looks into the folders
PING = 5.0  # seconds after which silence is broken, so that a page knows that it is still served
BEHIND = 100  # updates that a viewer may be behind
VIEWERS = 200
HOSTS = ["127.0.0.1", "localhost"]
EVENTS = "/events"


class Viewers:
    """Everyone who looks, and the task that tells them what is new."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._followed = Followed(paths)
        self._queues: set[asyncio.Queue[bytes | None]] = set()
        self._lock = asyncio.Lock()  # nobody may come between a look and its news
        self._snapshot: tuple[int, bytes] = (-1, b"")
        self._told = 0.0

    async def look(self) -> None:
        """Reads the folders once, and tells everyone what is new."""
        async with self._lock:
            update = await asyncio.to_thread(self._followed.look)
            if update is not None:
                self._tell(_event("update", update))
            elif time.monotonic() - self._told > PING:
                self._tell(_event("ping", {"now": time.time()}))

    def bye(self, text: str) -> None:
        """Tells everyone that the server ends, and why."""
        self._tell(_event("bye", {"said": text}))
        self._tell(None)

    @property
    def full(self) -> bool:
        """Whether there is room for no other viewer."""
        return len(self._queues) >= VIEWERS

    async def events(self) -> AsyncIterator[bytes]:
        """A snapshot, then every update, until the viewer goes or does not keep up."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(BEHIND)
        async with self._lock:
            first = await asyncio.to_thread(self._encoded)
            self._queues.add(queue)
        try:
            yield first
            while (data := await queue.get()) is not None:
                yield data
        finally:
            self._queues.discard(queue)

    def _encoded(self) -> bytes:
        """The snapshot, which viewers that come at the same time share."""
        if self._snapshot[0] != self._followed.version:
            snapshot = self._followed.snapshot()
            self._snapshot = self._followed.version, _event("snapshot", snapshot)
        return self._snapshot[1]

    def _tell(self, data: bytes | None) -> None:
        self._told = time.monotonic()
        for queue in list(self._queues):
            try:
                queue.put_nowait(data)
            except asyncio.QueueFull:
                self._queues.discard(queue)
                while not queue.empty():
                    queue.get_nowait()
                queue.put_nowait(None)


class Guard:
    """Lets in who asks with GET and has the token; every answer keeps others out of the page."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(Request(scope)) if scope["type"] == "http" else None

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *HEADERS]
            await send(message)

        await (refused or self._app)(scope, receive, guarded)

    def _refused(self, request: Request) -> Response | None:
        if request.method != "GET":
            return PlainTextResponse("This page is read only: it answers GET.\n", 405)
        token = request.query_params.get("token", "").encode()
        if not secrets.compare_digest(token, self._token):
            text = "The token is missing or wrong: open the address that fedrows has printed.\n"
            return PlainTextResponse(text, 403)
        site = request.headers.get("sec-fetch-site", "same-origin")
        if request.url.path == EVENTS and site not in ("same-origin", "none"):
            return PlainTextResponse("Other pages may not read this one.\n", 403)
        return None


HEADERS = [
    (b"cache-control", b"no-store"),
    (b"content-security-policy", policy().encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
]


def application(viewers: Viewers, token: str) -> ASGIApp:
    """The page and its stream."""
    text = page()

    async def show(request: Request) -> Response:
        return Response(text, media_type="text/html")

    async def stream(request: Request) -> Response:
        if viewers.full:
            return PlainTextResponse("Too many look at this page already.\n", 503)
        return StreamingResponse(viewers.events(), media_type="text/event-stream")

    return Starlette(
        routes=[Route("/", show), Route(EVENTS, stream)],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False),
            Middleware(Guard, token=token),
        ],
    )


async def serve(
    listening: socket.socket,
    token: str,
    paths: Sequence[Path],
    ended: asyncio.Future[str] | None = None,
) -> None:
    """Serves until a signal comes, or until `ended` has what is to be said at the end."""
    viewers = Viewers(paths)
    config = uvicorn.Config(
        application(viewers, token),
        access_log=False,  # it would have the token
        log_level="error",
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    goodbye = "The server of this page was stopped."
    while not serving.done() and not server.should_exit:
        await viewers.look()
        if ended is not None and ended.done():
            await viewers.look()  # what came last
            goodbye = ended.result()
            break
        await asyncio.wait([x for x in (serving, ended) if x is not None], timeout=EVERY)
    viewers.bye(goodbye)
    server.should_exit = True
    await serving


def _event(kind: str, content: Any) -> bytes:
    data = json.dumps(finite(content), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"event: {kind}\ndata: {data}\n\n".encode()
