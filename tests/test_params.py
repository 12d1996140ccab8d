"""Taking submodels, adding them up and putting them back, against plain loops over dicts."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from twin import index_of

from fedrows.rows.params import (
    Params,
    RowTotal,
    Submodels,
    index_add_,
    index_select,
    join,
    take,
    total,
)

ROWS = 7
CLOSE = {"rtol": 0, "atol": 1e-12}
cohorts = st.lists(st.sets(st.integers(0, ROWS - 1), max_size=5), min_size=1, max_size=5)
widths = st.sampled_from([1, 3])


def numbers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def model(width: int) -> Params:
    tables = {"t": numbers(ROWS, width), "u": numbers(ROWS, 2, seed=1)}
    return Params(tables, {"bias": numbers(seed=2), "w": numbers(2, 3, seed=3)})


def uploads(held, width: int) -> Submodels:
    """Random updates of a cohort in two tables and two dense tensors."""
    index = {"t": index_of(held), "u": index_of([{len(held) % ROWS}, *held[1:]])}
    rows = {
        "t": numbers(len(index["t"].ids), width, seed=4),
        "u": numbers(len(index["u"].ids), 2, seed=5),
    }
    return Submodels(
        index, rows, {"bias": numbers(len(held), seed=6), "w": numbers(len(held), 2, 3, seed=7)}
    )


def test_take_by_hand():
    table = torch.tensor([[0.0, 1], [10, 11], [20, 21]])
    params = Params({"t": table}, {"bias": torch.tensor(5.0)})
    taken = take(params, {"t": index_of([[2], [], [0, 2]])}, 3)
    assert taken.rows["t"].tolist() == [[20, 21], [0, 1], [20, 21]]
    assert taken.dense["bias"].tolist() == [5, 5, 5]
    taken.rows["t"].zero_()
    taken.dense["bias"].zero_()
    assert table.tolist() == [[0, 1], [10, 11], [20, 21]]  # every client has its own copy
    assert params.dense["bias"] == 5


@given(cohorts, widths, st.data())
def test_take_total_add_is_the_loop_over_clients(held, width, draw):
    params = model(width)
    weights = draw.draw(st.lists(st.integers(1, 9), min_size=len(held), max_size=len(held)))
    updates = uploads(held, width)
    expected = params.copy()
    for k, weight in enumerate(weights):
        share, its = weight / sum(weights), updates.slice(k, k + 1)
        for table, index in its.index.items():
            for row, id_ in enumerate(index.ids.tolist()):
                expected.tables[table][id_] += share * its.rows[table][row]
        for name, dense in its.dense.items():
            expected.dense[name] += share * dense[0]
    start = take(params, updates.index, len(held))
    end = start.map(torch.add, updates)
    end.add_(start, -1)
    sums = total(end, torch.tensor(weights, dtype=torch.float64), torch.ones(len(held)))
    sums.add_(params)
    assert sums.weight == sum(weights)
    assert sums.share.sum() == pytest.approx(1)
    for mine, its in ((params.tables, expected.tables), (params.dense, expected.dense)):
        for name, x in mine.items():
            torch.testing.assert_close(x, its[name], **CLOSE)


@given(cohorts, widths)
def test_merged_adds_every_row_up_once(held, width):
    updates = uploads(held, width)
    weights = torch.arange(1, len(held) + 1, dtype=torch.float64)
    rows = total(updates, weights, weights).rows["t"]
    sums, shares = defaultdict(float), defaultdict(float)
    for id_, values, share in zip(rows.index.ids.tolist(), rows.values, rows.share, strict=True):
        sums[id_] += values
        shares[id_] += share
    merged = rows.merged
    assert merged.ids.tolist() == sorted(set().union(*held))
    assert merged.ids[merged.inverse].tolist() == rows.index.ids.tolist()
    for id_, values, share in zip(
        merged.ids.tolist(), merged.values, merged.sum(rows.share), strict=True
    ):
        torch.testing.assert_close(values, sums[id_], **CLOSE)
        torch.testing.assert_close(share, shares[id_], **CLOSE)


def test_a_factor_is_per_entry():
    """Clients 0 and 1 both hold row 1; their entries may have factors of their own."""
    index = index_of([[0, 1], [1]])
    rows = RowTotal(index, torch.tensor([[1.0], [2], [4]]), torch.tensor([0.5, 0.5, 0.5]))
    table = torch.tensor([[100.0], [100], [100]])
    rows.add_(table, torch.tensor([1.0, 10, 100]))
    assert table.tolist() == [[101], [520], [100]]


def test_factors_leave_dense_tensors_alone():
    updates = Submodels({"t": index_of([[0]])}, {"t": torch.ones(1, 2)}, {"w": torch.ones(1, 3)})
    params = Params({"t": torch.zeros(2, 2)}, {"w": torch.zeros(3)})
    sums = total(updates, torch.tensor([4.0]), torch.ones(1))
    sums.add_(params, {"t": torch.tensor([7.0])})
    assert params.tables["t"].tolist() == [[7, 7], [0, 0]]
    assert params.dense["w"].tolist() == [1, 1, 1]


def test_norms_and_scale_are_by_client():
    """Client 0 has the numbers 1, 2, 2 and 4, client 1 no row and 3, client 2 2, 0, 0 and 1."""
    updates = Submodels(
        {"t": index_of([[0, 3], [], [1]]), "u": index_of([[], [], [2]])},
        {"t": torch.tensor([[1.0], [2], [2]]), "u": torch.tensor([[0.0, 0]])},
        {"a": torch.tensor([2.0, 0, 0]), "b": torch.tensor([[[4.0]], [[3]], [[1]]])},
    )
    assert updates.norms().tolist() == pytest.approx([5, 3, 5**0.5])
    updates.scale_(torch.tensor([10.0, 2, 0]))
    assert updates.rows["t"].tolist() == [[10], [20], [0]]
    assert updates.dense["a"].tolist() == [20, 0, 0]
    assert updates.dense["b"].tolist() == [[[40]], [[6]], [[0]]]


@given(cohorts, widths)
def test_norms_of_ragged_clients(held, width):
    updates = uploads(held, width)
    for k, norm in enumerate(updates.norms()):
        own = updates.slice(k, k + 1)
        flat = torch.cat([x.reshape(-1) for x in (*own.rows.values(), *own.dense.values())])
        torch.testing.assert_close(norm, flat.norm(), **CLOSE)


@given(cohorts, widths, st.integers(1, 6))
def test_join_is_the_inverse_of_slicing(held, width, chunk):
    whole = uploads(held, width)
    cuts = [*range(0, len(held), chunk), len(held)]
    parts = [whole.slice(a, b) for a, b in pairwise(cuts)]
    for part in parts:
        for table, index in part.index.items():
            assert len(part.rows[table]) == len(index.ids)
    joined = join(whole.index, parts)
    for table, rows in whole.rows.items():
        assert torch.equal(joined.rows[table], rows)
        assert joined.index[table].splits.tolist() == whole.index[table].splits.tolist()
    for name, dense in whole.dense.items():
        assert torch.equal(joined.dense[name], dense)


def test_a_slice_shares_its_numbers():
    whole = uploads([{0, 1}, {2}, {1}], 3)
    whole.slice(1, 3).scale_(torch.zeros(2))
    assert (whole.rows["t"][:2] != 0).all()
    assert (whole.rows["t"][2:] == 0).all()
    assert (whole.dense["w"][1:] == 0).all()


@pytest.mark.parametrize("width", [1, 3])
def test_narrow_and_wide_tables_are_read_and_added_alike(width):
    table, values = numbers(ROWS, width), numbers(4, width, seed=1)
    ids = torch.tensor([5, 0, 5, 6])  # a row twice
    assert torch.equal(index_select(table, ids), table[ids])
    expected = table.clone()
    for id_, value in zip(ids, values, strict=True):
        expected[id_] += value
    index_add_(table, ids, values)
    torch.testing.assert_close(table, expected, **CLOSE)
    nothing = torch.tensor([], dtype=torch.int64)
    assert index_select(table, nothing).shape == (0, width)


def test_copy_and_map_make_new_tensors():
    params = model(2)
    copy, doubled = params.copy(), params.map(lambda x: 2 * x)
    params.tables["t"].zero_()
    params.dense["w"].zero_()
    assert torch.equal(copy.tables["t"] * 2, doubled.tables["t"])
    assert torch.equal(copy.dense["w"] * 2, doubled.dense["w"])
    assert copy.tables["t"].abs().sum() > 0
