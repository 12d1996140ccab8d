"""A device program gives the update that PyTorch gives, for every model and algorithm."""

from __future__ import annotations

import device_programs
import numpy as np
import pytest
import torch
from device_rounds import CLOSE, gap
from zoo import ZOO

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models import din, logistic, lstm
from fedrows.plan import Plan
from fedrows.rows.ragged import ragged

pytest.importorskip("onnxruntime")
PLAN = {"local_steps": 20, "device": "cpu"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_twenty_steps_of_the_zoo(name: str) -> None:
    animal = ZOO[name]
    data = animal.data()
    model = Lifted(animal.module(), data, animal.embeddings, dense=animal.dense)
    plan = Plan(clip=1.0, **PLAN)
    assert gap(model, data, plan, catalogue.algorithm("fedavg")(), 5) < CLOSE


def texts() -> FederatedData:
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, 30, rng.integers(1, 9)) for _ in range(24)]
    return FederatedData.build(
        client=np.repeat(np.arange(4), 6),
        ids={"text": ragged(lists, 8)},
        label=rng.integers(0, 2, 24).astype(float),
        test=np.zeros(24, dtype=bool),
        tables={"word": 30},
        fields={"text": "word"},
    )


def histories() -> FederatedData:
    rng = np.random.default_rng(0)
    lists = [rng.integers(1, 30, rng.integers(0, 9)) for _ in range(24)]
    return FederatedData.build(
        client=np.repeat(np.arange(4), 6),
        ids={
            "user": np.repeat(np.arange(4), 6),
            "item": rng.integers(1, 30, 24),
            "history": ragged(lists, 8),
        },
        label=rng.integers(0, 2, 24).astype(float),
        test=np.zeros(24, dtype=bool),
        tables={"user": 4, "item": 30},
        fields={"user": "user", "item": "item", "history": "item"},
    )


@pytest.mark.slow(minutes=1)
@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_twenty_steps_of_the_lstm(batches: str) -> None:
    data = texts()
    plan = Plan(batches=batches, batch_size=4, epochs=10, **PLAN)
    assert gap(lstm.build(data), data, plan, catalogue.algorithm("fedsubavg")(), 2) < CLOSE


@pytest.mark.slow(minutes=1)
def test_twenty_steps_of_din() -> None:
    data = histories()
    model, plan = din.build(data), Plan(batches="epoch", batch_size=4, epochs=10, device="cpu")
    assert gap(model, data, plan, catalogue.algorithm("boundedsubavg")(), 2) < CLOSE


def regression() -> tuple[Model, FederatedData]:
    data = texts()
    return logistic.build(data), data


OWN_CLIENT_SIDE = ["fedprox", "scaffold", "steppedmean"]


def test_all_other_algorithms_have_the_client_s_side_of_fedavg() -> None:
    others = set(catalogue.names("algorithm")) - set(OWN_CLIENT_SIDE)
    for of in map(catalogue.algorithm, others):
        assert [getattr(of, hook) for hook in ("send", "adjust_", "finish")] == [
            Algorithm.send, Algorithm.adjust_, Algorithm.finish
        ], of  # fmt: skip
        assert not of.keeps
        assert not of().needs_occurred


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["fedavg", *OWN_CLIENT_SIDE])
@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_client_s_side_of_algorithms(algorithm: str, clip: float | None) -> None:
    model, data = device_programs.factors()
    plan = Plan(clip=clip, weight_decay=0.01 if clip else 0.0, **PLAN)
    assert gap(model, data, plan, catalogue.algorithm(algorithm)(), 8) < CLOSE


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["momentum", "adagrad", "adam", "adamw"])
def test_the_optimisers(optimizer: str) -> None:
    model, data = device_programs.plain()
    # Adam divides by √v: where a gradient is near 0, float32 alone decides the sign of a step.
    # So `device_rounds` takes a lower rate for it.
    plan = Plan(optimizer=optimizer, weight_decay=0.01, **PLAN)
    assert gap(model, data, plan, catalogue.algorithm("fedavg")(), 8) < 2 * CLOSE


@pytest.mark.slow
def test_logistic_regression_which_is_no_module() -> None:
    model, data = regression()
    assert gap(model, data, Plan(**PLAN), catalogue.algorithm("fedavg")(), 1) < CLOSE


@pytest.mark.slow
def test_a_client_with_one_example_and_one_row() -> None:
    model, data = device_programs.plain()
    plan = Plan(batch_size=1, **PLAN)
    assert len(data.index["item"].select(torch.tensor([0])).ids) == 1
    assert gap(model, data, plan, catalogue.algorithm("fedavg")(), 0) < CLOSE
