"""Messages on the wire: they come back whole, and nothing that is forged is believed."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrows.flower.wire.codings import CODINGS, ids_from_bytes, ids_to_bytes, numbers_from_bytes
from fedrows.flower.wire.message import VERSION, Message, WireError, pack, unpack

ALL_CODINGS = ("float64", *CODINGS)
whole = st.integers(-(2**63), 2**64 - 1)
texts = st.text(max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
plain = st.none() | st.booleans() | whole | finite | texts
facts = st.dictionaries(
    texts,
    st.recursive(plain, lambda x: st.lists(x, max_size=3) | st.dictionaries(texts, x, max_size=3)),
    max_size=4,
)
messages = st.builds(
    Message, texts, facts, st.dictionaries(texts, st.binary(max_size=40), max_size=4)
)
EXAMPLE = pack(Message("update", {"round": 3, "who": [1, 2]}, {"ids": b"\1\2", "rows": b"\0" * 9}))


def reads_or_refuses(read: Callable[[], object]) -> None:
    said = "."
    try:
        read()
    except WireError as error:
        said = str(error)
    assert said.endswith(".")
    assert "\n" not in said


@given(messages)
def test_a_message_comes_back_whole(message):
    assert unpack(pack(message)) == message


def test_the_bytes_of_a_message_are_pinned():
    """If this changes, VERSION has to."""
    message = Message("hi", {"a": [1, "é"]}, {"x": b"\xff"})
    expected = b"FROW\1\0\2\1\0\x0e\0\0\0" + b"hi" + '{"a":[1,"é"]}'.encode()
    assert VERSION == 1
    assert pack(message) == expected + b"\1\1\0\0\0x\xff"


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
        (b"", "no message"),
        (b"GET / HTTP/1.1\r\n\r\n", "no message"),
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
def test_a_forged_message_is_refused(data, says):
    with pytest.raises(WireError, match=says):
        unpack(data)


def test_brackets_in_text_are_not_nesting():
    message = Message("k", {"a": "[" * 50, "[{\\": '"[' * 50}, {})
    assert unpack(pack(message)) == message


def test_a_message_larger_than_is_taken():
    assert unpack(EXAMPLE, most=len(EXAMPLE)).kind == "update"
    with pytest.raises(WireError, match=f"{len(EXAMPLE)} bytes, but at most {len(EXAMPLE) - 1}"):
        unpack(EXAMPLE, most=len(EXAMPLE) - 1)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Message("k", {"a": float("nan")}, {}), "plain JSON"),
        (Message("k", {"a": {1, 2}}, {}), "plain JSON"),
        (Message("k", {"a": "x" * 2**20}, {}), "at most 1048576"),
        (Message("k", {"1": 0, 1: 0}, {}), "not valid JSON"),
        (Message("k", {"a": 2**64}, {}), "not valid JSON"),
        (Message("k" * 256, {}, {}), "256 bytes of 255"),
        (Message("\ud800", {}, {}), "half a character"),
        (Message("k", {"a": "\ud800"}, {}), "plain JSON"),
        (Message("k", {}, dict.fromkeys(map(str, range(2**16)), b"")), "65536 parts"),
    ],
)
def test_what_cannot_be_read_is_not_sent(message, says):
    with pytest.raises(WireError, match=says):
        pack(message)


def test_errors_do_not_repeat_what_a_message_said():
    with pytest.raises(WireError) as caught:
        unpack(forged(b'{"secret": oops}'))
    assert "secret" not in str(caught.value)
    assert caught.value.__suppress_context__


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data):
    for start in (b"", b"FROW", b"FROW\1\0", EXAMPLE[:20]):
        reads_or_refuses(lambda whole=start + data: unpack(whole))


@given(messages, st.data())
def test_damaged_messages_are_refused(message, draw):
    data = pack(message)
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
    message = pack(Message("k", {"round": 1}, {"ids": ids, "rows": bytes(4000)}))
    tracemalloc.start()
    try:
        for _ in range(300):
            damaged = bytearray(message)
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
