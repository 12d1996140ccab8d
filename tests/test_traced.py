"""A replayed step equals the step itself, for every kind of module, however many rows come in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO, Animal, ratings
from zoo_modules import ITEMS, USERS

from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.batches import Batch, batches, local_data
from fedrows.lifting import traced
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.traced import Traced
from fedrows.lifting.traced_model import TracedModel
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Submodels, take
from fedrows.simulation import Simulation


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(traced, "_FIRST", 0)


def lift(animal: Animal) -> TracedModel:
    lifted = Lifted(animal.module(), animal.data(), animal.embeddings, dense=animal.dense)
    return TracedModel(lifted, [])


def step(model: Model, animal: Animal, plan: Plan, cohort: list[int]) -> tuple[Submodels, Batch]:
    """What a cohort starts from, and its first batch."""
    data, who = animal.data().to(torch.device("cpu"), plan.torch_dtype), torch.tensor(cohort)
    index = {table: whole.select(who) for table, whole in data.index.items()}
    params = model.start().map(lambda x: x.to(plan.torch_dtype))
    stream = batches(local_data(data, who), index, plan, 1, model.random)
    return take(params, index, len(who)), next(iter(stream))


def flat(found: Submodels) -> list[Tensor]:
    return [*found.rows.values(), *found.dense.values()]


def both(model: TracedModel, block: Submodels, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of a step, replayed and as they are."""
    return flat(model.gradient(block, batch)), flat(model.lifted.gradient(block, batch))


@pytest.mark.parametrize(("kind", "dtype"), [("draw", "float32"), ("epoch", "float64")])
@pytest.mark.parametrize("name", ZOO)
def test_a_replay_is_the_step_itself_to_the_bit(name, kind, dtype):
    """A resumed run, which is traced later than one that was never stopped, stays the same run."""
    animal = ZOO[name]
    model, plan = lift(animal), Plan(batch_size=4, batches=kind, dtype=dtype, device="cpu")
    for cohort in ([0, 3, 5], [1, 2, 4], [7, 6, 0]):  # the last two are replays
        found, expected = both(model, *step(model, animal, plan, cohort))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert model.traced.why is None
    assert len(model.traced._replays) == 1


class Plain(nn.Module):
    """A user's taste times an item's; `change` may do worse."""

    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(USERS, 4), nn.Embedding(ITEMS, 4)
        self.last = nn.Linear(4, 1)
        self.calls = 0

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        both = self.change(self.user(user) * self.item(item))
        return self.last(both)[:, 0]

    def change(self, x: Tensor) -> Tensor:
        return x


class Counting(Plain):
    def change(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * (1 + self.calls)


class Growing(Plain):
    def change(self, x: Tensor) -> Tensor:
        self.calls += 1
        for _ in range(self.calls):
            x = x + 1
        return x


class Looking(Plain):
    def change(self, x: Tensor) -> Tensor:
        return x * 2 if float(self.item.weight.detach().abs().max()) > 1 else x


class AllRows(Plain):
    def change(self, x: Tensor) -> Tensor:
        return x * self.item.weight.reshape(-1).square().mean()


PLAN = Plan(rounds=3, clients_per_round=3, local_steps=4, batch_size=4, device="cpu")


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Counting, "its numbers change from call to call"),
        (Growing, "it does something else from call to call"),
        (Looking, "aten::_local_scalar_dense looks at the values of a tensor"),
    ],
)
def test_what_is_not_the_same_in_every_call_is_called_as_it_is(module, why):
    simulation = Simulation(ratings(), Lifted(module(), ratings()), FedSubAvg(), PLAN)
    for _ in simulation:
        pass
    assert simulation.fleet.notes == [
        f"{module.__name__} trains without a trace of its steps, which is slower: {why}."
    ]


def test_what_treats_all_rows_at_once_trains_the_same_either_way():
    torch.manual_seed(0)
    model, animal = TracedModel(Lifted(AllRows(), ratings()), []), Animal(AllRows, ratings)
    for cohort in ([0, 3, 5], [1, 2, 4]):
        found, expected = both(model, *step(model, animal, PLAN, cohort))
        torch.testing.assert_close(found, expected)


def test_a_shape_is_traced_when_it_has_come_often_enough(monkeypatch):
    monkeypatch.setattr(traced, "_FIRST", 2)
    monkeypatch.setattr(traced, "_MOST", 1)
    calls = []

    def double(given: dict[str, Tensor]) -> list[Tensor]:
        calls.append(len(given["x"]))
        return [given["x"] * 2]

    function = Traced(double)
    for _ in range(5):
        assert function({"x": torch.ones(3)}, ()) == [pytest.approx(torch.full((3,), 2.0))]
    assert len(calls) == 2 + 3  # twice as it is; two traces and a look whether they are right
    for _ in range(5):
        function({"x": torch.ones(4)}, ())  # one shape too many
    assert len(calls) == 5 + 5


def test_steps_in_inference_mode_are_the_same(monkeypatch):
    monkeypatch.setattr(traced, "_FIRST", 1)
    animal = ZOO["two-tower"]
    model = lift(animal)
    block, batch = step(model, animal, PLAN, [1, 2, 3])
    expected = flat(model.lifted.gradient(block, batch))
    with torch.inference_mode():
        own = block.map(torch.clone)
        found = [flat(model.gradient(own, batch)) for _ in range(3)]  # as it is, traced, replayed
    assert own.rows["item"].is_inference()
    assert len(model.traced._replays) == 1
    for gradients in found:
        torch.testing.assert_close(gradients, expected, rtol=0, atol=0)


def test_modes_and_losses_have_traces_of_their_own():
    animal = ZOO["DeepFM"]
    model = lift(animal)
    block, batch = step(model, animal, PLAN, [1, 2, 3])
    with_dropout = flat(model.gradient(block, batch))
    model.lifted.module.eval()
    without = flat(model.gradient(block, batch))
    assert len(model.traced._replays) == 2
    assert any(not torch.equal(a, b) for a, b in zip(with_dropout, without, strict=True))


def test_an_operation_in_place_and_a_constant_are_replayed():
    ones = torch.ones(2)

    def function(given: dict[str, Tensor]) -> list[Tensor]:
        total = given["rows"].sum(0)
        total.add_(ones).mul_(float("inf")).clamp_(max=3.5)
        return [total, given["rows"].new_zeros(len(given["rows"]) + 1, 2)]

    replay = traced.traced(function, {"rows": torch.ones(4, 2)}, ["rows"])
    total, zeros = replay({"rows": torch.ones(9, 2)})
    torch.testing.assert_close(total, torch.full((2,), 3.5))
    assert zeros.shape == (10, 2)


def test_threads_trace_and_replay_beside_each_other():
    animal = ZOO["two-tower"]
    model = lift(animal)
    steps = [step(model, animal, PLAN, cohort) for cohort in ([0, 1, 2], [3, 4, 5], [6, 7, 8])]
    expected = [flat(model.gradient(*one)) for one in steps]
    other = lift(animal)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda one: flat(other.gradient(*one)), steps * 5))
    for number, mine in enumerate(found):
        torch.testing.assert_close(mine, expected[number % 3])
    assert other.traced.why is None
