"""Fresh negatives: what clients draw, what they train on, and how hot it makes a row."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrows import FederatedData, Plan, Simulation, simulate
from fedrows.algorithm import Round
from fedrows.algorithms.centralsgd import CentralSGD
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.algorithms.scaffold import Scaffold
from fedrows.data.batches import batches, local_data
from fedrows.data.fresh_negatives import FreshNegatives
from fedrows.data.unheld import draw_unheld
from fedrows.errors import DataError, PlanError
from fedrows.models import mf, sasrec
from fedrows.privacy.options import Privacy
from fedrows.rows.index import index_and_slots
from fedrows.seeds import bits
from fedrows.simulator.fast_paths import PLAIN, FastPaths, fastest
from fedrows.simulator.simulated_fleet import SimulatedFleet
from tests.ranked import positives

PLAN = Plan(
    rounds=3, clients_per_round=4, local_steps=2, batch_size=3, negatives_pool=7, device="cpu"
)


def slow_draw(held: set[int], key: int, count: int, low: int, high: int) -> list[int]:
    """The twin of `draw_unheld` for one client."""
    free = [item for item in range(low, high) if item not in held]

    words = bits(torch.tensor(key), torch.arange(4 * count + 64)).tolist()
    random = words.__getitem__
    if len(free) < 4 * count:
        return sorted(free[r] for r in sorted(range(len(free)), key=random)[:count])
    ranks: list[int] = []
    for counter in range(count + count // 2 + 64):
        rank = int(((random(counter) >> 16) & (2**48 - 1)) * 2.0**-48 * len(free))
        if rank not in ranks:
            ranks.append(rank)
    return sorted(free[rank] for rank in ranks[:count])


@given(st.data())
def test_pools_are_those_of_a_slow_loop(data):
    low = data.draw(st.integers(0, 1))
    rows = data.draw(st.integers(low + 1, 60))
    count = data.draw(st.integers(1, 12))
    span = st.integers(low, rows - 1)
    some = st.sets(span, max_size=rows - low - 1)
    all_but_few = st.sets(span, min_size=1, max_size=3).map(
        lambda free: set(range(low, rows)) - free
    )
    held = data.draw(st.lists(some | all_but_few, min_size=1, max_size=4))
    owner = np.repeat(np.arange(len(held)), [len(one) for one in held])
    ids = np.array([item for one in held for item in sorted(one)], dtype=np.int64)
    index, _ = index_and_slots(len(held), [owner], [ids])
    keys = torch.tensor([data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in held])

    pools = draw_unheld(index, keys, count, (low, rows))

    for k, one in enumerate(held):
        drawn = pools.ids[pools.splits[k] : pools.splits[k + 1]].tolist()
        assert drawn == slow_draw(one, int(keys[k]), count, low, rows)
        assert len(drawn) == min(count, rows - low - len(one))
        assert not one & set(drawn)


def test_every_item_that_a_client_lacks_is_drawn_as_often():
    index, _ = index_and_slots(1, [np.zeros(5, dtype=np.int64)], [np.array([0, 3, 4, 10, 29])])
    for count in (3, 20):  # by draws, and by a shuffle
        keys = torch.arange(3_000)
        index_of_all = index.select(torch.zeros(3_000, dtype=torch.int64))
        drawn = torch.bincount(draw_unheld(index_of_all, keys, count, (0, 30)).ids, minlength=30)
        free = torch.ones(30, dtype=torch.bool)
        free[[0, 3, 4, 10, 29]] = False
        assert not drawn[~free].any()
        expected = 3_000 * count / 25
        chi_square = float(((drawn[free] - expected) ** 2 / expected).sum())
        assert chi_square < 60  # 24 degrees of freedom: 6 in 100,000 pass it


def opened(data: FederatedData, cohort: list[int], number: int = 1):
    """A round of some clients: their fleet, and the index."""
    build = sasrec.build if "history" in data.fields else mf.build
    fleet = SimulatedFleet(build(data), FedSubAvg(), data, PLAN)
    clients = torch.tensor(cohort)
    return fleet, fleet.open_round(Round(number, 0.1, data.clients, 1.0, clients)).index


def stream_of(data: FederatedData, cohort: list[int], plan: Plan = PLAN):
    """The ids of all candidates that clients meet in round 1: (steps, K, B, 1 + r)."""
    fleet, index = opened(data, cohort)
    clients = torch.tensor(cohort)
    local = replace(local_data(fleet.data, clients), pools=fleet.negatives.pools(clients))
    steps = batches(local, index, plan, 1)
    return torch.stack([index["item"].ids[batch.ids["item"]] for batch in steps])


@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("way", ["draw", "epoch"])
def test_column_0_is_a_positive_and_the_others_are_of_the_pool(history, way):
    data = positives(history=history)
    plan = replace(PLAN, batches=way)
    _, index = opened(data, [1, 4, 7])
    candidates = stream_of(data, [1, 4, 7], plan)
    assert candidates.shape[2:] == (3, 5)
    for k, client in enumerate([1, 4, 7]):
        own = data.train.of(torch.tensor([client])).ids["item"].tolist()
        rows = index["item"].ids[index["item"].splits[k] : index["item"].splits[k + 1]].tolist()
        assert rows[: len(own)] == sorted(own)
        pool = set(rows[len(own) :])
        assert len(pool) == 7
        assert not pool & set(own)
        assert set(candidates[:, k, :, 0].flatten().tolist()) <= set(own)
        negatives = set(candidates[:, k, :, 1:].flatten().tolist())
        assert len(negatives) > 3
        assert negatives <= pool
        assert 0 not in rows or not history  # id 0 of a padded table is no item


@pytest.mark.parametrize("way", ["draw", "epoch"])
def test_a_client_draws_the_same_in_any_cohort(way):
    data, plan = positives(), replace(PLAN, batches=way)
    together = stream_of(data, [0, 3, 5, 9], plan)
    for k, client in enumerate([0, 3, 5, 9]):
        assert torch.equal(stream_of(data, [client], plan)[:, 0], together[:, k])


def test_validation_and_test_items_are_drawn_as_often_as_others():
    data = positives(users=30)
    fleet, _ = opened(data, [0])
    every = torch.arange(30)
    held, drawn = data.index["item"], 0
    last = data.test.ids["item"]
    for number in range(300):
        pool = fleet.negatives.draw(held, every, number)
        drawn += int((pool.ids == last[pool.owner]).sum())
    expected = 300 * 30 * 7 / 34  # 40 items, of which a client holds 6
    assert abs(drawn - expected) < 5 * np.sqrt(expected)


@pytest.mark.parametrize("weighting", ["uniform", "examples"])
def test_heat_is_the_expected_weight_of_those_who_have_a_row(weighting):
    data = positives(items=24, each=10)
    keep = np.arange(len(data.train)) % 5 > 0  # clients of different sizes
    data = FederatedData.build(
        client=data.train.owner.numpy()[keep],
        ids={"item": data.train.ids["item"].numpy()[keep]},
        label=np.ones(keep.sum()),
        test=np.zeros(keep.sum()),
        tables={"item": 30},  # items that nobody holds as well
        target=("item", None),
        labels="ranking",
    )
    negatives = FreshNegatives(data, PLAN)
    weights, every = data.weights(weighting), torch.arange(data.clients)
    found = negatives.heat(data.index["item"], weights)
    total = torch.zeros(30, dtype=torch.float64)
    for number in range(200):
        rows = negatives.rows(data.index["item"], every, number)
        total.index_add_(0, rows.ids, rows.spread(weights))
    assert torch.allclose(found.of(torch.arange(30)), total / 200, rtol=0.15)
    slow = [
        sum(
            float(weights[i]) * (1 if m in held else min(7, 30 - len(held)) / (30 - len(held)))
            for i, held in enumerate(
                data.index["item"]
                .ids[data.index["item"].splits[i] :][: int(data.index["item"].lengths[i])]
                .tolist()
                for i in range(data.clients)
            )
        )
        for m in range(30)
    ]
    assert found.of(torch.arange(30)).tolist() == pytest.approx(slow)
    assert found.rest == pytest.approx(slow[29])


def test_rounds_count_the_bytes_of_the_pool():
    data = positives()
    fleet = simulate(data, mf.build(data, factors=3), "fedavg", **vars(PLAN))
    line = fleet.history[-1]
    rows = 6 + 7  # six training items, a pool of seven
    assert line["bytes_down"] == 4 * (rows * 4 + 1)  # three factors and a bias; the global bias
    assert line["bytes_up"] == 4 * (rows * 4 + 1) + 4 * rows


def test_a_client_that_holds_every_item_is_refused():
    data = FederatedData.build(
        client=np.array(["a", "b", "b", "b"]),
        ids={"item": np.array([0, 0, 1, 2])},
        label=np.ones(4),
        test=np.zeros(4),
        tables={"item": 3},
        target=("item", None),
        labels="ranking",
    )
    with pytest.raises(DataError, match="Client 'b' of data holds all 3 items of table 'item'"):
        FreshNegatives(data, PLAN)


def test_what_cannot_be_ranked_is_refused():
    columns = {"client": np.zeros(2), "test": np.zeros(2), "tables": {"item": 3}}
    ids = {"item": np.arange(2)}
    with pytest.raises(DataError, match="name the field that holds the item"):
        FederatedData.build(ids=ids, label=np.ones(2), labels="ranking", **columns)
    with pytest.raises(DataError, match="ranking labels are 1, because every example"):
        FederatedData.build(
            ids=ids, label=np.arange(2), labels="ranking", target=("item", None), **columns
        )
    data = positives()
    with pytest.raises(PlanError, match=r"scaffold keeps a state .* choose another algorithm"):
        Simulation(data, mf.build(data), Scaffold(), PLAN)
    with pytest.raises(PlanError, match="no mode of privacy is made for"):
        Simulation(data, mf.build(data), FedSubAvg(), PLAN, Privacy(privacy="index", heat="secure"))


def test_pooled_data_draw_from_all_items():
    data = positives(users=30)
    run = Simulation(data, mf.build(data), CentralSGD(), replace(PLAN, rounds=30, lr=2.0))
    before = run.evaluate()
    for _ in run:
        pass
    assert run.evaluate()["train_loss"] < before["train_loss"] - 0.1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("way", ["draw", "epoch"])
@pytest.mark.parametrize("history", [False, True])
def test_recorded_training_on_a_gpu_gives_the_same(way, history):
    data = positives(history=history)
    build = sasrec.build if history else mf.build
    plan = replace(PLAN, rounds=6, batches=way, device="cuda", dtype="float64")
    ends = []
    on_cpu = replace(plan, device="cpu")
    for chosen, paths in ((plan, None), (plan, PLAIN), (on_cpu, PLAIN)):
        run = Simulation(data, build(data), FedSubAvg(), chosen, paths=paths)
        for _ in run:
            pass
        assert not run.notes
        ends.append(run.progress.params.tables["item"].cpu())
    assert torch.allclose(ends[0], ends[1], atol=1e-9)
    assert torch.allclose(ends[0], ends[2], atol=1e-9)


def test_what_a_gpu_takes_for_ranking(monkeypatch):
    monkeypatch.setattr(Plan, "torch_device", property(lambda plan: torch.device("cuda")))
    monkeypatch.setattr("fedrows.nn.kernels.missing", lambda: None)
    data = positives(history=True)
    paths = fastest(sasrec.build(data), FedSubAvg(), data, PLAN)
    assert paths == FastPaths(cuda_graphs=True, select_kernel=True)
