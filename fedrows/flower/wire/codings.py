"""Ids and numbers as bytes.

    ids      sorted, so only the gaps travel: 7 bits a byte, one byte for a gap up to 128
    numbers  float32 · float16 · int8 (a float32 scale per row); the last two round at random

Rounding is unbiased: the expected number that arrives is the number that was sent, because
FedSubAvg multiplies a cold row's error by N/n_m. A scale belongs to one row, so that a hot row's
large step does not blur a cold row's. No size is believed before the bytes are there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.wire.message import WireError
from fedrows.seeds import bits, uniform

CODINGS = ("float32", "float16", "int8")  # and float64, where a test wants every bit

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "int8": 1}
_FORMATS = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "int8": "i1"}
_LARGEST = {name: float(np.finfo(name).max) for name in ("float64", "float32", "float16")}
# A row of up to four numbers is no larger in float16 than in int8 with its scale, and closer.
_NARROW = 4
_PIECE = 2**18  # bytes of ids that are decoded in one go


def ids_to_bytes(ids: Tensor) -> bytes:
    """Sorted, distinct ids as the gaps between them, each a LEB128 varint."""
    x = ids.detach().cpu().numpy()
    if x.ndim != 1 or x.dtype != np.int64:
        raise WireError(
            f"Ids are sent as one list of int64, not as {x.ndim}-dimensional {x.dtype}."
        )
    gaps = np.diff(x, prepend=-1) - 1  # (R,), never negative: no gap means ids in a row
    if len(x) and (x[0] < 0 or (x[1:] <= x[:-1]).any()):
        raise WireError("Ids are sent sorted, without duplicates and from 0 on: sort them first.")
    sizes = np.ones(len(x), dtype=np.int64)
    for k in range(1, 9):  # nine groups of 7 bits hold every id
        sizes += gaps >= 1 << 7 * k
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    for k in range(int(sizes.max(initial=0))):
        some = sizes > k
        more = (sizes[some] > k + 1).astype(np.int64)
        out[starts[some] + k] = (gaps[some] >> 7 * k) & 127 | more << 7
    return out.tobytes()


def ids_from_bytes(data: bytes, rows: int, most: int) -> Tensor:
    """The ids behind some bytes: at most `most`, below `rows`, and strictly increasing.

    Increasing they are by construction, since a gap cannot be negative.
    """
    if len(data) > 9 * most:
        raise WireError(f"{len(data)} bytes of ids are more than {most} ids can take.")
    x = np.frombuffer(data, dtype=np.uint8)
    count = int(np.count_nonzero(x < 128))  # the last byte of each id
    if count > most:
        raise WireError(f"There are more ids than the {most} that are taken here.")
    if len(x) and x[-1] >= 128:
        raise WireError("A list of ids is cut off inside an id.")
    ids, done, start = np.empty(count, dtype=np.int64), 0, 0
    while start < len(x):  # piece by piece: what a piece takes is many times what it holds
        stop = min(start + _PIECE, len(x))
        tail = np.flatnonzero(x[start:stop][-10:] < 128)
        if not len(tail):
            raise WireError("A list of ids has an id that is longer than it has to be.")
        stop -= min(10, stop - start) - 1 - int(tail[-1])  # to the end of an id
        gaps = _gaps(x[start:stop])
        ids[done : done + len(gaps)] = gaps
        done, start = done + len(gaps), stop
    # In float64 first, because a forged sum may not fit into 64 bits.
    if ids.sum(dtype=np.float64) + count < 2.0**62:
        ids += 1
        np.cumsum(ids, out=ids)
        ids -= 1
        if not count or ids[-1] < rows:
            return torch.from_numpy(ids)
    raise WireError(f"A list of ids goes beyond the table's {rows} rows.")


def _gaps(x: np.ndarray) -> np.ndarray:
    """The gaps behind some whole varints."""
    ends = np.flatnonzero(x < 128)
    sizes = np.diff(ends, prepend=-1)
    if int(sizes.max(initial=0)) > 9 or bool(((x[ends] == 0) & (sizes > 1)).any()):
        raise WireError("A list of ids has an id that is longer than it has to be.")
    starts = ends - sizes + 1
    gaps = np.zeros(len(ends), dtype=np.int64)
    for k in range(int(sizes.max(initial=0))):
        some = sizes > k
        gaps[some] |= (x[starts[some] + k] & 127).astype(np.int64) << 7 * k
    return gaps


def numbers_to_bytes(x: Tensor, coding: str, key: int = 0) -> bytes:
    """Numbers as bytes; rows lie along the first dimension, and a scalar is one row of one.

    `key` names the draws of the rounding, and so must differ by round, client and tensor.
    """
    rows, width, coding = _layout(x.shape, coding)
    if not x.is_floating_point() or not bool(x.isfinite().all()):
        raise WireError("Numbers to be sent are not all finite floats: the training diverged.")
    values = x.detach().cpu().to(torch.float64 if x.dtype != torch.float32 else x.dtype)
    array = values.numpy().reshape(rows, width)
    if coding == "int8":
        scale = _scales(array)
        wide = scale.astype(np.float64)[:, None]  # (R, 1)
        parts = np.divide(array, wide, out=np.zeros((rows, width)), where=wide > 0)
        return scale.astype("<f4").tobytes() + _round(parts, key).astype(np.int8).tobytes()
    if np.abs(array).max(initial=0) > _LARGEST[coding]:
        _too_large(coding)
    if coding == "float16":
        # The step between neighbours: 11 bits of significand, and 2⁻²⁴ below the normal numbers.
        _, exponents = np.frexp(array)
        steps = np.ldexp(1.0, np.maximum(exponents, -13) - 11)
        array = _round(array / steps, key) * steps
    return array.astype(_FORMATS[coding]).tobytes()


def numbers_from_bytes(
    data: bytes, shape: tuple[int, ...], coding: str, dtype: torch.dtype
) -> Tensor:
    """The numbers behind some bytes, which must be exactly as many as the shape takes."""
    size = numbers_size(shape, coding)
    if len(data) != size:
        raise WireError(
            f"Numbers of shape {tuple(shape)} in {coding} take {size} bytes, but {len(data)} came."
        )
    rows, width, coding = _layout(shape, coding)
    if coding == "int8":
        scale = np.frombuffer(data, dtype="<f4", count=rows).astype(np.float64)
        parts = np.frombuffer(data, dtype=np.int8, offset=4 * rows).reshape(rows, width)
        if not bool(((scale >= 0) & (scale < np.inf)).all()) or parts.min(initial=0) == -128:
            raise WireError("Numbers in int8 came with a scale or a value that nobody sends.")
        array = parts * scale[:, None]
    else:
        array = np.frombuffer(data, dtype=_FORMATS[coding]).astype(coding)  # a copy of our own
    numbers = torch.from_numpy(array).to(dtype).reshape(shape)
    if not bool(numbers.isfinite().all()):
        raise WireError("Numbers came that are not all finite.")
    return numbers


def numbers_size(shape: Sequence[int], coding: str) -> int:
    """How many bytes numbers of a shape take."""
    rows, width, coding = _layout(shape, coding)
    return rows * width * _BYTES[coding] + (4 * rows if coding == "int8" else 0)


def _layout(shape: Sequence[int], coding: str) -> tuple[int, int, str]:
    """How numbers of a shape lie: how many rows, how wide, and in which coding such rows go."""
    if coding not in _BYTES:
        raise WireError(f"There is no such coding of numbers: choose one of {', '.join(CODINGS)}.")
    # Zeros count as ones: whatever follows must be able to multiply the sizes.
    if min(shape, default=0) < 0 or math.prod(max(size, 1) for size in shape) >= 2**48:
        raise WireError("A tensor's shape is negative or beyond all memory.")
    rows, width = (shape[0], math.prod(shape[1:])) if len(shape) else (1, 1)
    return rows, width, "float16" if coding == "int8" and width <= _NARROW else coding


def _scales(array: np.ndarray) -> np.ndarray:
    """The least float32 of each row that takes its largest number to at most 127: (R,)."""
    peak = np.abs(array).max(1).astype(np.float64) if array.size else np.zeros(len(array))
    if (peak > _LARGEST["float32"]).any():
        _too_large("int8")
    scale = (peak / 127).astype(np.float32)
    short = scale.astype(np.float64) * 127 < peak  # or the largest number would be cut: a bias
    scale = np.where(short, np.nextafter(scale, np.float32(np.inf)), scale)
    if (scale.astype(np.float64) * 127 > _LARGEST["float32"]).any():
        _too_large("int8")
    return scale


def _round(x: np.ndarray, key: int) -> np.ndarray:
    """Whole numbers whose expectation is x: up with the probability of the fraction."""
    low = np.floor(x)
    draws = uniform(bits(key % 2**64, torch.arange(x.size))).numpy().reshape(x.shape)
    return low + (draws < x - low)


def _too_large(coding: str) -> NoReturn:
    largest = _LARGEST["float16" if coding == "float16" else "float32"]
    raise WireError(
        f"Numbers to be sent go beyond {largest:g}, the end of {coding}: "
        f"lower the learning rate, clip, or send float32."
    )


def integers_to_bytes(numbers: Sequence[int]) -> bytes:
    """Whole numbers that need not be sorted, eight bytes each."""
    return np.array(numbers, dtype="<i8").tobytes()


def integers_from_bytes(data: bytes, count: int) -> list[int]:
    """The whole numbers behind `integers_to_bytes`."""
    if len(data) != 8 * count:
        raise WireError("A list of numbers in the message has the wrong length.")
    return [int(x) for x in np.frombuffer(data, dtype="<i8")]
