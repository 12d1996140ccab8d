"""What one would do without fedrows, in plain PyTorch, as a good engineer would write it.

centralised    SGD on pooled data: I steps of K · B examples, batches gathered beforehand
captured       the same steps in one CUDA graph
one by one     FedAvg as a loop: every client of the cohort trains a copy of the model in turn
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrows.bench.blocks import Rounds
from fedrows.data import FederatedData
from fedrows.plan import Plan

Batches = Sequence[tuple[dict[str, Tensor], Tensor]]  # fields and labels of each step


class Text(nn.Module):
    """Embedding 25, nn.LSTM of two layers of 100, the last word's output."""

    def __init__(self, words: int, sparse: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, 25, sparse=sparse)
        self.lstm = nn.LSTM(25, 100, 2, batch_first=True)
        self.output = nn.Linear(100, 1)

    def forward(self, text: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embedding(text))
        return self.output(hidden[:, -1])[:, 0]


class Dice(nn.Module):
    """DIN's activation, over PyTorch's batch normalisation."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(size, eps=1e-3, affine=False, track_running_stats=False)
        self.alpha = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        p = torch.sigmoid(self.norm(x))
        return x * (p + (1 - p) * self.alpha)


class Interest(nn.Module):
    """DIN as its paper draws it, 18 wide."""

    def __init__(self, users: int, items: int, sparse: bool) -> None:
        super().__init__()
        self.users = nn.Embedding(users, 18, sparse=sparse)
        self.items = nn.Embedding(items, 18, sparse=sparse)
        self.unit = nn.Sequential(
            nn.Linear(72, 80), nn.Sigmoid(), nn.Linear(80, 40), nn.Sigmoid(), nn.Linear(40, 1)
        )
        self.tower = nn.Sequential(
            nn.Linear(90, 200), Dice(200), nn.Linear(200, 80), Dice(80), nn.Linear(80, 1)
        )

    def forward(self, user: Tensor, item: Tensor, history: Tensor) -> Tensor:
        q, k = self.items(item), self.items(history)  # (B, w), (B, L, w)
        mask = history != 0
        wide = q.unsqueeze(1).expand_as(k)
        scores = self.unit(torch.cat([wide, k, wide - k, wide * k], -1)).squeeze(-1)  # (B, L)
        share = scores.masked_fill(~mask, -1e9).softmax(-1)
        attention = (share.unsqueeze(1) @ k).squeeze(1)
        total = (k * mask.unsqueeze(-1)).sum(1)
        return self.tower(torch.cat([self.users(user), q, total, q * total, attention], 1))[:, 0]


def pooled_batches(data: FederatedData, plan: Plan) -> Batches:
    """I batches of K · B examples of all clients."""
    device = plan.torch_device
    found = []
    for _ in range(plan.local_steps):
        some = torch.randint(len(data.train), (plan.clients_per_round * plan.batch_size,))
        fields = {name: x.to(device) for name, x in data.train.fields(some).items()}
        found.append((fields, data.train.label[some].to(device, torch.float32)))
    return found


def centralised(module: nn.Module, batches: Batches, lr: float) -> Rounds:
    """Rounds of I steps on pooled data."""
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)

    def run(count: int) -> None:
        for _ in range(count):
            for fields, label in batches:
                _step(module, optimiser, fields, label)
        _finish(label)

    return run


def captured(module: nn.Module, batches: Batches, lr: float) -> Rounds:
    """The same in a CUDA graph; embeddings must have dense gradients."""
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for fields, label in batches[:3]:
            _step(module, optimiser, fields, label)
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for fields, label in batches:
            _step(module, optimiser, fields, label)

    def run(count: int) -> None:
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()

    return run


def one_by_one(module: nn.Module, data: FederatedData, plan: Plan) -> Rounds:
    """Rounds of FedAvg, one client after another."""
    device, splits = plan.torch_device, data.train.splits
    train = data.train.to(device, torch.float32)
    server, client = module, copy.deepcopy(module)
    for part in client.modules():
        if isinstance(part, nn.RNNBase):
            part.flatten_parameters()  # for cuDNN, which a copy is not ready for
    optimiser = torch.optim.SGD(client.parameters(), lr=plan.lr)

    def run(count: int) -> None:
        for _ in range(count):
            cohort = torch.randperm(data.clients)[: plan.clients_per_round]
            mean = {name: torch.zeros_like(x) for name, x in server.state_dict().items()}
            for k in cohort.tolist():
                client.load_state_dict(server.state_dict())
                low, high = int(splits[k]), int(splits[k + 1])
                for _ in range(plan.local_steps):
                    some = torch.randint(low, high, (plan.batch_size,), device=device)
                    _step(client, optimiser, train.fields(some), train.label[some])
                for name, x in client.state_dict().items():
                    mean[name].add_(x, alpha=1 / len(cohort))
            server.load_state_dict(mean)
        _finish(train.label)

    return run


def _step(
    module: nn.Module, optimiser: torch.optim.Optimizer, fields: dict[str, Tensor], label: Tensor
) -> None:
    optimiser.zero_grad()
    binary_cross_entropy_with_logits(module(**fields), label).backward()
    optimiser.step()


def _finish(like: Tensor) -> None:
    """Waits for a GPU, so that a block's time is the time of its work."""
    if like.is_cuda:
        torch.cuda.synchronize()
