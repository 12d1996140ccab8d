"""What one would do without fedrows, in plain PyTorch, as a good engineer would write it.

centralised    SGD on pooled data: I steps of K · B examples, batches gathered beforehand
captured       the same steps in one CUDA graph
one by one     FedAvg as a loop: every client of the cohort trains a copy of the model in turn;
               `processes` splits the same loop over processes of one thread
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from benchmarks.speed.blocks import Rounds
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan

Batches = Sequence[tuple[dict[str, Tensor], Tensor]]  # fields and labels of each step


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
        rows_ = self.weight(features)  # (B, 1) from a bag, else (B, L, 1)
        total = rows_ if rows_.dim() == 2 else rows_.sum(1)
        return total[:, 0] + self.bias


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
    batches = []
    for _ in range(plan.local_steps):
        some = torch.randint(len(data.train), (plan.clients_per_round * plan.batch_size,))
        fields = {name: x.to(device) for name, x in data.train.fields(some).items()}
        batches.append((fields, data.train.label[some].to(device, torch.float32)))
    return batches


def centralised(module: nn.Module, batches: Batches, lr: float) -> Rounds:
    """Rounds of I steps on pooled data."""
    optimiser = torch.optim.SGD(module.parameters(), lr=lr)

    def run(count: int) -> None:
        for _ in range(count):
            for fields, label in batches:
                _step(module, optimiser, fields, label)
        _finish({"label": label})

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

    held = (module, optimiser, batches)  # a graph knows addresses and keeps nothing alive

    def run(count: int) -> None:
        assert held
        for _ in range(count):
            graph.replay()
        torch.cuda.synchronize()

    return run


class Client:
    """A copy of the server's model that is trained for one client after another."""

    def __init__(self, server: nn.Module, train: Examples, plan: Plan) -> None:
        self._server, self._plan = server, plan
        self._train = train.to(plan.torch_device, torch.float32)
        self._module = copy.deepcopy(server)
        for part in self._module.modules():
            if isinstance(part, nn.RNNBase):
                part.flatten_parameters()  # for cuDNN, which a copy is not ready for
        self._optimiser = torch.optim.SGD(self._module.parameters(), lr=plan.lr)

    def train(
        self, cohort: Sequence[int], shares: Sequence[float], total: dict[str, Tensor]
    ) -> None:
        """Fills `total` with Σ share · model over the cohort."""
        for x in total.values():
            x.detach().zero_()
        for k, share in zip(cohort, shares, strict=True):
            self._module.load_state_dict(self._server.state_dict())
            low, high = self._train.splits[k : k + 2].tolist()
            for _ in range(self._plan.local_steps):
                size = (self._plan.batch_size,)
                some = torch.randint(low, high, size, device=self._plan.torch_device)
                fields, label = self._train.fields(some), self._train.label[some]
                _step(self._module, self._optimiser, fields, label)
            for name, x in self._module.named_parameters():
                total[name].detach().add_(x.detach(), alpha=share)


def one_by_one(module: nn.Module, data: FederatedData, plan: Plan) -> Rounds:
    """Rounds of FedAvg, one client after another."""
    client = Client(module, data.train, plan)
    mean = {name: torch.zeros_like(x) for name, x in module.named_parameters()}

    def run(count: int) -> None:
        for _ in range(count):
            cohort = torch.randperm(data.clients)[: plan.clients_per_round]
            share = data.sizes[cohort].to(torch.float32)
            client.train(cohort.tolist(), (share / share.sum()).tolist(), mean)
            module.load_state_dict(mean)
        _finish(mean)

    return run


def _step(
    module: nn.Module, optimiser: torch.optim.Optimizer, fields: dict[str, Tensor], label: Tensor
) -> None:
    optimiser.zero_grad()
    binary_cross_entropy_with_logits(module(**fields), label).backward()
    optimiser.step()


def _finish(like: Mapping[str, Tensor]) -> None:
    """Waits for a GPU, so that a block's time is the time of its work."""
    if any(x.is_cuda for x in like.values()):
        torch.cuda.synchronize()
