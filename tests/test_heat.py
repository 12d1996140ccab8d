"""Heat by hand: who holds which row, and what FedSubAvg makes of it."""

from __future__ import annotations

import math
import tracemalloc
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from twin import index_of

from fedrows.data.federation import FederatedData
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.index import Index, index_and_slots

HELD = [[1, 4], [4], [4, 6, 8]]
WEIGHTS = torch.tensor([1.0, 2, 5])
FLOAT = torch.float64


def built(held: list[list[int]], rows: int = 10) -> Index:
    """An index that knows where its ids stand in the federation: heat is found by one gather."""
    owner = np.repeat(np.arange(len(held)), [len(ids) for ids in held])
    flat = np.array([*chain.from_iterable(held)], dtype=np.int64)
    return index_and_slots(len(held), [owner], [flat])[0]


@pytest.mark.parametrize("make", [index_of, built])
def test_counts_by_hand(make):
    plain = heat_of(make(HELD), torch.ones(3))
    assert plain.ids.tolist() == [1, 4, 6, 8]
    assert plain.counts.tolist() == [1, 3, 1, 1]
    assert plain.total == 3
    weighted = heat_of(make(HELD), WEIGHTS)
    assert weighted.counts.tolist() == [1, 8, 5, 5]
    assert weighted.total == 8


@pytest.mark.parametrize("make", [index_of, built])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [8, 1, 1, 1, 1.6, 1.6]),
        ({"cap": 2.0}, [2, 1, 1, 1, 1.6, 1.6]),
        ({"cap": 1.0}, [1] * 6),
        ({"alpha": 0.5}, [8**0.5, 1, 1, 1, 1.6**0.5, 1.6**0.5]),
        ({"alpha": 0.0}, [1] * 6),
        ({"alpha": 0.5, "cap": 1.5}, [1.5, 1, 1, 1, 1.6**0.5, 1.6**0.5]),
    ],
)
def test_correction_by_hand(make, options, expected):
    index = make(HELD)
    found = heat_of(index, WEIGHTS).correction(index, FLOAT, **options)
    assert found.tolist() == pytest.approx(expected, abs=1e-15)


def test_corrections_of_different_options_do_not_mix():
    index = built(HELD)
    heat = heat_of(index, WEIGHTS)
    assert heat.correction(index, FLOAT)[0] == 8
    assert heat.correction(index, FLOAT, cap=2)[0] == 2
    assert heat.correction(index, FLOAT)[0] == 8
    assert heat.correction(index, torch.float32).dtype == torch.float32


def test_the_factor_is_1_where_nobody_counted():
    heat = heat_of(index_of(HELD), WEIGHTS)
    assert heat.correction(index_of([[0, 1, 5, 9]])).tolist() == [1, 8, 1, 1]
    counted_out = Heat(torch.tensor([3]), torch.tensor([0.0], dtype=FLOAT), 5.0)
    assert counted_out.correction(index_of([[3]])).tolist() == [1]
    nobody = heat_of(index_of([[], []]), torch.ones(2))
    assert nobody.correction(index_of([[0, 7]])).tolist() == [1, 1]
    assert nobody.of(torch.tensor([0, 7])).tolist() == [0, 0]
    assert math.isnan(nobody.dispersion)


clients_of = st.lists(
    st.sets(st.integers(0, 9), max_size=5).map(sorted), min_size=1, max_size=6
).filter(any)


@given(clients_of, st.data())
def test_the_gather_and_the_search_agree(held, draw):
    own = draw.draw(st.lists(st.integers(1, 9), min_size=len(held), max_size=len(held)))
    weights = torch.tensor(own, dtype=FLOAT)
    cohort = torch.tensor(
        draw.draw(st.lists(st.integers(0, len(held) - 1), min_size=1, unique=True))
    )
    known, plain = built(held), index_of(held)
    gathered = heat_of(known, weights)
    assert known.select(cohort).held is gathered.ids  # or the search would be tested twice
    searched = heat_of(plain, weights)
    assert gathered.ids.tolist() == searched.ids.tolist()
    by_gather = gathered.correction(known.select(cohort), FLOAT, cap=4.0)
    by_search = searched.correction(plain.select(cohort), FLOAT, cap=4.0)
    assert torch.equal(by_gather, by_search)
    count = {m: sum(w for w, ids in zip(own, held, strict=True) if m in ids) for m in range(10)}
    expected = [min(4, sum(own) / count[m]) for client in cohort.tolist() for m in held[client]]
    assert by_gather.tolist() == pytest.approx(expected)


def test_of_reads_any_shape():
    heat = heat_of(built(HELD), WEIGHTS)
    assert heat.of(torch.tensor([[4, 0], [9, 8]])).tolist() == [[8, 0], [0, 5]]


def test_dispersion_and_groups():
    heat = heat_of(built(HELD), torch.ones(3))
    assert heat.dispersion == 3
    group = heat.between(4, 8)
    assert group.ids.tolist() == [4, 6]
    assert group.counts.tolist() == [3, 1]
    assert group.total == 3
    assert heat.between(6, 10).dispersion == 1
    assert math.isnan(heat.between(2, 4).dispersion)
    zero = Heat(torch.tensor([0, 1]), torch.tensor([0.0, 4.0], dtype=FLOAT), 5.0)
    assert zero.dispersion == 1  # a row that nobody holds does not count


def test_a_table_of_a_billion_rows_costs_what_is_held():
    last = 10**9 - 1
    tracemalloc.start()
    data = FederatedData.build(
        client=np.array([0, 0, 1, 2]),
        ids={"t": np.array([[0, last], [7, 7], [last, 7], [5, last]])},
        label=np.array([0, 1, 0, 1]),
        test=np.zeros(4, dtype=bool),
        tables={"t": 10**9},
    )
    heat = data.heat("examples")["t"]
    peak = tracemalloc.get_traced_memory()[1]  # what numpy allocates; torch holds what is below
    tracemalloc.stop()
    assert peak < 10**6
    assert data.index["t"].ids.tolist() == [0, 7, last, 7, last, 5, last]
    assert heat.ids.tolist() == [0, 5, 7, last]
    assert heat.counts.tolist() == [2, 1, 3, 4]
    assert data.slots["t"].tolist() == [[0, 2], [1, 1], [1, 0], [0, 1]]
    cohort = data.index["t"].select(torch.tensor([2, 0]))
    assert heat.correction(cohort).tolist() == pytest.approx([4, 1, 2, 4 / 3, 1])
