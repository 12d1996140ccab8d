"""Users' modules, lifted over cohorts, against a plain loop over clients on the whole model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from zoo import WITH_LISTS, ZOO, Animal
from zoo_modules import MORE

from fedrows import Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.batches import Batch, batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.replaced_operations import ReplacedOperations
from fedrows.model import LOSSES
from fedrows.nn import step_context
from fedrows.plan import Plan
from fedrows.rows.params import Params, Submodels, take
from fedrows.seeds import COHORT, choose

PLAN = Plan(rounds=5, clients_per_round=4, batch_size=4, batches="epoch", device="cpu")
Numbers = dict[str, Tensor]


@pytest.fixture(params=ZOO, name="animal")
def _animal(request) -> Animal:
    return ZOO[request.param]


def lift(animal: Animal, data: FederatedData) -> Lifted:
    return Lifted(animal.module(), data, animal.embeddings, dense=animal.dense)


def batches_of(data: FederatedData, client: int, plan: Plan, round_: int) -> list[tuple]:
    """A client's batches of examples, in feature ids, with the key of each step."""
    who = torch.tensor([client])
    local = local_data(data, who)
    index = {table: whole.select(who) for table, whole in data.index.items()}
    found = []
    for batch in batches(local, index, plan, round_, random=True):
        real = slice(None) if batch.weight is None else batch.weight[0] > 0
        fields = {name: x[0][real] for name, x in batch.numbers.items()}
        for name, places in batch.ids.items():
            held = torch.cat([index[data.fields[name]].ids, torch.tensor([0])])  # −1: nothing
            fields[name] = held[places[0][real]]
        found.append((fields, batch.label[0][real], batch.key[0]))
    return found


def gradient(module, labels: str, random: bool, numbers: Numbers, fields, label, key) -> Numbers:
    """The gradient of the mean loss over one batch, by autograd on the whole module.

    With PyTorch's own operations, unless dropout is to be drawn from the same counters.
    """
    leaves = {name: x.detach().clone().requires_grad_() for name, x in numbers.items()}
    with (
        step_context.step(torch.ones(len(label)), key),
        ReplacedOperations() if random else nullcontext(),
    ):
        scores = functional_call(module, leaves, (), fields)
    loss = LOSSES[labels](scores, label).mean()
    found = torch.autograd.grad(loss, [*leaves.values()], materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def slow_fedsubavg(animal: Animal, data: FederatedData, plan: Plan, random: bool) -> Numbers:
    """FedSubAvg on the whole model, one client after another."""
    module, data = animal.module(), data.to(torch.device("cpu"), plan.torch_dtype)
    numbers = {n: x.detach().to(plan.torch_dtype) for n, x in module.named_parameters()}
    weights = data.weights(plan.weighting)
    factors = {}
    for table, rows in data.tables.items():
        index, held = data.index[table], torch.zeros(rows, dtype=torch.float64)
        held.index_add_(0, index.ids, weights[index.owner])
        correction = torch.where(held > 0, weights.sum() / held, 1)[:, None]
        named = animal.embeddings.get(table, table)
        for path in [named] if isinstance(named, str) else named:
            factors[f"{path}.weight"] = correction.to(plan.torch_dtype)
    for round_ in range(1, plan.rounds + 1):
        cohort = choose(plan.seed, COHORT, round_, data.clients, plan.clients_per_round)
        share = weights[cohort] / weights[cohort].sum()
        mean = {name: torch.zeros_like(x) for name, x in numbers.items()}
        for client, its_share in zip(cohort.tolist(), share.tolist(), strict=True):
            here = dict(numbers)
            for fields, label, key in batches_of(data, client, plan, round_):
                found = gradient(module, data.labels, random, here, fields, label, key)
                here = {name: x - plan.lr * found[name] for name, x in here.items()}
            for name, x in here.items():
                mean[name] += its_share * (x - numbers[name])
        numbers = {n: x + factors.get(n, 1) * mean[n] for n, x in numbers.items()}
    return numbers


def test_five_rounds_equal_a_plain_loop_over_clients(animal):
    plan, data = replace(PLAN, lr=animal.lr), animal.data()
    model = lift(animal, data)
    simulation = Simulation(data, model, FedSubAvg(), plan)
    for _ in simulation:
        pass
    found = model.export(simulation.progress.whole())
    expected, before = slow_fedsubavg(animal, data, plan, model.random), model.module.state_dict()
    for name, x in expected.items():
        torch.testing.assert_close(found[name], x, rtol=0, atol=1e-5)
    assert max(float((x - before[name]).abs().max()) for name, x in expected.items()) > 0.1


def cohort_batch(
    model: Lifted, data: FederatedData, cohort: list[int]
) -> tuple[Params, Submodels, Batch]:
    """A cohort's submodels in float64, and its first batch."""
    data = data.to(torch.device("cpu"), torch.float64)
    params = model.start().map(torch.Tensor.double)
    who, plan = torch.tensor(cohort), replace(PLAN, batch_size=12, dtype="float64")
    index = {table: whole.select(who) for table, whole in data.index.items()}
    local = local_data(data, who)
    batch = next(iter(batches(local, index, plan, 1, random=True)))
    return params, take(params, index, len(who)), batch


def close(one: Submodels, other: Submodels) -> None:
    for table, rows in one.rows.items():
        torch.testing.assert_close(rows, other.rows[table], rtol=0, atol=1e-10)
    for name, dense in one.dense.items():
        torch.testing.assert_close(dense, other.dense[name], rtol=0, atol=1e-10)


COHORT_OF_THREE = [7, 0, 3]  # client 0 has one example: the rest of its batch is filling


def test_gradients_equal_autograd_on_the_whole_model(animal):
    data = animal.data()
    model = lift(animal, data)
    params, block, batch = cohort_batch(model, data, COHORT_OF_THREE)
    found = model.gradient(block, batch)
    module, numbers = animal.module(), model.export(params)
    numbers = {name: numbers[name] for name, _ in module.named_parameters()}
    plan = replace(PLAN, batch_size=12, dtype="float64")
    exact = data.to(torch.device("cpu"), torch.float64)
    module = module.double()
    for k, client in enumerate(COHORT_OF_THREE):
        first = batches_of(exact, client, plan, 1)[0]
        whole = gradient(module, data.labels, model.random, numbers, *first)
        own = found.slice(k, k + 1)
        for table, rows in own.rows.items():
            names = model._weights[table]
            wanted = torch.cat([whole[name] for name in names], 1)[own.index[table].ids]
            torch.testing.assert_close(rows, wanted, rtol=0, atol=1e-10)
        for name, dense in own.dense.items():
            torch.testing.assert_close(dense[0], whole[name], rtol=0, atol=1e-10)
    assert all(x.abs().sum() > 0 for x in found.rows.values())


def test_a_cohort_of_one_is_its_part_of_a_cohort(animal):
    data = animal.data()
    model = lift(animal, data)
    _, block, batch = cohort_batch(model, data, COHORT_OF_THREE)
    together = model.gradient(block, batch)
    for k, client in enumerate(COHORT_OF_THREE):
        _, own, its_batch = cohort_batch(model, data, [client])
        close(model.gradient(own, its_batch), together.slice(k, k + 1))


def test_one_by_one_gives_the_same_gradients(animal):
    data = animal.data()
    model = lift(animal, data)
    alone = Lifted(animal.module(), data, animal.embeddings, dense=animal.dense, one_by_one=True)
    assert alone.random == model.random
    _, block, batch = cohort_batch(model, data, COHORT_OF_THREE)
    close(model.gradient(block, batch), alone.gradient(block, batch))


@pytest.mark.parametrize("name", WITH_LISTS)
def test_more_padding_changes_nothing(name):
    animal = ZOO[name]
    data, longer = animal.data(), animal.data(MORE)
    model = lift(animal, data)
    _, block, batch = cohort_batch(model, data, COHORT_OF_THREE)
    _, _, padded = cohort_batch(model, longer, COHORT_OF_THREE)
    assert any(x.shape[2:] != padded.ids[field].shape[2:] for field, x in batch.ids.items())
    close(model.gradient(block, batch), model.gradient(block, padded))


@pytest.mark.slow
def test_training_ends_below_the_label_prior(animal):
    data = animal.data()
    plan = replace(PLAN, rounds=20, clients_per_round=12, epochs=2, lr=animal.lr)
    simulation = Simulation(data, lift(animal, data), FedSubAvg(), plan)
    for _ in simulation:
        pass
    label = data.train.label
    if data.labels == "numbers":
        prior = float((label - label.mean()).square().mean() / 2)
    else:
        share = torch.bincount(label.long()) / len(label)
        prior = float(-(share * share.log()).sum())
    assert simulation.evaluator.train_loss(simulation.progress.whole()) < 0.9 * prior


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_trains_the_same(animal):
    """The same masks too: float64, so that only another draw could tell the two apart."""
    data, found = animal.data(), []
    for device in ("cpu", "cuda"):
        plan = replace(PLAN, rounds=2, lr=animal.lr, device=device, dtype="float64")
        model = lift(animal, data)
        simulation = Simulation(data, model, FedSubAvg(), plan)
        for _ in simulation:
            pass
        found.append(simulation.progress.whole().map(torch.Tensor.cpu))
    for table, rows in found[0].tables.items():
        torch.testing.assert_close(rows, found[1].tables[table], rtol=0, atol=1e-9)
    for name, dense in found[0].dense.items():
        torch.testing.assert_close(dense, found[1].dense[name], rtol=0, atol=1e-9)


def test_there_are_fifteen():
    assert len(ZOO) == 15
