"""The messages between a server and its nodes: a kind, small facts, and named parts of bytes.

    FROW · version · lengths · kind · facts (JSON) · parts (a name and bytes each)

A sender may lie. Nothing is unpickled, and no size is believed before the bytes are there: reading
takes memory in proportion to what arrived. Errors never repeat what a message contained.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedrows.errors import FedrowsError

VERSION = 1
_MAGIC = b"FROW"
_HEADER = struct.Struct("<4sHBHI")  # magic, version, bytes of the kind, parts, bytes of the facts
_PART = struct.Struct("<BI")  # bytes of the name, bytes of the part
_MOST_FACTS = 2**20  # bytes
_DEEPEST = 16  # lists within lists
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # an open one runs to the end


class WireError(FedrowsError, ValueError):
    """A message that cannot be read, or numbers that cannot be sent."""


@dataclass
class Message:
    """One message: what it is about, small facts, and named parts."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, bytes] = field(default_factory=dict)


def pack(message: Message) -> bytes:
    """A message as bytes; whatever is packed can be unpacked."""
    kind, facts = _name_to_bytes(message.kind), _facts_to_bytes(message.facts)
    if len(message.parts) >= 2**16:
        raise WireError(
            f"A message has {len(message.parts)} parts, but at most {2**16 - 1} fit: send several."
        )
    blocks = [_HEADER.pack(_MAGIC, VERSION, len(kind), len(message.parts), len(facts)), kind, facts]
    for name, part in message.parts.items():
        if len(part) >= 2**32:
            raise WireError(
                f"A part of a message has {len(part)} bytes, but at most {2**32 - 1} fit: "
                f"send it in pieces."
            )
        encoded = _name_to_bytes(name)
        blocks += [_PART.pack(len(encoded), len(part)), encoded, part]
    return b"".join(blocks)


def unpack(data: bytes, most: int = 2**30) -> Message:
    """The message behind some bytes, refused if they are more than `most` or anything but one."""
    if not isinstance(data, bytes):
        raise WireError("A message came as something other than bytes: refuse its sender.")
    if len(data) > most:
        raise WireError(f"A message has {len(data)} bytes, but at most {most} are taken here.")
    if data[:4] != _MAGIC:
        raise WireError("This is no message of fedrows: look at who is sending.")
    version = int.from_bytes(data[4:6], "little")
    if len(data) >= 6 and version != VERSION:
        raise WireError(
            f"A message is of wire format {version}, but this side speaks {VERSION}: "
            f"run the same version of fedrows on both sides."
        )
    reader = _Reader(data)
    _, _, kind_size, count, facts_size = _HEADER.unpack(reader.take(_HEADER.size))
    if facts_size > _MOST_FACTS:
        raise WireError(f"A message's facts have {facts_size} bytes; at most {_MOST_FACTS} may.")
    kind, facts = reader.name(kind_size), _facts_from_bytes(reader.take(facts_size))
    parts: dict[str, bytes] = {}
    for _ in range(count):
        name_size, size = _PART.unpack(reader.take(_PART.size))
        name = reader.name(name_size)
        if name in parts:
            raise WireError("A message has two parts of one name: refuse its sender.")
        parts[name] = reader.take(size)
    if reader.left:
        raise WireError(f"A message is followed by {reader.left} bytes that belong to nothing.")
    return Message(kind, facts, parts)


def part_of(parts: Mapping[str, bytes], name: str) -> bytes:
    """A part of a message, or a WireError that names it."""
    if name not in parts:
        raise WireError(f"The message lacks the part {name!r}.")
    return parts[name]


class _Reader:
    """Takes bytes off the front of a message, never more than are there."""

    def __init__(self, data: bytes) -> None:
        self.data, self.left = data, len(data)

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise WireError("A message ends before what it announces: it was cut off or forged.")
        start = len(self.data) - self.left
        self.left -= size
        return self.data[start : start + size]

    def name(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise WireError("A message has a name that is not text: refuse its sender.") from None


def _name_to_bytes(name: str) -> bytes:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise WireError("A message's kind or a part's name has half a character.") from None
    if len(encoded) > 255:
        raise WireError(f"A message's kind or a part's name has {len(encoded)} bytes of 255.")
    return encoded


def _facts_to_bytes(facts: dict[str, Any]) -> bytes:
    try:
        text = json.dumps(facts, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = text.encode()
    except (TypeError, ValueError, RecursionError):
        raise WireError(
            "A message's facts are not all plain JSON: send numbers and text."
        ) from None
    if len(data) > _MOST_FACTS:
        raise WireError(f"A message's facts have {len(data)} bytes; at most {_MOST_FACTS} may.")
    _facts_from_bytes(data)
    return data


def _facts_from_bytes(data: bytes) -> dict[str, Any]:
    """A JSON object of bounded depth, with finite numbers, whole characters and no name twice."""
    signs = np.frombuffer(_STRING.sub(b"", data), dtype=np.uint8)
    opened = (signs == ord("[")) | (signs == ord("{"))
    closed = (signs == ord("]")) | (signs == ord("}"))
    depth = np.cumsum(opened.astype(np.int32) - closed)
    if int(depth.max(initial=0)) > _DEEPEST:
        raise WireError(f"A message's facts are nested more than {_DEEPEST} deep.")
    try:
        facts = json.loads(
            data.decode(),
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=_distinct,
        )
        if b"\\u" in data:  # an escape may be half a character, which no log could write
            json.dumps(facts, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise WireError("A message's facts are not valid JSON: refuse its sender.") from None
    if not isinstance(facts, dict):
        raise WireError("A message's facts are not a JSON object: refuse its sender.")
    return facts


def _whole(text: str) -> int:
    value = int(text) if len(text) <= 20 else 2**64
    if not -(2**63) <= value < 2**64:
        raise ValueError("more than 64 bits")
    return value


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError("a name twice")
    return result
