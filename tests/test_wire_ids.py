"""Ids on the wire: none is lost, none is believed that is not there, and few bytes are added."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrows.datasets import movielens
from fedrows.flower.wire.codings import ids_from_bytes, ids_to_bytes, numbers_to_bytes
from fedrows.flower.wire.message import Message, WireError, pack


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


# Bytes


def message_of(ids: Tensor, values: Tensor, dense: Tensor) -> bytes:
    parts = {
        "item/at": ids_to_bytes(ids),
        "item": numbers_to_bytes(values, "float32"),
        "bias": numbers_to_bytes(dense, "float32"),
    }
    return pack(Message("update", {"round": 100, "clients": [4711]}, parts))


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
        values = torch.linspace(-1, 1, count * width).view(count, width)
        message = message_of(ids, values, torch.zeros(1))
        sent += len(message)
        allowed += 4 * width * count + 2 * count + 4
    assert sent <= 1.15 * allowed


@pytest.mark.slow
@pytest.mark.usefixtures("data_folder")
def test_the_rows_of_real_clients_are_within_the_bar():
    index = movielens.load(movielens.MovieLensOptions()).index["weight"]
    sent = allowed = 0
    for client in range(0, index.clients, 40):
        ids = index.slice(client, client + 1).ids
        sent += len(message_of(ids, torch.zeros(len(ids), 1), torch.zeros(1)))
        allowed += 4 * len(ids) + 2 * len(ids) + 4
    assert sent <= 1.15 * allowed


def test_facts_are_compact():
    empty = pack(Message("update", {"round": 100, "clients": [4711]}, {}))
    assert len(empty) == 13 + len("update") + len('{"round":100,"clients":[4711]}')
