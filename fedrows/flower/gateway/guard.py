"""In front of the gateway's application: what every request must keep to, and every answer says.

A request is for a host of the gateway, from its own page or from no page at all, and not one of
too many of its address. Refusals are JSON with one sentence. No answer lets a page of elsewhere
read it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.responses import JSONResponse
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
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
}


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
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, guarded)
        except Exception as error:
            if started:
                raise
            status, content = refusal_of(error)
            headers = {}
            if status in (400, 408, 411, 413):  # the rest of the request is not read
                headers["connection"] = "close"
            if "after" in content:
                headers["retry-after"] = str(max(1, round(content["after"])))
            await JSONResponse(content, status, headers)(scope, receive, guarded)

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
