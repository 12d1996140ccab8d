"""Local optimisers: each is `torch.optim` on a client's submodel, for all clients of a cohort."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import twin
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrows import Simulation, catalogue
from fedrows.algorithm import Round
from fedrows.client import Assignment, step_, train
from fedrows.data.batches import batches, local_data
from fedrows.errors import PlanError
from fedrows.models.logistic import Logistic
from fedrows.optimizers.local_optimizer import local_optimizer
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, take

DATA = twin.federation()
PLAN = Plan(clients_per_round=7, local_steps=6, batch_size=2, lr=0.2, device="cpu", dtype="float64")
TORCH = {
    "sgd": lambda x, lr, decay: torch.optim.SGD(x, lr, weight_decay=decay),
    "momentum": lambda x, lr, decay: torch.optim.SGD(x, lr, momentum=0.8, weight_decay=decay),
    "adagrad": lambda x, lr, decay: torch.optim.Adagrad(x, lr, weight_decay=decay),
    "adam": lambda x, lr, decay: torch.optim.Adam(x, lr, (0.8, 0.9), weight_decay=decay),
    "adamw": lambda x, lr, decay: torch.optim.AdamW(x, lr, (0.8, 0.9), weight_decay=decay),
}
STEPS = {
    "draw": {},
    "decay and clip": {"weight_decay": 0.3, "clip": 0.1},
    "epoch": {"batches": "epoch", "epochs": 2, "weight_decay": 0.3},  # clients sit steps out
}


def plan_of(name: str, more: dict[str, object]) -> Plan:
    return replace(PLAN, optimizer=name, local_momentum=0.8, local_beta2=0.9, **more)


def whole_model() -> Params:
    """Numbers to start from that weight decay has something to pull at."""
    draw = torch.Generator().manual_seed(0)
    start = Logistic(DATA).start()
    return start.map(lambda x: torch.randn(x.shape, generator=draw, dtype=torch.float64))


def slow(client: int, plan: Plan, mu: float) -> dict[str, Tensor]:
    """Where one client ends: its submodel as dense tensors, and an optimiser of PyTorch."""
    alone = torch.tensor([client])
    index = {table: its.select(alone) for table, its in DATA.index.items()}
    params = whole_model()
    own = {t: params.tables[t][its.ids, 0].requires_grad_() for t, its in index.items()}
    own["bias"] = params.dense["bias"].clone().requires_grad_()
    start = {name: x.detach().clone() for name, x in own.items()}
    optimizer = TORCH[plan.optimizer](own.values(), plan.lr, plan.weight_decay)
    for batch in batches(local_data(DATA, alone), index, plan, 1):
        real = slice(None) if batch.weight is None else batch.weight[0] > 0
        item, kind = batch.ids["item"][0][real], batch.ids["kind"][0][real]
        score = own["bias"] + own["item"][item].sum(1) + own["kind"][kind]
        optimizer.zero_grad()
        binary_cross_entropy_with_logits(score, batch.label[0][real].double()).backward()
        if plan.clip is not None:
            norm = torch.stack([x.grad.norm() for x in own.values()]).norm()
            for x in own.values():  # clip_grad_norm_ would divide by norm + 1e-6
                x.grad *= min(1.0, plan.clip / float(norm))
        for name, x in own.items():
            x.grad += mu * (x.detach() - start[name])
        optimizer.step()
    return {name: x.detach() for name, x in own.items()}


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("name", TORCH)
def test_every_client_steps_as_with_torch(name, steps):
    plan, everyone = plan_of(name, STEPS[steps]), torch.arange(DATA.clients)
    index = {table: its.select(everyone) for table, its in DATA.index.items()}
    start = take(whole_model(), index, DATA.clients)
    facts = Round(1, plan.lr, DATA.clients, 1.0, everyone)
    prox = catalogue.algorithm("fedprox")(mu=0.4)
    given = Assignment(local_data(DATA, everyone), start, None, None, facts)
    update = train(Logistic(DATA), prox, plan, given).update
    for client in range(DATA.clients):
        wanted, part = slow(client, plan, 0.4), slice(client, client + 1)
        ended = start.slice(client, client + 1).map(torch.add, update.slice(client, client + 1))
        for table, rows in ended.rows.items():
            torch.testing.assert_close(rows[:, 0], wanted[table], rtol=0, atol=1e-12)
        bias = start.dense["bias"][part] + update.dense["bias"][part]
        torch.testing.assert_close(bias[0], wanted["bias"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", TORCH)
def test_a_rate_may_be_a_tensor(name):
    """As in a CUDA graph, where it is another in every replay."""
    plan, everyone = plan_of(name, {"weight_decay": 0.3}), torch.arange(DATA.clients)
    index = {table: its.select(everyone) for table, its in DATA.index.items()}
    start, ended = take(whole_model(), index, DATA.clients), []
    for lr in (plan.lr, torch.tensor(plan.lr, dtype=torch.float64)):
        stream = batches(local_data(DATA, everyone), index, plan, 1)
        here, average = start.map(torch.clone), catalogue.algorithm("fedavg")()
        optimizer = local_optimizer(plan)
        more = (None, None, (), None, lr, stream)
        step_(Logistic(DATA), average, optimizer, here, start, *more)
        ended.append(here.rows["item"])
    torch.testing.assert_close(*ended, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_state_ends_with_the_round(name):
    """Two runs of one round each, from the same model, move by the same: nothing is carried on."""
    plan = plan_of(name, {"rounds": 2})
    run = Simulation(DATA, Logistic(DATA), catalogue.algorithm("fedavg")(), plan)
    rounds = iter(run)
    next(rounds)
    after = run.progress.params.copy()
    next(rounds)
    again = Simulation(DATA, Logistic(DATA), catalogue.algorithm("fedavg")(), plan)
    again.progress.params, again.progress.round = after, 1
    next(iter(again))
    assert torch.equal(run.progress.params.tables["item"], again.progress.params.tables["item"])


@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "adamw"])
def test_chunks_give_the_same_numbers(name):
    models = []
    for chunk in (None, 2):
        plan = plan_of(name, {"rounds": 3, "chunk": chunk, "weight_decay": 0.1})
        run = Simulation(DATA, Logistic(DATA), catalogue.algorithm("fedsubavg")(), plan)
        for _ in run:
            pass
        models.append(run.progress.params.tables["item"])
    torch.testing.assert_close(*models, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["scaffold", "scaffoldapprox"])
def test_control_variates_need_plain_steps(name):
    with pytest.raises(PlanError, match=f"optimizer is 'adam', but {name} counts on plain SGD"):
        Simulation(DATA, Logistic(DATA), catalogue.algorithm(name)(), plan_of("adam", {}))
    Simulation(DATA, Logistic(DATA), catalogue.algorithm(name)(), replace(PLAN, weight_decay=0.1))


@pytest.mark.parametrize("name", ["momentum", "adagrad", "adam", "adamw"])
def test_a_restarted_state_serves_a_cohort_whose_rows_have_other_owners(name: str) -> None:
    """As a recorded step does, which is replayed in the same memory for every cohort."""

    def cohort(first: int) -> Submodels:
        index = {"t": Index(torch.arange(4), torch.tensor([0, first, 4]))}
        rows = torch.arange(8, dtype=torch.float64).view(4, 2) - 3
        return Submodels(index, {"t": rows}, {"d": torch.ones(2, 1, dtype=torch.float64)})

    plan, active = Plan(optimizer=name, lr=0.1), torch.tensor([1.0, 0.0], dtype=torch.float64)
    restarted = local_optimizer(plan)
    restarted.step_(cohort(1), cohort(1), active, 0.1)
    restarted.restart_()
    ends = []
    for optimizer in (restarted, local_optimizer(plan)):
        here = cohort(3)
        for _ in range(2):
            optimizer.step_(here, cohort(3), active, 0.1)
        ends.append(here)
    assert torch.equal(ends[0].rows["t"], ends[1].rows["t"])
    assert not torch.equal(ends[0].rows["t"], cohort(3).rows["t"])
