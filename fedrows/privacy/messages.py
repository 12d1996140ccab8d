"""Messages: parts with their lengths in front, and a signature at the end.

Every message of a client is signed with its node key over (context, phase, sender, body). The
context is the digest of everything that was agreed beforehand, the round included, so a message
that was altered, cut short, taken from another round or phase, or sent in another's name is refused
by one check. Other clients make the same check where the server hands a message on.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping

import numpy as np

from fedrows.privacy.keys import SIGNATURE, NodeKey, signed_by
from fedrows.privacy.protocol import MessageError, ProtocolError


def digest(*parts: bytes) -> bytes:
    """SHA-256 of some parts, each with its length in front, so that no two lists collide."""
    hash_ = hashlib.sha256()
    for part in parts:
        hash_.update(struct.pack("<Q", len(part)))
        hash_.update(part)
    return hash_.digest()


def pack(*parts: bytes) -> bytes:
    """Some parts as one message."""
    return b"".join(piece for part in parts for piece in (struct.pack("<I", len(part)), part))


def unpack(data: bytes, count: int | None = None) -> list[bytes]:
    """The parts of a message; a ValueError if they are cut short, or not `count` of them."""
    parts, start = [], 0
    while start < len(data):
        if start + 4 > len(data):
            raise ValueError("is cut short")
        (size,) = struct.unpack_from("<I", data, start)
        start += 4
        if start + size > len(data):
            raise ValueError("is cut short")
        parts.append(data[start : start + size])
        start += size
    if count is not None and len(parts) != count:
        raise ValueError(f"has {len(parts)} parts instead of {count}")
    return parts


def pack_ids(ids: Iterable[int]) -> bytes:
    """Client or row ids as bytes."""
    return np.fromiter(ids, dtype="<u8").tobytes()


def unpack_ids(data: bytes) -> list[int]:
    """Ids in rising order; a ValueError if they are anything else."""
    if len(data) % 8:
        raise ValueError("is cut short")
    ids: list[int] = np.frombuffer(data, dtype="<u8").tolist()
    if any(a >= b for a, b in itertools.pairwise(ids)):
        raise ValueError("has a list of ids out of order")
    return ids


def sign(node: NodeKey, context: bytes, phase: str, sender: int, body: bytes) -> bytes:
    """A client's message of one phase: its body and its signature."""
    return body + node.sign(_signed_part(context, phase, sender, body))


def check(
    registry: Mapping[int, bytes], context: bytes, phase: str, sender: int, message: bytes
) -> bytes:
    """The body of a client's message, or a MessageError that names the client."""
    if sender not in registry:
        raise ProtocolError(
            f"Client {sender} has no registered node key: register it before the round."
        )
    if len(message) < SIGNATURE:
        raise MessageError(sender, f"of phase {phase!r} is cut short")
    body = message[:-SIGNATURE]
    part = _signed_part(context, phase, sender, body)
    if not signed_by(registry[sender], message[-SIGNATURE:], part):
        raise MessageError(sender, f"of phase {phase!r} does not bear its signature")
    return body


def _signed_part(context: bytes, phase: str, sender: int, body: bytes) -> bytes:
    return digest(b"fedrows message", context, phase.encode(), struct.pack("<Q", sender), body)
