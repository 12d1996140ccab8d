"""In front of the gateway's application: what every request must keep to, and every answer says.

A request is for a host of the gateway, from its own page or from no page at all, and not one of
too many of its address. Refusals are JSON with one sentence. No answer lets a page of elsewhere
read it.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrows.flower.gateway.limits import RequestBuckets, RequestRate
from fedrows.flower.gateway.signatures import Refusal
from fedrows.flower.gateway.store import StoreError
from fedrows.flower.launch.connections import source_of
from fedrows.flower.launch.node_proof import Refused

log = logging.getLogger("fedrows.gateway")
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; "
    "style-src 'self'; img-src 'self' data:; worker-src 'self'; frame-src 'self'; "
    "frame-ancestors 'self'; form-action 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
]
UNSTORED = (b"cache-control", b"no-store")


class RequestGuard:
    """A web application in front of another."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], per_address: RequestRate) -> None:
        self._app, self._hosts, self._addresses = app, frozenset(hosts), RequestBuckets(per_address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own = [*message["headers"], *HEADERS]
                known = any(name == UNSTORED[0] for name, _ in own)
                message["headers"] = own if known else [*own, UNSTORED]
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, guarded)
        except Exception as error:
            if started:
                raise
            status, content = refusal_of(error)
            await _answer(guarded, status, content)

    def _check(self, scope: Scope) -> None:
        """Raises a Refusal if a request may not be answered, whoever has signed it."""
        headers = {name.decode("latin-1"): x.decode("latin-1") for name, x in scope["headers"]}
        address = (scope.get("client") or ("127.0.0.1",))[0]
        if (seconds := self._addresses.wait(_source(address))) > 0:
            raise too_many(seconds)
        if "upgrade" in headers:
            raise Refusal(400, "The gateway upgrades no connection.")
        host = headers.get("host", "")
        if re.sub(r":\d+$", "", host).strip("[]").lower() not in self._hosts:
            raise Refusal(
                403, "The gateway does not serve this host: use a name of its certificate."
            )
        origin = headers.get("origin")
        if origin is not None and origin != f"{scope['scheme']}://{host}":
            raise Refusal(403, "Pages of other origins may not use the gateway.")
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Refusal(403, "Pages of other sites may not use the gateway.")


def too_many(seconds: float) -> Refusal:
    """The refusal of somebody who asks too often."""
    wait = max(round(seconds, 2), 0.05)
    return Refusal(429, f"There are too many requests: wait {wait:g} s.", after=wait)


def refusal_of(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and the content of the answer to a request that has failed."""
    if isinstance(error, Refusal):
        return error.status, {"error": str(error), **error.more}
    if isinstance(error, Refused):  # of a body that is too large or too slow
        return error.status, {"error": str(error)}
    if isinstance(error, StoreError):
        log.error("%s", error)
        return 503, {"error": "The gateway cannot use its store: try again later.", "after": 5.0}
    log.error("A request failed: %s.", type(error).__name__, exc_info=error)
    return 500, {"error": "The gateway has failed at this request: its log says why."}


def _source(address: str) -> str:
    try:
        return source_of(address)
    except ValueError:
        return address


async def _answer(send: Send, status: int, content: dict[str, Any]) -> None:
    text = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
    if status in (400, 408, 411, 413):  # the rest of the request is not read
        headers.append((b"connection", b"close"))
    if "after" in content:
        headers.append((b"retry-after", b"%d" % max(1, round(content["after"]))))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text})
