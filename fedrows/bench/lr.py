"""Logistic regression at MovieLens' shapes: a simulated round against what one would do instead.

fedrows      FedSubAvg rounds: sampling, gathering, training, aggregating; no evaluation
centralised  plain PyTorch on as many samples: I steps of K·B, batches gathered beforehand,
             sparse gradients, SGD; nn.Embedding and nn.EmbeddingBag, the faster one counts
one by one   plain PyTorch, one client after another on a copy of the model, then FedAvg
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrows import catalogue
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.bench.blocks import Rounds, medians, seconds_per_round, settings
from fedrows.cli.flags import Parser
from fedrows.data import FederatedData
from fedrows.errors import DataError
from fedrows.fleet import SimulatedFleet
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.server import begin, rounds


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s and the two ratios."""
    parser = Parser("bench lr", (__doc__ or "").split("\n")[0])
    options = settings(parser, argv, blocks=7)
    data = movielens_or_alike()
    plan = Plan(rounds=10**9, device="cpu")
    contenders = {
        "fedrows": (simulated(data, plan), 150),
        "centralised, nn.Embedding": (centralised(data, plan, bag=False), 60),
        "centralised, nn.EmbeddingBag": (centralised(data, plan, bag=True), 60),
        "one by one": (one_by_one(data, plan), 2),
    }
    time = medians(seconds_per_round(contenders, options.blocks))
    central = min(seconds for name, seconds in time.items() if name.startswith("centralised"))
    result = {
        "data": data.name,
        "blocks": options.blocks,
        "threads": torch.get_num_threads(),
        "rounds_per_second": {name: 1 / seconds for name, seconds in time.items()},
        "times_centralised": central / time["fedrows"],
        "times_one_by_one": time["one by one"] / time["fedrows"],
    }
    for name, seconds in time.items():
        print(f"{name:30} {1 / seconds:8.1f} rounds/s")
    print(f"fedrows is {result['times_centralised']:.2f} × centralised (bar: 1.5)")
    print(f"fedrows is {result['times_one_by_one']:.0f} × one by one (bar: 50)")
    options.write(result)
    return result


def movielens_or_alike() -> FederatedData:
    """MovieLens if the file is there, else made data with as many clients, items and examples."""
    task = catalogue.task("movielens")
    try:
        return task.load(task.options())
    except DataError:
        task = catalogue.task("synthetic")
        shapes = {"clients": 6040, "items": 3706, "examples_per_client": 165}
        return task.load(task.options(**shapes))


def simulated(data: FederatedData, plan: Plan) -> Rounds:
    """FedSubAvg in fedrows."""
    model, algorithm = Logistic(data), FedSubAvg()
    fleet = SimulatedFleet(model, algorithm, data, plan)
    loop = rounds(fleet, plan, begin(model, algorithm, plan))

    def run(count: int) -> None:
        for _ in itertools.islice(loop, count):
            pass

    return run


class Plain(nn.Module):
    """Logistic regression as one writes it in PyTorch."""

    def __init__(self, rows: int, bag: bool, sparse: bool = True) -> None:
        super().__init__()
        self.weight = (
            nn.EmbeddingBag(rows, 1, mode="sum", sparse=sparse)
            if bag
            else nn.Embedding(rows, 1, sparse=sparse)
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, features: Tensor) -> Tensor:
        found = self.weight(features)  # (B, 1) from a bag, else (B, L, 1)
        total = found if found.dim() == 2 else found.sum(1)
        return total[:, 0] + self.bias


def centralised(data: FederatedData, plan: Plan, bag: bool) -> Rounds:
    """SGD on pooled data: as many samples a round, in I large steps."""
    ((name, column),) = data.train.ids.items()
    assert isinstance(column, Tensor), "an example has as many ids as any other"
    model = Plain(data.tables[data.fields[name]], bag)
    optimiser = torch.optim.SGD(model.parameters(), lr=plan.lr)
    shape = (plan.local_steps, plan.clients_per_round * plan.batch_size)
    position = torch.randint(len(data.train), shape)
    batches = list(zip(column[position], data.train.label[position], strict=True))

    def run(count: int) -> None:
        for _ in range(count):
            for ids, label in batches:
                optimiser.zero_grad()
                binary_cross_entropy_with_logits(model(ids), label).backward()
                optimiser.step()

    return run


def one_by_one(data: FederatedData, plan: Plan) -> Rounds:
    """FedAvg as a loop over the clients, each training a copy of the whole model."""
    ((name, column),) = data.train.ids.items()
    assert isinstance(column, Tensor), "an example has as many ids as any other"
    server = Plain(data.tables[data.fields[name]], bag=False)
    client = Plain(data.tables[data.fields[name]], bag=False)
    optimiser = torch.optim.SGD(client.parameters(), lr=plan.lr)
    all_labels, splits = data.train.label, data.train.splits

    def run(count: int) -> None:
        for _ in range(count):
            cohort = torch.randperm(data.clients)[: plan.clients_per_round]
            sizes = data.sizes[cohort].to(torch.float32)
            mean = {key: torch.zeros_like(x) for key, x in server.state_dict().items()}
            for k, share in zip(cohort.tolist(), (sizes / sizes.sum()).tolist(), strict=True):
                client.load_state_dict(server.state_dict())
                ids, label = (
                    column[splits[k] : splits[k + 1]],
                    all_labels[splits[k] : splits[k + 1]],
                )
                for _ in range(plan.local_steps):
                    batch = torch.randint(len(ids), (plan.batch_size,))
                    optimiser.zero_grad()
                    loss = binary_cross_entropy_with_logits(client(ids[batch]), label[batch])
                    loss.backward()
                    optimiser.step()
                for key, x in client.state_dict().items():
                    mean[key] += share * x
            server.load_state_dict(mean)

    return run
