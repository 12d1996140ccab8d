"""The gate in front of a SuperLink: strangers reach what nodes need, and nothing else.

flwr 1.41 serves everything on one port, and only nodes prove who they are there. Whoever reaches
the port could otherwise submit an app, admit a node's key, or take the ServerApp's work. The gate
lets requests for anything but the nodes' own paths pass only from networks that the operator names,
this machine by default.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from fedrows.flower.launch.processes import LaunchError

THIS_MACHINE = "127.0.0.0/8,::1/128"
FOR_ALL = ("/v1/fleet/", "/health")

Network = IPv4Network | IPv6Network
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """A web application in front of another, which only some may use in full."""

    def __init__(self, app: App, networks: Sequence[Network]) -> None:
        self.app = app
        self.networks = networks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or self.lets_pass(scope):
            await self.app(scope, receive, send)
            return
        text = b"Only machines that the operator names may do this."
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    def lets_pass(self, scope: Scope) -> bool:
        """Whether the path is for all, or the one who asks is within the networks."""
        if str(scope.get("path", "")).startswith(FOR_ALL):
            return True
        try:
            address = ip_address((scope.get("client") or ("",))[0])
        except ValueError:
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


def networks(text: str) -> list[Network]:
    """Networks from their comma-separated names, as in 127.0.0.0/8,::1/128."""
    try:
        return [ip_network(part.strip()) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise LaunchError(
            f"{text!r} are not networks ({error}): write them like {THIS_MACHINE}."
        ) from None
