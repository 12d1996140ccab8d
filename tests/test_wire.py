"""Letters, ids and numbers on the wire: nothing is lost, nothing is believed, little is added."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrows.datasets import movielens
from fedrows.flower.wire import (
    CODINGS,
    VERSION,
    Letter,
    WireError,
    arrives,
    ids_from_bytes,
    ids_to_bytes,
    numbers_from_bytes,
    numbers_size,
    numbers_to_bytes,
    pack,
    unpack,
)

ALL_CODINGS = ("float64", *CODINGS)
LARGEST = float(np.finfo(np.float32).max)
whole = st.integers(-(2**63), 2**64 - 1)
texts = st.text(max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | whole | finite | texts
facts = st.dictionaries(
    texts,
    st.recursive(plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3)),
    max_size=4,
)
letters = st.builds(
    Letter, texts, facts, st.dictionaries(texts, st.binary(max_size=40), max_size=4)
)
shapes = st.lists(st.integers(0, 7), max_size=3).map(tuple)
keys = st.integers(0, 2**64 - 1)
EXAMPLE = pack(Letter("update", {"round": 3, "who": [1, 2]}, {"ids": b"\1\2", "rows": b"\0" * 9}))


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator).to(dtype)


def reads_or_refuses(read: Callable[[], object]) -> None:
    said = "."
    try:
        read()
    except WireError as error:
        said = str(error)
    assert said.endswith(".")
    assert "\n" not in said


# Letters


@given(letters)
def test_a_letter_comes_back_whole(letter):
    assert unpack(pack(letter)) == letter


def test_the_bytes_of_a_letter_are_pinned():
    """If this changes, VERSION has to."""
    letter = Letter("hi", {"a": [1, "é"]}, {"x": b"\xff"})
    expected = b"FROW\1\0\2\1\0\x0e\0\0\0" + b"hi" + '{"a":[1,"é"]}'.encode()
    assert VERSION == 1
    assert pack(letter) == expected + b"\1\1\0\0\0x\xff"


def test_another_version_is_named_with_ours():
    theirs = EXAMPLE[:4] + struct.pack("<H", 9) + EXAMPLE[6:]
    with pytest.raises(WireError, match=r"wire format 9, but this side speaks 1: run the same"):
        unpack(theirs)
    with pytest.raises(WireError, match="wire format 9"):
        unpack(theirs[:6])  # whatever else a later version changes


def forged(facts: bytes, parts: bytes = b"", count: int = 0, size: int | None = None) -> bytes:
    size = len(facts) if size is None else size
    return struct.pack("<4sHBHI", b"FROW", VERSION, 1, count, size) + b"k" + facts + parts


part = struct.Struct("<BI").pack


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "no letter"),
        (b"GET / HTTP/1.1\r\n\r\n", "no letter"),
        (b"FROW", "cut off or forged"),
        (EXAMPLE + b"\0", "followed by 1 bytes"),
        (EXAMPLE[:-1], "cut off or forged"),
        (forged(b"{}", size=2**32 - 1), "at most 1048576 may"),
        (forged(b"{}", size=2**20), "cut off or forged"),
        (forged(b"{}", count=65535), "cut off or forged"),
        (forged(b"{}", part(1, 2**32 - 1) + b"a", 1), "cut off or forged"),
        (forged(b"{}", 2 * (part(1, 0) + b"a"), 2), "two parts of one name"),
        (forged(b"{}", part(1, 0) + b"\xff", 1), "not text"),
        (forged(b"[]"), "not a JSON object"),
        (forged(b""), "not valid JSON"),
        (forged(b"{} {}"), "not valid JSON"),
        (forged(b"\xef\xbb\xbf{}"), "not valid JSON"),
        (forged("{}".encode("utf-16")), "not valid JSON"),
        (forged(b'{"a":1,"a":2}'), "not valid JSON"),
        (forged(b'{"b":{"a":1,"a":2}}'), "not valid JSON"),
        (forged(b'{"a":NaN}'), "not valid JSON"),
        (forged(b'{"a":-Infinity}'), "not valid JSON"),
        (forged(b'{"a":1e999}'), "not valid JSON"),
        (forged(b'{"a":18446744073709551616}'), "not valid JSON"),
        (forged(b'{"a":' + b"9" * 100_000 + b"}"), "not valid JSON"),
        (forged(b'{"a":"\\ud800"}'), "not valid JSON"),
        (forged(b'{"a":' + b"[" * 500_000), "nested more than 16"),
        (forged(b'{"a":' * 100 + b"1" + b"}" * 100), "nested more than 16"),
        (forged(b'"' + b'\\"' * 500_000), "not valid JSON"),
        ("FROW", "other than bytes"),
    ],
    ids=lambda x: None if isinstance(x, str) else repr(x[:24]),
)
def test_a_forged_letter_is_refused(data, says):
    with pytest.raises(WireError, match=says):
        unpack(data)


def test_brackets_in_text_are_not_nesting():
    letter = Letter("k", {"a": "[" * 50, "[{\\": '"[' * 50}, {})
    assert unpack(pack(letter)) == letter


def test_a_letter_larger_than_is_taken():
    assert unpack(EXAMPLE, most=len(EXAMPLE)).kind == "update"
    with pytest.raises(WireError, match=f"{len(EXAMPLE)} bytes, but at most {len(EXAMPLE) - 1}"):
        unpack(EXAMPLE, most=len(EXAMPLE) - 1)


@pytest.mark.parametrize(
    ("letter", "says"),
    [
        (Letter("k", {"a": float("nan")}, {}), "plain JSON"),
        (Letter("k", {"a": {1, 2}}, {}), "plain JSON"),
        (Letter("k", {"a": "x" * 2**20}, {}), "at most 1048576"),
        (Letter("k", {"1": 0, 1: 0}, {}), "not valid JSON"),
        (Letter("k", {"a": 2**64}, {}), "not valid JSON"),
        (Letter("k" * 256, {}, {}), "256 bytes of 255"),
        (Letter("\ud800", {}, {}), "half a character"),
        (Letter("k", {"a": "\ud800"}, {}), "plain JSON"),
        (Letter("k", {}, dict.fromkeys(map(str, range(2**16)), b"")), "65536 parts"),
    ],
)
def test_what_cannot_be_read_is_not_sent(letter, says):
    with pytest.raises(WireError, match=says):
        pack(letter)


def test_errors_do_not_repeat_what_a_letter_said():
    with pytest.raises(WireError) as caught:
        unpack(forged(b'{"secret": oops}'))
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    for start in (b"", b"FROW", b"FROW\1\0", EXAMPLE[:20]):
        reads_or_refuses(lambda whole=start + data: unpack(whole))


@given(letters, st.data())
def test_damaged_letters_are_refused(letter, draw):
    data = pack(letter)
    with pytest.raises(WireError):
        unpack(data[: draw.draw(st.integers(0, len(data) - 1))])
    with pytest.raises(WireError):
        unpack(data + draw.draw(st.binary(min_size=1, max_size=9)))
    flipped = bytearray(data)
    for place in draw.draw(st.lists(st.integers(0, 8 * len(data) - 1), min_size=1, max_size=4)):
        flipped[place // 8] ^= 1 << place % 8
    reads_or_refuses(lambda: unpack(bytes(flipped)))


def test_reading_takes_no_more_memory_than_was_sent():
    """Any two bytes of the lengths set to 255, and every decoder on every damaged input."""
    chance = random.Random(0)
    ids = ids_to_bytes(torch.arange(0, 3000, 3))
    letter = pack(Letter("k", {"round": 1}, {"ids": ids, "rows": bytes(4000)}))
    tracemalloc.start()
    try:
        for _ in range(300):
            damaged = bytearray(letter)
            start = chance.randrange(0, 40)
            damaged[start : start + 2] = b"\xff\xff"
            reads_or_refuses(lambda data=bytes(damaged): unpack(data))
            junk = chance.randbytes(chance.randrange(2000))
            reads_or_refuses(lambda data=junk: ids_from_bytes(data, 2**62, 2**62))
            for coding in ALL_CODINGS:
                shape = (2**20, 2**20)
                reads_or_refuses(
                    lambda data=junk, c=coding, s=shape: numbers_from_bytes(
                        data, s, c, torch.float32
                    )
                )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2**18


@pytest.mark.parametrize("piece", [b"[],", b"[[[]]],", b'{"":0},', b"1.5,"])
def test_facts_take_a_bounded_multiple_of_their_bytes(piece):
    data = forged(b'{"a":[' + piece * (60_000 // len(piece)) + b"0]}")
    tracemalloc.start()
    try:
        unpack(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * len(data)


# Ids


def slow_ids(data: bytes, rows: int, most: int) -> list[int] | None:
    """One byte after another; None if they are no ids."""
    ids, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 127) << shift
        shift += 7
        if byte >= 128:
            continue
        if shift > 63 or (byte == 0 and shift > 7):
            return None
        ids.append((ids[-1] if ids else -1) + value + 1)
        value = shift = 0
    return None if shift or len(ids) > most or (ids and ids[-1] >= rows) else ids


@given(st.sets(st.integers(0, 2**61) | st.integers(0, 300), max_size=30))
def test_ids_come_back(ids):
    ids = sorted(ids)
    data = ids_to_bytes(torch.tensor(ids, dtype=torch.int64))
    back = ids_from_bytes(data, 2**61 + 1, len(ids))
    assert back.dtype == torch.int64
    assert back.tolist() == ids == slow_ids(data, 2**61 + 1, len(ids))
    if ids:
        with pytest.raises(WireError, match=f"beyond the table's {ids[-1]} rows"):
            ids_from_bytes(data, ids[-1], len(ids))
        with pytest.raises(WireError, match=r"more"):
            ids_from_bytes(data, 2**61 + 1, len(ids) - 1)


def test_ids_by_hand():
    """Gaps of 0, 0, 127 and 128: the last is the first that takes two bytes."""
    assert ids_to_bytes(torch.tensor([0, 1, 129, 258])) == b"\0\0\x7f\x80\1"


@settings(max_examples=300)
@given(
    st.binary(max_size=24) | st.lists(st.sampled_from([0, 1, 127, 128, 255])).map(bytes),
    st.sampled_from([0, 1, 200, 2**40, 2**62]),
    st.integers(0, 12),
)
def test_any_bytes_are_ids_or_refused_as_the_slow_reader_says(data, rows, most):
    expected = slow_ids(data, rows, most)
    if expected is None:
        with pytest.raises(WireError):
            ids_from_bytes(data, rows, most)
    else:
        assert ids_from_bytes(data, rows, most).tolist() == expected


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80", "cut off"),
        (b"\5\xff\xff", "cut off"),
        (b"\x80\0", "longer than it has to be"),
        (b"\xff" * 9 + b"\1", "longer than it has to be"),
        (b"\xff" * 8 + b"\x7f", "beyond the table's 100 rows"),
        ((b"\xff" * 8 + b"\x7f") * 2, "beyond the table's 100 rows"),
        (bytes(9), "more ids than the 8"),
        (bytes(73), "73 bytes of ids are more than 8"),
    ],
)
def test_forged_ids_are_refused(data, says):
    with pytest.raises(WireError, match=says):
        ids_from_bytes(data, 100, 8)


@pytest.mark.parametrize("ids", [[1, 1], [2, 1], [-1, 0], [-(2**63), 0], [[0, 1]]])
def test_unsorted_ids_are_not_sent(ids):
    with pytest.raises(WireError):
        ids_to_bytes(torch.tensor(ids))
    with pytest.raises(WireError, match="int32"):
        ids_to_bytes(torch.tensor([0, 1], dtype=torch.int32))


# Numbers


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


# Bytes


def letter_of(ids: Tensor, values: Tensor, dense: Tensor) -> bytes:
    parts = {
        "item/at": ids_to_bytes(ids),
        "item": numbers_to_bytes(values, "float32"),
        "bias": numbers_to_bytes(dense, "float32"),
    }
    return pack(Letter("update", {"round": 100, "clients": [4711]}, parts))


@pytest.mark.parametrize("width", [1, 18])
def test_little_is_added_to_the_numbers(width):
    """Sizes as in MovieLens: 3,706 films and 20 to 2,314 ratings a client, 166 in the mean."""
    chance = np.random.default_rng(0)
    popularity = 1 / np.arange(10, 3716) ** 0.8
    order = chance.permutation(3706)  # ids do not ascend with popularity
    sent = allowed = 0
    for _ in range(200):
        count = int(np.clip(chance.lognormal(4.56, 1.03), 20, 2314))
        films = chance.choice(3706, count, replace=False, p=popularity / popularity.sum())
        ids = torch.from_numpy(np.sort(order[films]))
        letter = letter_of(ids, numbers(count, width, dtype=torch.float32), torch.zeros(1))
        sent += len(letter)
        allowed += 4 * width * count + 2 * count + 4
    assert sent <= 1.15 * allowed


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_the_rows_of_real_clients_are_within_the_bar():
    index = movielens.load(movielens.Options()).index["weight"]
    sent = allowed = 0
    for client in range(0, index.clients, 40):
        ids = index.slice(client, client + 1).ids
        sent += len(letter_of(ids, torch.zeros(len(ids), 1), torch.zeros(1)))
        allowed += 4 * len(ids) + 2 * len(ids) + 4
    assert sent <= 1.15 * allowed


def test_facts_are_compact():
    empty = pack(Letter("update", {"round": 100, "clients": [4711]}, {}))
    assert len(empty) == 13 + len("update") + len('{"round":100,"clients":[4711]}')
