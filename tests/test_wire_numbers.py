"""Numbers on the wire: exact or rounded without bias, finite, and within their coding's range."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedrows.flower.wire.codings import (
    CODINGS,
    numbers_from_bytes,
    numbers_size,
    numbers_to_bytes,
)
from fedrows.flower.wire.message import WireError

ALL_CODINGS = ("float64", *CODINGS)
LARGEST = float(np.finfo(np.float32).max)
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
keys = st.integers(0, 2**64 - 1)


def arrives(x: Tensor, coding: str, key: int = 0) -> Tensor:
    """What the other side will read."""
    sent = numbers_to_bytes(x, coding, key)
    return numbers_from_bytes(sent, tuple(x.shape), coding, x.dtype).to(x.device)


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


@given(shapes, st.sampled_from([torch.float32, torch.float64]), st.data())
def test_wide_codings_are_exact(shape, dtype, draw):
    x = numbers(*shape, seed=draw.draw(st.integers(0, 9)), dtype=dtype)
    x *= 10.0 ** draw.draw(st.integers(-45, 38))
    coding = str(dtype).removeprefix("torch.")
    data = numbers_to_bytes(x, coding)
    assert len(data) == numbers_size(shape, coding) == x.nbytes
    back = numbers_from_bytes(data, shape, coding, dtype)
    assert back.numpy().tobytes() == x.numpy().tobytes()
    assert torch.equal(arrives(x, coding), x)


@given(shapes, st.sampled_from(CODINGS), st.sampled_from([torch.float32, torch.float64]), keys)
def test_every_shape_comes_back(shape, coding, dtype, key):
    x = numbers(*shape, dtype=dtype)
    data = numbers_to_bytes(x, coding, key)
    assert len(data) == numbers_size(shape, coding)
    back = numbers_from_bytes(data, shape, coding, dtype)
    assert back.shape == shape
    assert back.dtype == dtype
    assert torch.equal(back, arrives(x, coding, key))
    assert bool((x.sub(back).abs() <= bound(x, coding)).all())
    back.zero_()  # it may be written to


def bound(x: Tensor, coding: str) -> Tensor:
    """How far a number may be from what arrives."""
    x = x.double()
    rows, width = len(x) if x.dim() else 1, x[:1].numel() if x.dim() else 1
    if coding == "int8" and width > 4:
        return (x.abs().reshape(rows, width).amax(1) / 127 * 1.000001).view(
            -1, *[1] * (x.dim() - 1)
        )
    return x.abs() * 2.0**-24 if coding == "float32" else x.abs() * 2.0**-10 + 2.0**-24


@given(
    st.lists(st.floats(-65504, 65504, width=32), min_size=1, max_size=12),
    st.sampled_from([1, 2, 6]),
    keys,
)
def test_what_arrives_is_near(values, width, key):
    x = torch.tensor([values[k % len(values)] for k in range(len(values) * width)])
    x = x.double().view(-1, width)
    for coding in CODINGS:
        there = arrives(x, coding, key)
        off = (x - there).abs()
        assert bool((off <= bound(x, coding) + 1e-44).all()), coding
        assert torch.equal(there[x == 0], x[x == 0])  # zero stays zero


@pytest.mark.parametrize("coding", ["float16", "int8"])
@pytest.mark.parametrize("size", [1.0, 1e-6, 1e-8, 300.0])
@pytest.mark.parametrize("width", [1, 4, 8])
def test_rounding_has_no_bias(coding, size, width):
    """The mean over n draws is within five standard errors, a draw's deviation being ≤ step/2."""
    draws = 20_000
    row = numbers(width, seed=3) * size
    x = row.expand(draws, width)
    there = arrives(x, coding, key=5)
    assert bool((there.var(0) > 0).any())
    steps = 2 * bound(row[None], coding)
    assert bool(((there.mean(0) - row).abs() <= 5 * steps / 2 / draws**0.5).all())


@pytest.mark.parametrize("coding", ["float16", "int8"])
def test_rounding_has_no_bias_over_rounds(coding):
    x = numbers(3, 8, seed=1)
    there = torch.stack([arrives(x, coding, key) for key in range(2000)])
    assert bool(((there.mean(0) - x).abs() <= 5 * bound(x, coding) / 2000**0.5).all())
    assert not torch.equal(there[0], there[1])
    assert torch.equal(arrives(x, coding, 7), there[7])  # a key is a draw


@pytest.mark.parametrize("coding", CODINGS)
@pytest.mark.parametrize("width", [1, 8])
def test_error_feedback_loses_nothing_over_the_rounds(coding, width):
    """Σ arrives is Σ x but for the last residual, which is below one step."""
    kept, sent, wanted = (torch.zeros(5, width, dtype=torch.float64) for _ in range(3))
    for round_ in range(50):
        x = numbers(5, width, seed=round_) * 1e-3
        there = arrives(x + kept, coding, round_)
        kept = x + kept - there
        sent += there
        wanted += x
    torch.testing.assert_close(sent + kept, wanted, rtol=0, atol=1e-12)
    assert float(kept.abs().max()) < 1e-4


def test_a_scale_belongs_to_one_row():
    """A cold row keeps its own precision beside one a million times as large."""
    x = torch.stack([torch.full((8,), 1e4), torch.linspace(-1, 1, 8) * 1e-2]).double()
    there = arrives(x, "int8")
    assert float((x - there)[1].abs().max()) <= 1e-2 / 127 * 1.00001
    flat = arrives(x.flatten()[None], "int8")  # one scale for both: the cold row drowns
    assert float((x.flatten() - flat[0])[8:].abs().max()) > 1e-3


def test_a_scale_takes_in_the_largest_number_of_its_row():
    """Rounded down, the largest number would be 127.00001 steps: cut off, or wrapped around."""
    x = numbers(1000, 5)
    scale = np.frombuffer(numbers_to_bytes(x, "int8")[:4000], dtype="<f4").astype(np.float64)
    peak = x.abs().amax(1).numpy()
    assert bool((scale * 127 >= peak).all())
    assert bool((scale * 127 <= peak * (1 + 2.0**-23)).all())


def test_sizes_by_hand():
    assert numbers_size((10, 16), "float32") == 640
    assert numbers_size((10, 16), "float16") == 320
    assert numbers_size((10, 16), "int8") == 10 * 4 + 160
    assert numbers_size((), "float64") == 8
    for width in range(1, 30):  # no coding is larger than the one before it
        sizes = [numbers_size((7, width), coding) for coding in ALL_CODINGS]
        assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_ends_of_the_range(dtype):
    edge = torch.tensor([65504.0, -65504.0, 6e-8, -1e-30, 0.0], dtype=dtype)
    there = arrives(edge, "float16")
    assert there[:2].tolist() == [65504, -65504]
    assert bool(there.isfinite().all())
    for beyond in (65505.0, -65519.0, 1e30):
        for coding, width in (("float16", 9), ("int8", 1)):
            with pytest.raises(WireError, match="beyond 65504, the end of float16"):
                numbers_to_bytes(torch.full((2, width), beyond, dtype=dtype), coding)
    tiny = torch.full((1, 8), 1e-45, dtype=dtype)
    assert bool((arrives(tiny, "int8") >= 0).all())
    large = torch.full((1, 8), LARGEST * 0.999, dtype=dtype)
    assert bool(arrives(large, "int8").isfinite().all())


@pytest.mark.parametrize("coding", ["float32", "int8"])
def test_float64_beyond_float32_is_not_sent(coding):
    beyond_int8 = LARGEST if coding == "int8" else 1e300  # 127 steps would be beyond
    for beyond in (1e39, LARGEST * (1 + 1e-12), beyond_int8):
        with pytest.raises(WireError, match=f"the end of {coding}"):
            numbers_to_bytes(torch.full((1, 8), beyond, dtype=torch.float64), coding)


@pytest.mark.parametrize("coding", ALL_CODINGS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_neither_sent_nor_taken(coding, bad):
    x = torch.zeros(3, 8)
    x[1, 2] = bad
    with pytest.raises(WireError, match="not all finite"):
        numbers_to_bytes(x, coding)
    if coding != "int8":
        forged_ = x.numpy().astype(coding).tobytes()
        with pytest.raises(WireError, match="not all finite"):
            numbers_from_bytes(forged_, (3, 8), coding, torch.float32)


@pytest.mark.parametrize(
    ("scale", "value"),
    [(float("nan"), 1), (float("inf"), 1), (-1.0, 1), (3e38, 127), (1.0, -128)],
)
def test_forged_scales_are_refused(scale, value):
    data = struct.pack("<f8b", scale, *[value] * 8)
    with pytest.raises(WireError):
        numbers_from_bytes(data, (1, 8), "int8", torch.float32)


@given(st.binary(max_size=64), st.sampled_from(ALL_CODINGS), shapes)
def test_random_bytes_are_finite_numbers_or_refused(data, coding, shape):
    for some in (data, (data * 400)[: numbers_size(shape, coding)]):
        try:
            back = numbers_from_bytes(some, shape, coding, torch.float32)
        except WireError:
            continue
        assert back.shape == shape
        assert bool(back.isfinite().all())


def test_wrong_lengths_shapes_and_codings_are_refused():
    with pytest.raises(WireError, match=r"shape \(2, 3\) in float32 take 24 bytes, but 23 came"):
        numbers_from_bytes(bytes(23), (2, 3), "float32", torch.float32)
    with pytest.raises(WireError, match="choose one of float32, float16, int8"):
        numbers_to_bytes(torch.zeros(1), "int4")
    for shape in [(-1, 2), (2**40, 2**40), (0, 2**40, 2**40)]:
        with pytest.raises(WireError, match="negative or beyond all memory"):
            numbers_from_bytes(b"", shape, "float32", torch.float32)
    with pytest.raises(WireError, match="finite floats"):
        numbers_to_bytes(torch.zeros(2, dtype=torch.int64), "float32")


def test_half_precision_and_gradients_can_be_sent():
    for dtype in (torch.float16, torch.bfloat16):
        x = numbers(4, 8, dtype=dtype)
        assert torch.equal(arrives(x, "float32"), x)
    x = numbers(4, 8, dtype=torch.float32).requires_grad_()
    assert torch.equal(arrives(x, "float32"), x)
    assert torch.equal(arrives(x.t(), "float32"), x.t())  # whatever its strides
