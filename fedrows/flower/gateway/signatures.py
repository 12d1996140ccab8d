"""Signed requests: who sends them, and that nobody has sent them before.

A device signs the method, the host, the address, the time, a nonce and the digest of the body with
a key of its own (HMAC-SHA256). What can be checked by the header alone is checked before the body
is read.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedrows.flower.gateway.store import SKEW, EnrolledDevice, GatewayStore

DEVICE, TIME, NONCE, SIGNATURE = (
    f"fedrows-{name}" for name in ("device", "time", "nonce", "signature")
)


class Refusal(Exception):
    """A request that is refused: a status, a sentence, and what else the answer says."""

    def __init__(self, status: int, sentence: str, **more: Any) -> None:
        super().__init__(sentence)
        self.status, self.more = status, more


@dataclass(frozen=True)
class SignedHeader:
    """What the header of a request says of its signature."""

    device: str
    time: str
    nonce: str
    signature: str

    @classmethod
    def read(cls, headers: Mapping[str, str]) -> SignedHeader:
        """The header's values, or a Refusal if they are missing, malformed or of another time."""
        values = [headers.get(name, "") for name in (DEVICE, TIME, NONCE, SIGNATURE)]
        forms = ("[0-9a-f]{32}", "[0-9]{1,12}", "[0-9a-f]{32}", "[0-9a-f]{64}")
        if not all(re.fullmatch(form, x) for form, x in zip(forms, values, strict=True)):
            raise Refusal(401, "The request is not signed: enrol this device first.")
        now = time.time()
        if abs(off := int(values[1]) - now) > SKEW:
            way = "ahead of" if off > 0 else "behind"
            raise Refusal(
                401,
                f"This device's clock is {abs(off):.0f} s {way} the gateway's: set it.",
                time=int(now),
            )
        return cls(*values)

    def find(self, store: GatewayStore) -> EnrolledDevice:
        """The device that says it has signed, or a Refusal."""
        device = store.device(self.device)
        if device is None:
            raise Refusal(401, "This gateway does not know the device: enrol it with a new token.")
        return device

    def check(
        self, device: EnrolledDevice, method: str, host: str, target: str, body: bytes
    ) -> None:
        """Raises a Refusal unless the device's key signed this very request."""
        text = text_to_sign(method, host, target, self.time, self.nonce, body)
        right = hmac.new(device.key, text, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right, self.signature):
            raise Refusal(401, "The signature is not that of this device's key: enrol it again.")

    def use(self, store: GatewayStore) -> None:
        """Takes note of the nonce; raises a Refusal if it was used before."""
        if not store.is_new(self.device, self.nonce):
            raise Refusal(401, "The request was sent before: sign every request anew.")


def text_to_sign(
    method: str, host: str, target: str, seconds: str, nonce: str, body: bytes
) -> bytes:
    """What a device signs."""
    digest = hashlib.sha256(body).hexdigest()
    return "\n".join((method, host.lower(), target, seconds, nonce, digest)).encode()
