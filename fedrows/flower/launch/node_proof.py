"""How a node proves who it is: by the header of a request, before the body is read.

flwr's nodes sign the time of their request. The gate checks the signature and that the SuperLink
knows the key. flwr checks both again later, and that the body names the same node.

A node whose clock is off by too much is not turned away for good, as flwr does: it is told why, and
to try again.
"""

from __future__ import annotations

import asyncio
import binascii
import datetime
import time
from base64 import b64decode
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fedrows.flower.launch.notices import Notices

AHEAD, BEHIND = 5.0, 305.0  # seconds that flwr allows a node's clock to differ
KNOWN_SECONDS = 5.0  # a key is looked up again after that
JOINING = ("/v1/fleet/register-node", "/v1/fleet/activate-node")  # with a key that may be new
KEY, SIGNATURE, TIME = b"flwr-public-key", b"flwr-signature", b"flwr-timestamp"


class Refused(Exception):
    """A request that is answered by the gate itself."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class NodeProof:
    """Checks the signatures of nodes, and remembers for a moment which keys are known."""

    def __init__(self, notices: Notices) -> None:
        self.notices = notices
        self._known: dict[bytes, tuple[float, int]] = {}

    async def check(self, scope: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> bool:
        """Raises a Refused unless a node signed this; True if it is one that is not known yet."""
        try:
            key, signature, stamp, signed = _read(headers)
        except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error):
            raise Refused(401, "Only nodes that prove themselves may do this.") from None
        node = await self._node(scope, key)
        if node is None and scope["path"] not in JOINING:
            raise Refused(
                401, "The SuperLink does not know this node's key: admit it with `deploy admit`."
            )
        if not _is_signed(key, stamp, signature):
            raise Refused(401, "The signature is not one of this node's key.")
        now = import_module("flwr.supercore.date").now()
        age = (now - signed).total_seconds()
        if not -AHEAD < age < BEHIND:
            way = "behind" if age > 0 else "ahead of"
            off = f"{abs(age):.0f} s {way} the SuperLink's"
            if node is not None:
                source = (scope.get("client") or ("an unknown address",))[0]
                self.notices.add(
                    f"clock {node}",
                    f"The clock of node {node} at {source} is {off}: it takes part when both "
                    "clocks are right.",
                )
            raise Refused(
                503, f"The clock of this node is {off}: set the wrong one, and the node goes on."
            )
        return node is None

    def forget(self) -> None:
        """Looks every key up again from here on."""
        self._known.clear()

    async def _node(self, scope: Mapping[str, Any], key: bytes) -> int | None:
        """The id of the node with a key; None if the SuperLink does not know it."""
        now = time.monotonic()
        if (known := self._known.get(key)) and now - known[0] < KNOWN_SECONDS:
            return known[1]
        find = scope["app"].state.linkstate_factory.state().get_node_id_by_public_key
        node: int | None = await asyncio.to_thread(find, key)
        if node is None:
            self._known.pop(key, None)
        else:
            self._known[key] = (now, node)
        return node


def _read(headers: Mapping[bytes, bytes]) -> tuple[bytes, bytes, bytes, datetime.datetime]:
    """Key, signature, the text that was signed, and the time that it says."""
    stamp = headers[TIME]
    signed = datetime.datetime.fromisoformat(stamp.decode("ascii"))
    if signed.tzinfo is None or len(headers[KEY]) > 1024 or len(headers[SIGNATURE]) > 1024:
        raise ValueError("not a node's header")
    key, signature = (b64decode(headers[name], validate=True) for name in (KEY, SIGNATURE))
    return key, signature, stamp, signed


def _is_signed(key: bytes, stamp: bytes, signature: bytes) -> bool:
    flwr = import_module("flwr.supercore.primitives.asymmetric")
    try:
        return bool(flwr.verify_signature(flwr.bytes_to_public_key(key), stamp, signature))
    except Exception:  # not a key, or not of an elliptic curve
        return False
