"""The models of models/: lifted equals alone, padding has no effect, seeds decide the start."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedrows import Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.batches import Batch, batches, local_data
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.lifted import Lifted
from fedrows.model import logistic_loss
from fedrows.models import din, lstm
from fedrows.nn import interest_network, step_context
from fedrows.plan import Plan
from fedrows.rows.params import Params, take
from fedrows.rows.ragged import ragged

CLOSE = {"rtol": 0.0, "atol": 1e-10}
PLAN = Plan(rounds=2, clients_per_round=3, batch_size=3, local_steps=2, device="cpu", clip=5.0)
CPU, FLOAT64 = torch.device("cpu"), torch.float64

CLIENT = np.array([0, 0, 0, 0, 1, 1, 2, 2, 2])
LABEL = np.array([0, 1, 1, 0, 1, 1, 0, 1, 0])
LISTS = [[3, 1], [], [2, 2, 4], [5], [1, 5, 3, 2], [6], [], [4, 1], [6, 6, 6]]


def texts(longest: int | None = None) -> FederatedData:
    return FederatedData.build(
        client=CLIENT,
        ids={"words": ragged(LISTS, longest)},
        fields={"words": "word"},
        tables={"word": 7},
        label=LABEL,
        test=np.zeros(9, dtype=bool),
    )


def clicks(longest: int | None = None) -> FederatedData:
    return FederatedData.build(
        client=CLIENT,
        ids={
            "user": CLIENT,
            "item": np.array([1, 2, 3, 4, 5, 6, 1, 2, 3]),
            "history": ragged(LISTS, longest),
        },
        fields={"user": "user", "item": "item", "history": "item"},
        tables={"user": 3, "item": 7},
        label=LABEL,
        test=np.zeros(9, dtype=bool),
    )


MODELS = {"lstm": (lstm.build, texts), "din": (din.build, clicks)}
every_model = pytest.mark.parametrize(("build", "data"), MODELS.values(), ids=MODELS)


def double(model: Lifted) -> Params:
    return model.start().map(Tensor.double)


def step_of(data: FederatedData, clients: list[int], plan: Plan = PLAN) -> tuple[dict, Batch]:
    """The index sets of some clients and their first batch."""
    cohort = torch.tensor(clients)
    index = {table: its.select(cohort) for table, its in data.index.items()}
    local = local_data(data.to(CPU, FLOAT64), cohort)
    return index, next(iter(batches(local, index, plan, 1)))


@every_model
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("clients", [[0, 1, 2], [1]], ids=["K = 3", "K = 1"])
def test_lifted_equals_alone(build, data, clients, weighted):
    data = data()
    model = build(data)
    index, batch = step_of(data, clients)
    if weighted:  # the last example of each client only fills the batch
        weight = torch.ones_like(batch.label)
        weight[:, -1] = 0
        batch = replace(batch, weight=weight)
    block = take(double(model), index, len(clients))
    generator = torch.Generator().manual_seed(0)
    noise = {
        n: torch.randn(x.shape, dtype=FLOAT64, generator=generator) for n, x in block.dense.items()
    }
    block = replace(block, dense={n: x + 0.1 * noise[n] for n, x in block.dense.items()})
    found = model.gradient(block, batch)

    for k in range(len(clients)):  # the plain module on the client's own rows and examples
        own = {t: slice(int(i.splits[k]), int(i.splits[k + 1])) for t, i in index.items()}
        rows = {t: block.rows[t][own[t]].clone().requires_grad_() for t in index}
        dense = {n: x[k].clone().requires_grad_() for n, x in block.dense.items()}
        names = {t: model._weights[t][0] for t in index}
        padding = {t: torch.zeros(1, rows[t].shape[1], dtype=FLOAT64) for t in data.padded}
        tables = {
            names[t]: torch.cat([padding[t], x] if t in padding else [x]) for t, x in rows.items()
        }
        fields = {}
        for name, places in batch.ids.items():
            table, its = data.fields[name], places[k]
            moved = its - own[table].start + (table in padding)
            fields[name] = torch.where(its < 0, 0, moved)
        kept = slice(0, 2 if weighted else 3)
        some = {name: x[kept] for name, x in fields.items()}
        with step_context.step(torch.ones(kept.stop, dtype=FLOAT64)):
            scores = functional_call(model.module, {**tables, **dense}, (), some)
        lost = logistic_loss(scores, batch.label[k][kept]).mean()
        alone = torch.autograd.grad(lost, [*rows.values(), *dense.values()], materialize_grads=True)
        lifted = [found.rows[t][own[t]] for t in index] + [found.dense[n][k] for n in dense]
        torch.testing.assert_close(lifted, list(alone), **CLOSE)
    assert any((x != 0).any() for x in found.rows.values())


@every_model
def test_padding_has_no_effect(build, data):
    short, long = data(), data(9)
    model, same = build(short), build(long)
    sides = []
    for its, m in ((short, model), (long, same)):
        index, batch = step_of(its, [0, 1, 2])
        found = m.gradient(take(double(m), index, 3), batch)
        fields = its.train.fields(torch.arange(9))
        sides.append((found.rows, found.dense, m.scores(double(m), fields)))
    torch.testing.assert_close(*sides, **CLOSE)


@every_model
def test_a_score_does_not_depend_on_the_other_examples(build, data):
    data = data()
    model = build(data)
    params = double(model)
    model.calibrate(params, data.train.to(CPU, FLOAT64))
    together = model.scores(params, data.train.fields(torch.arange(9)))
    for n in range(9):
        alone = model.scores(params, data.train.fields(torch.tensor([n])))
        torch.testing.assert_close(alone, together[n : n + 1], **CLOSE)


@every_model
def test_start_values_are_a_function_of_the_seed(build, data):
    data = data()
    torch.manual_seed(1)
    one = build(data, seed=5).start()
    torch.manual_seed(2)
    same, other = build(data, seed=5).start(), build(data, seed=6).start()
    torch.testing.assert_close((one.tables, one.dense), (same.tables, same.dense), rtol=0, atol=0)
    assert not any(torch.equal(x, other.tables[t]) for t, x in one.tables.items())
    assert all((one.tables[t][0] == 0).all() for t in data.padded)


@every_model
def test_training_lowers_the_loss_whatever_the_chunk(build, data):
    data = data()
    ends = []
    for chunk in (None, 1):
        plan = replace(PLAN, rounds=20, lr=0.5, local_steps=5, dtype="float64", chunk=chunk)
        simulation = Simulation(data, build(data), FedSubAvg(), plan)
        before = simulation.evaluate()["train_loss"]
        for _ in simulation:
            pass
        assert simulation.evaluate()["train_loss"] < before - 0.01
        ends.append(simulation.progress.params.dense)
    torch.testing.assert_close(*ends, **CLOSE)


def test_the_lstm_is_the_papers():
    model = lstm.build(texts())
    assert model.schema.tables["word"].width == 25
    shapes = {name: tuple(shape) for name, shape in model.schema.dense.items()}
    assert shapes["lstm.weight_ih_l0"] == (400, 25)
    assert shapes["lstm.weight_hh_l1"] == (400, 100)
    assert shapes["output.weight"] == (1, 100)


def test_the_lstm_reads_the_last_word():
    model = lstm.build(texts())
    module = model.module
    theirs = nn.LSTM(25, 100, 2, batch_first=True)
    theirs.load_state_dict(module.lstm.state_dict())
    with torch.no_grad():
        found = module(words=torch.tensor([[3, 1, 0, 0], [0, 0, 0, 0]]))
        last = theirs(module.token(torch.tensor([[3, 1]])))[0][:, -1]
        torch.testing.assert_close(found[:1], module.output(last)[:, 0])
        torch.testing.assert_close(found[1:], module.output.bias)


def test_din_is_the_papers():
    model = din.build(clicks())
    assert {t: x.width for t, x in model.schema.tables.items()} == {"user": 18, "item": 18}
    shapes = [tuple(shape) for name, shape in model.schema.dense.items() if "weight" in name]
    assert shapes == [(80, 72), (40, 80), (1, 40), (200, 90), (80, 200), (1, 80)]
    start = model.start()
    for x in (start.tables["item"], start.dense["first.weight"], start.dense["unit.first.weight"]):
        bound = (6 / sum(x.shape)) ** 0.5  # Glorot's
        assert 0.9 * bound < x.abs().max() <= bound
        assert x[1:].std() == pytest.approx(bound / 3**0.5, rel=0.1)
    assert all((x == 0).all() for name, x in start.dense.items() if name.endswith("bias"))


def test_the_attention_unit_is_the_network_over_the_four_parts():
    unit = interest_network.AttentionUnit(3).double()
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 3, dtype=FLOAT64, generator=generator)
    k = torch.randn(2, 5, 3, dtype=FLOAT64, generator=generator)
    wide = q[:, None].expand_as(k)
    x = torch.cat([wide, k, wide - k, wide * k], -1)
    plain = unit.third(unit.second(unit.first(x).sigmoid()).sigmoid())[..., 0]
    torch.testing.assert_close(unit(q, k), plain, **CLOSE)
    own = list(unit.parameters())
    sides = [torch.autograd.grad(y.square().sum(), own) for y in (unit(q, k), plain)]
    torch.testing.assert_close(*sides, **CLOSE)


def test_calibration_is_exported_with_the_model():
    data = clicks()
    model = din.build(data)
    params = model.start()
    examples: Examples = data.train.to(CPU, torch.float32)
    model.calibrate(params, examples)
    plain = interest_network.DIN(3, 7)
    plain.load_state_dict(model.export(params))
    fields = data.train.fields(torch.arange(9))
    torch.testing.assert_close(plain.eval()(**fields), model.scores(params, fields))
    assert (plain.first_dice.norm.running_var != 1).all()


def test_data_that_a_model_cannot_read_are_refused():
    with pytest.raises(ModelError, match="user, item, history"):
        lstm.build(clicks())
    with pytest.raises(ModelError, match=r"user, item, history, but the data have words\."):
        din.build(texts())
    apart = FederatedData.build(
        client=CLIENT,
        ids={"user": CLIENT, "item": CLIENT, "history": ragged(LISTS)},
        tables={"user": 3, "item": 7, "history": 7},
        label=LABEL,
        test=np.zeros(9, dtype=bool),
    )
    with pytest.raises(ModelError, match="one table for item and history"):
        din.build(apart)
