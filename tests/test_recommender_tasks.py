"""The tasks whose models have a row of the client's own: what they read, and where they start."""

from __future__ import annotations

from pathlib import Path

import pytest
import test_amazon
import test_datasets
import torch
from torch import Tensor

import fedrows
from fedrows import catalogue
from fedrows.cli import main
from fedrows.data.federation import FederatedData
from fedrows.data.recent_labels import with_labels_beside, with_recent_labels
from fedrows.datasets import amazon, amazon_wide, movielens, movielens_mf
from fedrows.errors import DataError, ModelError
from fedrows.measure.trivial_baselines import baselines
from fedrows.models import din, din_wide
from fedrows.plan import Plan
from fedrows.runs.settings import presets
from fedrows.simulation import Simulation


def test_movielens_mf_has_a_row_for_every_user_and_movie(tmp_path: Path) -> None:
    file = test_datasets.made(tmp_path)
    options = movielens_mf.MovieLensMFOptions(test_share=0.0, validation=0.0)
    data = movielens_mf.read(file, options)
    assert data.tables == {"user": 3, "item": 3}
    assert data.local == {"user"}
    assert data.train.ids["user"].tolist() == [0, 0, 1, 2]
    assert data.train.ids["item"].tolist() == [2, 1, 2, 0]  # movies 9, 661, 1193 → 0, 1, 2
    assert data.train.label.tolist() == [1, 0, 1, 0]
    assert data.target == ("item", None)


def test_movielens_mf_tests_on_the_papers_examples(tmp_path: Path) -> None:
    users = "".join(f"{u}::M::25::0::0\n" for u in range(1, 11))
    ratings = "".join(f"{u}::{m}::4::0\n" for u in range(1, 11) for m in range(10))
    file = test_datasets.made(tmp_path, users, ratings)
    paper = movielens.read(file, movielens.MovieLensOptions())
    data = movielens_mf.read(file, movielens_mf.MovieLensMFOptions())
    assert (len(data.train), len(data.validation), len(data.test)) == (72, 8, 20)
    first = paper.groups["weight"]["movie"][0]
    assert (paper.targets(paper.test) - first).tolist() == data.targets(data.test).tolist()
    assert paper.test.splits.tolist() == data.test.splits.tolist()


def test_amazon_wide_reads_the_same_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    (tmp_path / "amazon").mkdir()
    test_amazon.made(tmp_path / "amazon", "authors", test_amazon.AUTHORS)
    data = amazon_wide.TASK.load(amazon_wide.AmazonWideOptions(test_share=0.0))
    paper = amazon.TASK.load(amazon.AmazonOptions(test_share=0.0))
    assert test_amazon.rows(data.train) == test_amazon.rows(paper.train)
    assert (data.name, data.local) == ("amazon-wide", {"user"})
    assert {n: tuple(x.shape) for n, x in data.train.numbers.items()} == {
        "lately": (7, 3),
        "beside": (7, 1),
    }
    without = amazon_wide.AmazonWideOptions(test_share=0.0, lately=False)
    assert amazon_wide.TASK.load(without).train.numbers == {}


@pytest.fixture
def clicks() -> FederatedData:
    import test_models

    return test_models.clicks()


def test_the_wide_part_starts_alone(clicks: FederatedData) -> None:
    model = din_wide.build(clicks, 3)
    params = model.start()
    assert params.tables["user"].shape == (3, 19)
    assert float(params.tables["item"][:, 18].abs().max()) == 0
    fields = clicks.train.fields(torch.arange(9))
    assert model.scores(params, fields).tolist() == [0] * 9
    params.tables["user"][:, 18] = torch.tensor([1.0, 2.0, 4.0])
    params.tables["item"][:, 18] = torch.arange(7) * 10.0
    params.dense["deep.third.bias"].fill_(0.5)
    user, item = fields["user"], fields["item"]
    wanted = 0.5 + torch.tensor([1.0, 2.0, 4.0])[user] + 10 * item
    assert model.scores(params, fields).tolist() == wanted.tolist()


def test_how_a_user_has_rated_lately_is_in_the_score(clicks: FederatedData) -> None:
    told = with_labels_beside(with_recent_labels(clicks))
    model = din_wide.build(told, 3)
    fields = told.train.fields(torch.arange(9))
    scores = model.scores(model.start(), fields)
    wanted = fields["lately"].mean(1) + fields["beside"][:, 0]
    assert scores.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    assert model.start().tables["user"].shape == (3, 18)  # the past stands in for a bias
    assert model.biases is not None
    assert list(model.biases.columns) == ["item"]


def test_the_deep_part_is_din(clicks: FederatedData) -> None:
    """With biases of 0 the scores are those of DIN with the same numbers."""
    deep, wide = din.build(clicks, 3), din_wide.build(clicks, 3)
    own, params = deep.start(), wide.start()
    params.dense |= {f"deep.{name}": x for name, x in own.dense.items()}
    for table, rows in own.tables.items():
        params.tables[table] = torch.cat([rows, torch.zeros(len(rows), 1)], 1)
    fields = clicks.train.fields(torch.arange(9))
    for model, numbers in ((deep, own), (wide, params)):
        model.calibrate(numbers, clicks.train)
    assert torch.equal(deep.scores(own, fields), wide.scores(params, fields))


@pytest.mark.parametrize("lately", [False, True])
def test_clients_of_a_cohort_train_as_alone(clicks: FederatedData, lately: bool) -> None:
    import test_models

    from fedrows.rows.params import join, take

    clicks = with_labels_beside(with_recent_labels(clicks)) if lately else clicks
    model = din_wide.build(clicks)
    params = model.start().map(Tensor.double)
    params.dense["deep.third.weight"].fill_(0.1)
    index, batch = test_models.step_of(clicks, [0, 1, 2])
    together = model.gradient(take(params, index, 3), batch)
    alone = []
    for client in range(3):
        own, its_batch = test_models.step_of(clicks, [client])
        alone.append(model.gradient(take(params, own, 1), its_batch))
    apart = join(index, alone)
    for found, wanted in ((together.rows, apart.rows), (together.dense, apart.dense)):
        for name, x in found.items():
            torch.testing.assert_close(x, wanted[name], rtol=0, atol=1e-10)
            assert (x != 0).any(), name


def test_din_with_biases_wants_dins_fields(clicks: FederatedData) -> None:
    with pytest.raises(ModelError, match=r"DIN reads the fields user, movie, history, but the da"):
        din_wide.build(clicks, item="movie")


def test_a_bundle_of_amazon_wide_says_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The level of a new user is in a column, and so needs no row of the user's own."""
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    (tmp_path / "amazon").mkdir()
    test_amazon.made(tmp_path / "amazon", "authors", test_amazon.AUTHORS)
    folder = str(tmp_path / "run")
    small = ["--rounds", "2", "--clients-per-round", "2", "--lr", "0.001", "--device", "cpu"]
    assert main(["run", "amazon-wide", *small, "--out", folder]) == 0
    file = tmp_path / "m.fedrows"
    assert main(["export", folder, "--to", str(file), "--no-onnx"]) == 0
    served = fedrows.load(file)
    frame = {"user": [2, 2], "item": [8, 8], "history": [[7], [7]], "beside": [[0.0], [0.0]]}
    with pytest.raises(DataError, match=r"The frame has no column 'lately', which the model reads"):
        served.predict(frame)
    low, high = served.predict({**frame, "lately": [[-1.0] * 3, [1.0] * 3]}).scores
    assert high - low == pytest.approx(2, abs=0.2)  # the weights start at a sum of 1
    best = served.recommend([7], k=2, context={"user": 2, "lately": [0.0] * 3, "beside": [0.0]})
    assert len(best.items) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["movielens-mf", "amazon-wide", "taobao"])
def test_every_client_of_the_real_data_is_drawn_ten_times(data_folder: Path, name: str) -> None:
    task = catalogue.task(name)
    data = task.load(task.options(validation=task.held_out))
    plan = Plan(**presets(task, "fedsubavg")[0])
    assert plan.rounds * plan.clients_per_round >= 10 * data.clients
    assert len(data.validation) > 0
    model = catalogue.model(task.model)(data, 0)
    algorithm = catalogue.algorithm("fedsubavg")()
    run = Simulation(data, model, algorithm, Plan(**{**task.plan, "rounds": 1, "device": "cpu"}))
    counted = run.evaluator(run.progress.whole())["test_auc"]
    assert counted > baselines(data)["both"]["test_auc"] - 0.003
