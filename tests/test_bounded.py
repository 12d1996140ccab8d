"""The bounded rule by hand, its bound for all inputs, and its expectation over all cohorts."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_robust import column, index_of

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
import make_bounded

from fedrows.algorithms.boundedsubavg import BoundedSubAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.rowadam import RowAdam
from fedrows.errors import PlanError
from fedrows.flower.wire.contract import make_contract
from fedrows.privacy.options import Privacy
from fedrows.rows.heat import Heat, heat_of
from fedrows.rows.params import Params, total

EXACT = torch.float64


def moved(algorithm, held, values, weights, heat, rows=3) -> list[float]:
    """Where the rows of a table of zeros are after one round of a cohort."""
    params = Params({"t": torch.zeros(rows, 1, dtype=EXACT)}, {})
    weights = torch.tensor(weights, dtype=EXACT)
    sums = total(column(*values, held=held), weights, torch.ones(len(held)))
    algorithm.step_(params, {}, sums, {"t": heat}, None)
    return params.tables["t"].flatten().tolist()


def test_a_holder_that_is_rarely_there_moves_its_row_as_far_as_it_did() -> None:
    """One of 100 clients holds row 1, and is one of a cohort of four: e = 1/25."""
    heat = heat_of(index_of([{0, 1}] + [{0}] * 99), torch.ones(100))
    cohort, values = [{0, 1}, {0}, {0}, {0}], (0.5, 0.25, 0.5, 0.5, 0.5)
    assert moved(BoundedSubAvg(), cohort, values, [1] * 4, heat) == [0.5, 0.25, 0]
    assert moved(FedSubAvg(), cohort, values, [1] * 4, heat) == pytest.approx([0.5, 6.25, 0])


def test_fewer_holders_than_expected_move_a_row_as_fedsubavg_does() -> None:
    """Three of four clients hold row 1, and one of a cohort of two: e = 3/2, k = 1."""
    heat = heat_of(index_of([{0, 1}, {0, 1}, {0, 1}, {0}]), torch.ones(4))
    cohort, values = [{0, 1}, {0}], (1.0, 3.0, 2.0)
    found = moved(BoundedSubAvg(), cohort, values, [1, 1], heat)
    assert found == pytest.approx([1.5, 3.0 / 1.5, 0])
    assert found == pytest.approx(moved(FedSubAvg(), cohort, values, [1, 1], heat))


def test_with_everybody_present_it_is_fedsubavg() -> None:
    held, weights = [{0, 1}, {1}, {0, 2}], [1, 2, 5]
    heat = heat_of(index_of(held), torch.tensor(weights))
    values = (0.5, -1.0, 2.0, 3.0, 4.0)
    found = moved(BoundedSubAvg(), held, values, weights, heat)
    assert found == pytest.approx(moved(FedSubAvg(), held, values, weights, heat))


def test_a_row_that_nobody_present_holds_stays() -> None:
    heat = heat_of(index_of([{0}, {0, 1}, {1, 2}]), torch.ones(3))
    assert moved(BoundedSubAvg(), [{0}], (1.0,), [1], heat) == [1.0, 0, 0]


def test_weights_count_on_both_sides() -> None:
    """Row 1 has heat 4 of 12, so p = 1/3. Its holder has 4 of 8 of the cohort's weight, s = 1/2."""
    heat = heat_of(index_of([{0, 1}, {0}, {0}]), torch.tensor([4, 4, 4]))
    assert moved(BoundedSubAvg(), [{0, 1}, {0}], (2.0, 3.0, 4.0), [4, 4], heat) == [3.0, 3.0, 0]
    # If the others weigh more, s = 1/5 < p: FedSubAvg, 3 · 1/5 · 3.
    heat = heat_of(index_of([{0, 1}, {0}, {0, 1}]), torch.tensor([1, 4, 1]))
    found = moved(BoundedSubAvg(), [{0, 1}, {0}], (2.0, 3.0, 4.0), [1, 4], heat)
    assert found == pytest.approx([18 / 5, 9 / 5, 0])


ROWS = 4
sets = st.lists(st.sets(st.integers(0, ROWS - 1), min_size=1), min_size=1, max_size=5)


@given(held=sets, data=st.data())
def test_no_row_moves_further_than_its_holders_moved_it(held, data) -> None:
    """Whatever the weights are, and whatever heat is claimed."""
    sizes = [len(x) for x in held]
    number = st.floats(-100, 100)
    values = data.draw(st.lists(number, min_size=sum(sizes), max_size=sum(sizes)))
    weight = st.floats(0.1, 50)
    weights = data.draw(st.lists(weight, min_size=len(held), max_size=len(held)))
    counts = data.draw(st.lists(st.floats(1e-3, 100), min_size=ROWS, max_size=ROWS))
    heat = Heat(torch.arange(ROWS), torch.tensor(counts, dtype=EXACT), 100.0)
    found = moved(BoundedSubAvg(), held, values, weights, heat, ROWS)
    ids = [row for rows in held for row in sorted(rows)]
    for row in range(ROWS):
        own = [x for x, its in zip(values, ids, strict=True) if its == row]
        slack = 1e-9 * max((abs(x) for x in own), default=0)
        assert min(own, default=0) * (min(own, default=0) < 0) - slack <= found[row]
        assert found[row] <= max(own, default=0) * (max(own, default=0) > 0) + slack


@pytest.mark.parametrize("holders", [1, 2, 3, 5])
@pytest.mark.parametrize("cohort", [1, 2, 4, 5])
def test_the_expected_move_is_the_truncated_mean(holders: int, cohort: int) -> None:
    """E[min(k / e, 1)] times the holders' mean, over all cohorts of 5 clients."""
    clients = 5
    heat = Heat(torch.tensor([0]), torch.tensor([float(holders)]).double(), float(clients))
    moves = [2.0**i for i in range(holders)]  # the first clients hold the row, and disagree
    found = []
    for chosen in itertools.combinations(range(clients), cohort):
        present = [i for i in chosen if i < holders]
        held = [{0} if i < holders else set() for i in chosen]
        values = [moves[i] for i in present]
        found.append(moved(BoundedSubAvg(), held, values, [1] * cohort, heat)[0])
    short, _, _ = make_bounded.moments(
        make_bounded.RULES["bounded"], clients, holders, cohort
    )  # fmt: skip
    expected = short * sum(moves) / holders
    assert sum(found) / len(found) == pytest.approx(expected)
    if cohort == clients or holders == clients:
        assert short == pytest.approx(1)  # unbiased, as FedSubAvg is
    if cohort * holders <= clients:
        chance = 1 - make_bounded.chances(clients, holders, cohort)[0]
        assert short == pytest.approx(chance)


def test_its_correction_is_what_it_steps_by() -> None:
    held, share = [{0, 1}, {1}], torch.tensor([0.25, 0.75], dtype=EXACT)
    index = {"t": index_of(held)}
    heat = {"t": Heat(torch.tensor([0, 1]), torch.tensor([5.0, 10.0]).double(), 10.0)}
    factors = BoundedSubAvg().correction(index, heat, EXACT, share)
    assert factors["t"].tolist() == [2, 1, 1]  # 1 / max(1/2, 1/4), 1 / max(1, 1)
    heat = {"t": Heat(torch.tensor([0, 1]), torch.tensor([1.0, 1.0]).double(), 10.0)}
    factors = BoundedSubAvg().correction(index, heat, EXACT, share)
    assert factors["t"].tolist() == [4, 1, 1]  # 1 / max(1/10, 1/4), 1 / max(1/10, 1)
    assert BoundedSubAvg().correction(index, heat, EXACT)["t"].tolist() == [10, 10, 10]
    assert BoundedSubAvg().largest_correction(heat) == 10


def test_a_secure_sum_is_not_enough() -> None:
    with pytest.raises(PlanError, match="nearest to boundedsubavg is fedsubavg with cap=cohort"):
        Privacy.of("index").check(BoundedSubAvg(), 50)
    with pytest.raises(PlanError, match=r"use one of fedadam, fedavg, fedprox, fedsubavg\.$"):
        Privacy.of("index").check(RowAdam(), 50)


def test_a_deployment_with_secure_sums_says_what_to_use_instead() -> None:
    pytest.importorskip("safetensors")
    from deployed import CONFIG, examples, task_of

    config = CONFIG | {"algorithm": "boundedsubavg", "privacy": "index"}
    with pytest.raises(PlanError, match="nearest to boundedsubavg is fedsubavg with cap=cohort"):
        make_contract(task_of(examples()), config)


def test_the_table_of_the_page_is_the_scripts() -> None:
    text = make_bounded.PAGE.read_text("utf-8")
    assert make_bounded.written(text) == text
