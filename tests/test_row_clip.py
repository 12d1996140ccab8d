"""Bounds on single clients, against loops over rows, and against clients that lie."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_robust import CLOSE, cohorts, column, index_of, numbers, uploads

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.robust import WINDOW, RowClip
from fedrows.rows.heat import ceiling, heat_of, lower_quantile
from fedrows.rows.params import Params, Submodels, total
from fedrows.simulation import Simulation


def slow_row_clip(rounds: list[Submodels], factors: list[list[float]], quantile: float) -> list:
    """One entry after another: the rows of table t, round by round."""
    said: dict[tuple[str, str], list[float]] = defaultdict(list)

    def bound(name: tuple[str, str], by_client: list[float]) -> float:
        said[name] += [x for x in by_client if x > 0]
        known = sorted(said[name])
        return known[math.floor(quantile * (len(known) - 1) + 1e-9)] if known else math.inf

    results = []
    for update, factor in zip(rounds, factors, strict=True):
        rows, index = update.rows["t"], update.index["t"]
        own = [range(index.splits[k], index.splits[k + 1]) for k in range(index.clients)]
        sent = [float(row.norm()) for row in rows]
        moved = [n * f for n, f in zip(sent, factor, strict=True)]
        scale = [1.0] * len(sent)
        for name, sizes in (("sent", sent), ("moved", moved)):
            now = [x * s for x, s in zip(sizes, scale, strict=True)]
            most = bound(("largest", name), [max((now[i] for i in its), default=0) for its in own])
            scale = [s * min(1, most / x) if x else s for s, x in zip(scale, now, strict=True)]
        for name, sizes in (("sent", sent), ("moved", moved)):
            means = []
            for its in own:
                squares = [(sizes[i] * scale[i]) ** 2 for i in its if sent[i] > 0]
                means.append(math.sqrt(sum(squares) / len(squares)) if squares else 0.0)
            most = bound(("mean", name), means)
            for its, mean in zip(own, means, strict=True):
                for i in its:
                    scale[i] *= min(1, most / mean) if mean else 1
        results.append(rows * torch.tensor(scale, dtype=torch.float64)[:, None])
    return results


@given(st.lists(cohorts, min_size=1, max_size=4), st.sampled_from([0.5, 0.9, 1.0]))
def test_clipping_rows_is_the_loop_over_rows(held, quantile):
    clip = RowClip(quantile, ["t", "u", "bias", "w"])
    rounds = [uploads(one, seed=7 * i) for i, one in enumerate(held)]
    shares = [torch.arange(1, len(one) + 1).double() / sum(range(len(one) + 1)) for one in held]
    corrections = [{t: numbers(len(x.ids)).abs() * 9 for t, x in r.index.items()} for r in rounds]
    spread = [r.index["t"].spread(s) for r, s in zip(rounds, shares, strict=True)]
    factors = [(s * c["t"]).tolist() for s, c in zip(spread, corrections, strict=True)]
    expected = slow_row_clip(rounds, factors, quantile)
    for update, share, correction, rows in zip(rounds, shares, corrections, expected, strict=True):
        torch.testing.assert_close(clip.clip(update, share, correction).rows["t"], rows, **CLOSE)


@given(
    st.lists(st.floats(0.01, 1), min_size=11, max_size=30),
    st.floats(0.01, 1e30),
    st.floats(1e-6, 1e6),
    st.integers(1, 5),
)
def test_a_liar_moves_a_row_no_further_than_an_honest_client(honest, lie, weight, rounds):
    """Whatever it sends and claims: one of eleven or more, round after round."""
    clip, values = RowClip(0.9, ["t"]), [*honest, lie]
    weights = torch.tensor([1.0] * len(honest) + [weight], dtype=torch.float64)
    share = weights / weights.sum()
    for _ in range(rounds):
        rows = clip.clip(column(*values), share).rows["t"].flatten()
        assert float(rows[-1]) <= max(honest) * (1 + 1e-12)
        assert float(rows[-1] * share[-1]) <= max(honest) * float(share[0]) * (1 + 1e-12)


def test_a_liar_moves_all_its_rows_no_further_on_average():
    """Rows of honest clients differ by a factor of ten; a liar sends ten times each of them."""
    clip, held = RowClip(0.75, ["t"]), [set(range(5))] * 10
    update = uploads(held, width=1)
    update.rows["t"] = torch.tensor([1.0, 0.1, 0.1, 0.1, 0.1], dtype=torch.float64).repeat(10)[
        :, None
    ]
    update.rows["t"][-5:] *= -10
    share = torch.full((10,), 0.1, dtype=torch.float64)
    only = Submodels({"t": update.index["t"]}, {"t": update.rows["t"]}, {})
    lie = clip.clip(only, share).rows["t"][-5:].flatten()
    honest = math.sqrt((1 + 4 * 0.01) / 5)
    assert float(lie.square().mean().sqrt()) <= honest * (1 + 1e-12)
    assert float(lie.abs().max()) <= 1


def test_the_window_has_the_last_thousand_clients():
    clip = RowClip(0.5, ["t"])
    share = torch.full((100,), 0.01, dtype=torch.float64)
    for value in range(1, 13):  # twelve rounds of a hundred clients
        clip.clip(column(*[float(value)] * 100), share)
    assert clip.windows["largest-sent/t"].tolist() == [
        float(v) for v in range(3, 13) for _ in range(100)
    ]
    assert len(clip.windows["largest-sent/t"]) == WINDOW


def test_who_sends_nothing_has_no_say():
    clip = RowClip(0.5, ["t"])
    share = torch.full((5,), 0.2, dtype=torch.float64)
    rows = clip.clip(column(0.0, 0.0, 0.0, 2.0, 8.0), share).rows["t"].flatten()
    assert rows.tolist() == [0, 0, 0, 2, 2]
    nothing = RowClip(0.5, ["t"]).clip(column(0.0, 0.0), share[:2])
    assert nothing.rows["t"].flatten().tolist() == [0, 0]


def federation() -> FederatedData:
    """Twenty clients with eight examples each, over fifteen rows."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(20), 8)
    ids, label = draw.zipf(1.3, len(client)).clip(max=14), draw.random(len(client)) < 0.5
    test = np.zeros(len(client), dtype=bool)
    return FederatedData.build(
        client=client, ids={"t": ids}, label=label, test=test, tables={"t": 15}
    )


def test_a_bounded_run_resumes_exactly():
    data = federation()
    plan = Plan(rounds=6, clients_per_round=5, row_clip=0.9, weight_quantile=0.8, device="cpu")

    def simulation() -> Simulation:
        return Simulation(data, Logistic(data), FedSubAvg(cap="cohort"), plan)

    whole, first, second = simulation(), simulation(), simulation()
    for _ in whole:
        pass
    for progress in first:
        if progress.round == 3:
            break
    second.restore_({name: x.clone() for name, x in first.tensors().items()}, 3, 0.0)
    for _ in second:
        pass
    for name, x in whole.tensors().items():
        assert torch.equal(x.nan_to_num(-1), second.tensors()[name].nan_to_num(-1)), name


# Example counts


def test_example_counts_are_capped_at_a_power_of_two():
    counts = torch.tensor([3, 9, 20, 33, 40, 41, 50, 60, 70, 100_000])
    assert ceiling(counts, 0.9) == 128  # the ninth of ten is 70
    assert ceiling(counts, 0.5) == 64
    assert ceiling(counts, None) == math.inf
    assert ceiling(counts[:0], 0.9) == math.inf
    assert ceiling(torch.tensor([165, 100_000]), 0.9) == 256  # of two, the smaller


@given(st.lists(st.integers(1, 500), min_size=10, max_size=50), st.integers(1, 10**6))
def test_one_liar_does_not_raise_the_cap(honest, lie):
    capped = ceiling(torch.tensor([*honest, lie]), 0.9)
    assert capped <= 2 * max(honest)


def test_a_lower_quantile_is_never_the_largest_of_several():
    for count in range(2, 30):
        values = torch.arange(count).double()
        assert float(lower_quantile(values, 0.9)) < count - 1
    assert float(lower_quantile(values, 1.0)) == count - 1


def test_the_cap_of_a_cohort_is_its_size():
    assert FedSubAvg(cap="cohort").for_cohorts(50) == FedSubAvg(cap=50.0)
    assert FedSubAvg(cap=7.0).for_cohorts(50) == FedSubAvg(cap=7.0)
    with pytest.raises(PlanError, match="cap is 'all', but must be a number"):
        FedSubAvg(cap="all")


def test_a_lone_holder_moves_its_row_as_far_as_it_moved_it():
    """With a correction of at most K; of four clients one holds row 1."""
    heat = {"t": heat_of(index_of([{0, 1}] + [{0}] * 99), torch.ones(100))}
    update = column(0.5, 0.25, 0.5, 0.5, 0.5, held=[{0, 1}, {0}, {0}, {0}])
    params = Params({"t": torch.zeros(2, 1).double()}, {})
    ones = torch.ones(4, dtype=torch.float64)
    algorithm = FedSubAvg(cap="cohort").for_cohorts(4)
    algorithm.step_(params, {}, total(update, ones, ones), heat, None)
    assert params.tables["t"].flatten().tolist() == [0.5, 0.25]


@pytest.mark.parametrize("bound", ["row_clip", "weight_quantile"])
def test_bounds_need_to_see_single_clients(bound):
    data = federation()
    plan = Plan(rounds=1, clients_per_round=8, device="cpu", **{bound: 0.9})
    with pytest.raises(PlanError, match=f"{bound.replace('_', '-')} is 0.9, but with privacy"):
        Simulation(data, Logistic(data), FedSubAvg(), plan, Privacy.of("index"))
