"""Messages between a device and its gateway: a kind, small facts, and named parts of bytes.

docs/device-protocol.md of fedrows has the layout. Rows that are all zero are left out of a message,
and the positions of the others travel as the gaps between them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

VERSION = 1
_MAGIC = b"FROW"
_HEADER = struct.Struct("<4sHBHI")  # magic, version, bytes of the kind, parts, bytes of the facts
_PART = struct.Struct("<BI")  # bytes of the name, bytes of the part

Arrays = dict[str, np.ndarray]


class MessageError(ValueError):
    """A message that cannot be read."""


@dataclass
class DeviceMessage:
    """One message."""

    kind: str
    facts: dict[str, Any]
    parts: dict[str, bytes]


def pack(message: DeviceMessage) -> bytes:
    """A message as bytes."""
    kind = message.kind.encode()
    facts = json.dumps(message.facts, separators=(",", ":")).encode()
    blocks = [_HEADER.pack(_MAGIC, VERSION, len(kind), len(message.parts), len(facts)), kind, facts]
    for name, part in message.parts.items():
        encoded = name.encode()
        blocks += [_PART.pack(len(encoded), len(part)), encoded, part]
    return b"".join(blocks)


def unpack(data: bytes) -> DeviceMessage:
    """The message behind some bytes."""
    if data[:4] != _MAGIC or len(data) < _HEADER.size:
        raise MessageError("The gateway has sent something that is no message of fedrows.")
    _, version, kind_size, count, facts_size = _HEADER.unpack_from(data)
    if version != VERSION:
        raise MessageError(
            f"The gateway's messages have version {version}, this device's {VERSION}: update it."
        )
    at = _HEADER.size

    def take(size: int) -> bytes:
        nonlocal at
        if at + size > len(data):
            raise MessageError("A message of the gateway is cut off.")
        at += size
        return data[at - size : at]

    try:
        kind, facts = take(kind_size).decode(), json.loads(take(facts_size))
        parts = {}
        for _ in range(count):
            name_size, size = _PART.unpack(take(_PART.size))
            name = take(name_size).decode()
            parts[name] = take(size)
    except (ValueError, RecursionError) as error:
        raise MessageError(f"A message of the gateway cannot be read ({error}).") from None
    if not isinstance(facts, dict):
        raise MessageError("A message of the gateway cannot be read (it has no facts).")
    return DeviceMessage(kind, facts, parts)


def ids_to_bytes(ids: np.ndarray) -> bytes:
    """Sorted, distinct ids as the gaps between them, each a LEB128 varint."""
    gaps = np.diff(ids.astype(np.int64), prepend=-1) - 1
    sizes = np.ones(len(gaps), dtype=np.int64)
    for k in range(1, 9):
        sizes += gaps >= 1 << 7 * k
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    for k in range(int(sizes.max(initial=0))):
        some = sizes > k
        more = (sizes[some] > k + 1).astype(np.int64)
        out[starts[some] + k] = (gaps[some] >> 7 * k) & 127 | more << 7
    return out.tobytes()


def ids_from_bytes(data: bytes) -> np.ndarray:
    """The ids behind `ids_to_bytes`."""
    x = np.frombuffer(data, dtype=np.uint8)
    ends = np.flatnonzero(x < 128)
    sizes = np.diff(ends, prepend=-1)
    if (len(x) and x[-1] >= 128) or int(sizes.max(initial=0)) > 9:
        raise MessageError("A list of ids in a message of the gateway cannot be read.")
    starts = ends - sizes + 1
    gaps = np.zeros(len(ends), dtype=np.int64)
    for k in range(int(sizes.max(initial=0))):
        some = sizes > k
        gaps[some] |= (x[starts[some] + k] & 127).astype(np.int64) << 7 * k
    return np.cumsum(gaps + 1) - 1


def submodel_to_parts(
    name: str, rows: Mapping[str, np.ndarray], dense: Mapping[str, np.ndarray]
) -> dict[str, bytes]:
    """Rows by table and dense tensors as parts of a message."""
    parts = {}
    for table, x in rows.items():
        at = np.flatnonzero((x != 0).any(1))
        if len(at) < len(x):
            parts[f"{name}/{table}/at"] = ids_to_bytes(at)
            x = x[at]
        parts[f"{name}/{table}"] = np.ascontiguousarray(x, dtype="<f4").tobytes()
    for tensor, x in dense.items():
        parts[f"{name}.{tensor}"] = np.ascontiguousarray(x, dtype="<f4").tobytes()
    return parts


def submodel_from_parts(
    name: str,
    parts: Mapping[str, bytes],
    shapes: Mapping[str, tuple[int, int]],
    dense_shapes: Mapping[str, tuple[int, ...]],
) -> tuple[Arrays, Arrays]:
    """Rows by table, and dense tensors; shapes: table → (R, width)."""
    rows, dense = {}, {}
    try:
        for table, (count, width) in shapes.items():
            values = np.frombuffer(parts[f"{name}/{table}"], dtype="<f4").reshape(-1, width)
            at = parts.get(f"{name}/{table}/at")
            places = np.arange(count) if at is None else ids_from_bytes(at)
            rows[table] = np.zeros((count, width), dtype=np.float32)
            rows[table][places] = values
        for tensor, shape in dense_shapes.items():
            flat = np.frombuffer(parts[f"{name}.{tensor}"], dtype="<f4")
            dense[tensor] = flat.reshape(shape).astype(np.float32)
    except (KeyError, ValueError, IndexError):
        raise MessageError("The rows that the gateway sent are not those of this device.") from None
    if not all(np.isfinite(x).all() for x in (*rows.values(), *dense.values())):
        raise MessageError(
            "The gateway sent a number that is not finite: nothing is trained on it."
        )
    return rows, dense
