"""Centralised anchors on data whose right answer is known."""

from __future__ import annotations

from dataclasses import replace
from math import log

import numpy as np
import pytest
import torch

from fedrows.data.federation import FederatedData
from fedrows.data.leave_one_out import leave_one_out
from fedrows.errors import DataError
from fedrows.measure import ease as ease_module
from fedrows.measure import ranking_mf as ranking_module
from fedrows.measure.adam_mf import adam_mf
from fedrows.measure.all_anchors import TITLES, anchors, counted
from fedrows.measure.als import als
from fedrows.measure.anchors import logistic, measure
from fedrows.measure.ease import ease
from fedrows.measure.ranking_mf import ranking_mf


def grid(score: np.ndarray, seed: int = 0) -> FederatedData:
    """Every client meets every item once; the label is drawn from a score (clients, items)."""
    random = np.random.default_rng(seed)
    clients, items = score.shape
    client, item = (x.reshape(-1) for x in np.meshgrid(range(clients), range(items), indexing="ij"))
    split = random.random(clients * items)
    return FederatedData.build(
        client=client,
        ids={"item": item},
        label=random.random(score.size) < 1 / (1 + np.exp(-score.reshape(-1))),
        test=split < 0.25,
        validation=(split >= 0.25) & (split < 0.4),
        tables={"item": items},
        target=("item", None),
    )


def factored() -> FederatedData:
    """Two kinds of clients and of items; a client likes its own kind: no bias tells anything."""
    kind = np.where(np.arange(80) % 2, 1.0, -1.0)
    return grid(3 * np.outer(kind, kind[:60]))


def biased() -> FederatedData:
    return grid(np.linspace(-2, 2, 60)[:, None] + np.linspace(-3, 3, 50)[None])


def test_logistic_finds_biases():
    data = biased()
    item = torch.linspace(-3, 3, 50)
    fitted = logistic(data)(data.test).double()
    true = torch.linspace(-2, 2, 60)[data.test.owner] + item[data.targets(data.test)]
    assert float(torch.corrcoef(torch.stack([fitted, true]))[0, 1]) > 0.95
    assert measure(data, logistic(data))["test_auc"] > 0.85


def test_logistic_by_hand():
    """One client, one item, three of four positive, and so much ridge that nothing moves."""
    data = FederatedData.build(
        client=np.zeros(5),
        ids={"item": np.zeros(5, dtype=int)},
        label=np.array([1, 1, 1, 0, 1]),
        test=np.array([0, 0, 0, 0, 1]),
        tables={"item": 1},
        target=("item", None),
    )
    assert logistic(data, ridge=1e9)(data.test).tolist() == pytest.approx([log(3)])
    assert logistic(data, ridge=1.0)(data.test).tolist() == pytest.approx([log(3)])


@pytest.mark.parametrize("fit", [als, adam_mf])
def test_factors_find_what_biases_cannot(fit):
    data = factored()
    assert measure(data, logistic(data))["test_auc"] < 0.55
    scorer = (
        fit(data, factors=2) if fit is als else fit(data, factors=2, epochs=15, batch=500, lr=0.1)
    )
    found = measure(data, scorer)
    assert found["test_auc"] > 0.9
    assert found["test_gauc"] > 0.9
    assert found["test_loss"] < 0.35


@pytest.mark.parametrize("fit", [als, adam_mf])
def test_the_same_seed_gives_the_same_scores(fit):
    data = factored()
    one, same, other = (fit(data, factors=2, seed=seed)(data.test) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_ease_is_its_regressions():
    """Column m of B is the ridge regression of item m on all other items."""
    data = factored()
    x = torch.zeros(80, 60, dtype=torch.float64)
    liked = data.train.label > 0.5
    x[data.train.owner[liked], data.targets(data.train)[liked]] = 1
    scores = ease(data, ridge=7.0)(data.test)
    item = data.targets(data.test)
    for place in (0, 100, 700):
        m, client = int(item[place]), int(data.test.owner[place])
        others = torch.tensor([i for i in range(60) if i != m])
        z = x[:, others]
        weights = torch.linalg.solve(z.T @ z + 7.0 * torch.eye(59).double(), z.T @ x[:, m])
        assert float(scores[place]) == pytest.approx(float(z[client] @ weights), abs=1e-4)
    assert measure(data, ease(data), logits=False)["test_gauc"] > 0.9


def test_all_of_them_and_what_does_not_fit(monkeypatch):
    data, said = biased(), []
    found = anchors(data, said.append)
    assert list(found) == list(TITLES)
    assert "test_loss" not in found["ease"]
    assert not said
    monkeypatch.setattr(ease_module, "MOST", 100)
    assert list(anchors(data, said.append)) == ["logistic", "als", "adam-mf"]
    assert said == [
        "EASE has matrices of 50 × 50 and 60 × 50 numbers on data, which is too much: leave it out."
    ]
    with pytest.raises(DataError, match=r"examples of data have no target, but anchors are fitted"):
        anchors(replace(data, target=None))
    with pytest.raises(DataError, match=r"have numbers as labels"):
        anchors(replace(data, labels="numbers"))


def test_a_run_shows_them_beside_its_own_numbers(tmp_path, capsys):
    import json

    from fedrows.__main__ import main

    words = "run synthetic --rounds 2 --clients 60 --items 20 --clients-per-round 5 --anchors"
    assert main([*words.split(), "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "anchors.json").read_text())
    assert list(found["anchors"]) == list(TITLES)
    assert list(found["baselines"]) == ["prior", "client", "item", "both"]
    assert f"{found['anchors']['als']['test_auc']:.3f}" in shown
    assert all(title in shown for title in TITLES.values())
    titles = next(line for line in shown.splitlines() if line.startswith("Anchor "))
    assert "test AUC" in titles
    assert "test RMSE" not in titles  # nothing here has one
    report = (tmp_path / "run" / "report.html").read_text()
    for name, title in (("als", "ALS"), ("ease", "EASE")):
        assert f"{title} {found['anchors'][name]['test_gauc']:.3f}" in report
    assert f"counting {found['baselines']['both']['test_auc']:.3f}" in report
    assert main([*words.split()[:-1], "--out", str(tmp_path / "run"), "--overwrite"]) == 0
    assert not (tmp_path / "run" / "anchors.json").exists()  # those were of the run before
    assert "EASE" not in (tmp_path / "run" / "report.html").read_text()


def test_a_comparison_shows_them_too(tmp_path, capsys):
    from fedrows.__main__ import main

    words = "compare synthetic --algorithms fedavg,fedsubavg --seeds 0 --rounds 2 --clients 60"
    words += " --items 20 --clients-per-round 5 --anchors"
    assert main([*words.split(), "--out", str(tmp_path / "two")]) == 0
    assert TITLES["ease"] in capsys.readouterr().out
    assert "EASE" in (tmp_path / "two" / "report.html").read_text()


def test_rankings_have_anchors_that_beat_popularity():
    """Clients like the items of one half; popularity cannot know which."""
    rng = np.random.default_rng(4)
    half = np.repeat(rng.integers(0, 2, 60), 12)
    item = np.concatenate([rng.choice(40, 12, replace=False) for _ in range(60)]) + 40 * half
    data = leave_one_out(client=np.repeat(np.arange(60), 12), item=item)
    found, plain = anchors(data), counted(data, 100)
    assert list(found) == ["ease", "adam-mf"]
    assert list(plain) == ["random", "popularity"]
    for name, metrics in found.items():
        assert set(plain["popularity"]) <= set(metrics), name
        assert metrics["test_mrr"] > 1.15 * plain["popularity"]["test_mrr"], name
    assert anchors(data) == found


def test_a_ranking_mf_scores_by_its_factors_and_the_best_epoch_wins(monkeypatch):
    data = leave_one_out(client=np.repeat(np.arange(20), 6), item=np.arange(120) % 30)
    model = ranking_mf(data, factors=3, epochs=2)
    some, items = torch.tensor([1, 0]), torch.tensor([[4, 7, 9]])
    owner = torch.tensor([5, 3])
    score = model.scorer(owner)
    by_hand = [
        [float(model.bias[m] + model.p[owner[i]] @ model.q[m]) for m in items[0]] for i in some
    ]
    assert torch.allclose(score(some, items), torch.tensor(by_hand), atol=1e-6)
    assert torch.allclose(score(some, items.expand(2, -1)), score(some, items), atol=1e-6)
    monkeypatch.setattr(ranking_module, "PATIENCE", 100)
    values = iter([0.1, 0.3, 0.2])
    monkeypatch.setattr(ranking_module, "CHOOSES", lambda ranks: torch.full((1,), next(values)))
    third = ranking_mf(data, factors=3, epochs=3)
    values = iter([0.1, 0.3])
    assert torch.equal(third.p, ranking_mf(data, factors=3, epochs=2).p)
