"""Index sets, flat and ragged, against lists of lists."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from twin import index_of

from fedrows.rows.index import Index, index_and_slots

ROWS = 9
HELD = [[4, 9, 31], [9, 12], [], [4, 12, 40, 77]]
clients_of = st.lists(st.lists(st.integers(0, ROWS - 1), max_size=6), min_size=1, max_size=6)


def built(held: list[list[int]], rows: int = ROWS) -> tuple[Index, list[np.ndarray]]:
    """The index behind each client's ids, in one field; ids may repeat."""
    owner = np.repeat(np.arange(len(held)), [len(ids) for ids in held])
    ids = np.array([*chain.from_iterable(held)], dtype=np.int64)
    return index_and_slots(len(held), [owner], [ids])


def lists(index: Index) -> list[list[int]]:
    return [index.slice(k, k + 1).ids.tolist() for k in range(index.clients)]


def test_sizes_and_owners_by_hand():
    index = index_of(HELD)
    assert index.clients == 4
    assert index.lengths.tolist() == [3, 2, 0, 4]
    assert index.owner.tolist() == [0, 0, 0, 1, 1, 3, 3, 3, 3]
    assert index.spread(torch.tensor([10, 20, 30, 40])).tolist() == [10] * 3 + [20] * 2 + [40] * 4


@pytest.mark.parametrize("cohort", [[0], [2], [3, 0], [1, 2, 3], [0, 1, 2, 3], [1, 1]])
def test_select_takes_clients_in_the_order_given(cohort):
    index = index_of(HELD)
    some = index.select(torch.tensor(cohort))
    assert lists(some) == [HELD[client] for client in cohort]
    assert index.ids[some.source].tolist() == some.ids.tolist()
    assert some.place is None


def test_a_slice_is_a_view():
    index = built(HELD, 100)[0].select(torch.tensor([3, 2, 0]))
    part = index.slice(0, 2)
    assert lists(part) == [HELD[3], []]
    assert part.splits.tolist() == [0, 4, 4]
    assert part.ids.data_ptr() == index.ids.data_ptr()
    assert part.place.tolist() == index.place[:4].tolist()
    assert part.source.tolist() == [5, 6, 7, 8]
    last = index.slice(2, 3)
    assert lists(last) == [HELD[0]]
    assert last.source.tolist() == [0, 1, 2]


@given(clients_of, st.data())
def test_select_and_slice_of_ragged_clients(held, draw):
    index, _ = built(held)
    sets = [sorted(set(ids)) for ids in held]
    assert lists(index) == sets
    cohort = draw.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, max_size=6))
    some = index.select(torch.tensor(cohort))
    assert lists(some) == [sets[client] for client in cohort]
    assert index.ids[some.source].tolist() == some.ids.tolist()
    assert some.held is index.held  # what makes the gather of heat possible
    assert some.held[some.place].tolist() == some.ids.tolist()
    low = draw.draw(st.integers(0, len(cohort)))
    high = draw.draw(st.integers(low, len(cohort)))
    part = some.slice(low, high)
    assert lists(part) == [sets[client] for client in cohort[low:high]]
    assert index.ids[part.source].tolist() == part.ids.tolist()
    assert part.owner.tolist() == [k for k in range(high - low) for _ in sets[cohort[low + k]]]


def test_fields_that_share_a_table_share_index_sets():
    """Client 0 sees 5 and 2 in one field and 2 and 7 in the other: S(0) = {2, 5, 7}."""
    owners = [np.array([0, 0, 1]), np.array([0, 0, 1, 1])]
    ids = [np.array([5, 2, 7]), np.array([2, 7, 7, 0])]
    index, (first, second) = index_and_slots(2, owners, ids)
    assert lists(index) == [[2, 5, 7], [0, 7]]
    assert index.held.tolist() == [0, 2, 5, 7]
    assert first.tolist() == [1, 0, 1]
    assert second.tolist() == [0, 2, 1, 0]


pairs_of = st.lists(st.tuples(st.integers(0, 4), st.integers(0, ROWS - 1)), max_size=12)


@given(st.lists(pairs_of, min_size=1, max_size=3))
def test_slot_plus_split_addresses_the_right_id(fields):
    owners = [np.array([owner for owner, _ in pairs], dtype=np.int64) for pairs in fields]
    ids = [np.array([id_ for _, id_ in pairs], dtype=np.int64) for pairs in fields]
    index, slots = index_and_slots(5, owners, ids)
    for owner, id_, slot in zip(owners, ids, slots, strict=True):
        assert len(slot) == len(id_)
        assert index.ids[index.splits[owner] + torch.from_numpy(slot)].tolist() == id_.tolist()
    everything = {pair for pairs in fields for pair in pairs}
    assert lists(index) == [sorted(id_ for o, id_ in everything if o == k) for k in range(5)]


def test_a_federation_larger_than_int64_pairs_is_not_mixed_up():
    """10 clients of a table of 2^62 rows: owner · rows + id would not fit into 64 bits."""
    far = 2**62 - 1
    index, (slots,) = index_and_slots(10, [np.array([0, 8, 9])], [np.array([far, 3, far - 1])])
    assert lists(index) == [[far], *[[]] * 7, [3], [far - 1]]
    assert slots.tolist() == [0, 0, 0]


def test_on_the_same_device_nothing_is_copied():
    index, _ = built(HELD, 100)
    same = index.to(torch.device("cpu"))
    assert same.ids.data_ptr() == index.ids.data_ptr()
    assert same.held is index.held
    assert lists(same) == HELD
