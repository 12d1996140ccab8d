"""The slow twin: the published algorithms on the full model, one client after another.

Nothing here knows of submodels, cohorts or index sets; tests compare the package with it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrows.data.batches import batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.seeds import COHORT, choose

Vector = dict[str, Tensor]
Step = Callable[[Vector, Vector, list[int], int], Vector]


def federation(seed: int = 0, clients: int = 7, rows: int = 12, columns: int = 3) -> FederatedData:
    """A small federation with unequal clients, one of them with a single example."""
    rng = np.random.default_rng(seed)
    sizes = np.maximum(1, rng.poisson(6, clients))
    sizes[0] = 1
    owner = np.repeat(np.arange(clients), sizes)
    # Each client sees a few rows only, with duplicates inside an example.
    low = rng.integers(0, rows, clients)[owner, None]
    ids = (low + rng.integers(0, 4, (len(owner), columns))) % rows
    other = (owner[:, None] + rng.integers(0, 3, (len(owner), 1)))[:, 0] % 5
    return FederatedData.build(
        client=owner,
        ids={"item": ids, "kind": other},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"item": rows, "kind": 5},
    )


def index_of(held: Sequence[Collection[int]]) -> Index:
    """The index of clients that hold these rows each; it knows of no federation."""
    return Index.of([torch.tensor(sorted(ids), dtype=torch.int64) for ids in held])


def zeros(data: FederatedData) -> Vector:
    """A full logistic regression, all zero."""
    model = {table: torch.zeros(rows, dtype=torch.float64) for table, rows in data.tables.items()}
    return {**model, "bias": torch.zeros((), dtype=torch.float64)}


def examples(data: FederatedData, client: int, plan: Plan, round_: int) -> Iterator[tuple]:
    """One client's batches in feature ids: (ids by field, label)."""
    cohort = torch.tensor([client])
    index = {table: whole.select(cohort) for table, whole in data.index.items()}
    for batch in batches(local_data(data, cohort), index, plan, round_):
        real = slice(None) if batch.weight is None else batch.weight[0] > 0
        ids = {f: index[data.fields[f]].ids[x[0][real]] for f, x in batch.ids.items()}
        yield ids, batch.label[0][real].double()


def gradient(model: Vector, ids: Vector, label: Tensor) -> Vector:
    """The gradient of the mean loss over one batch, by autograd on the full model."""
    leaves = {name: x.clone().requires_grad_() for name, x in model.items()}
    score = leaves["bias"] + sum(
        leaves[f][x].sum(1) if x.dim() == 2 else leaves[f][x] for f, x in ids.items()
    )
    loss = binary_cross_entropy_with_logits(score, label)
    found = torch.autograd.grad(loss, list(leaves.values()))
    return dict(zip(leaves, found, strict=True))


def combine(terms: list[tuple[float, Vector]]) -> Vector:
    """Σ factor · vector."""
    return {name: sum(factor * x[name] for factor, x in terms) for name in terms[0][1]}


def clipped(g: Vector, most: float | None) -> Vector:
    """The gradient, no longer than `most`."""
    norm = float(sum(x.square().sum() for x in g.values()) ** 0.5)
    return g if most is None or norm <= most else combine([(most / norm, g)])


def weight_of(data: FederatedData, plan: Plan) -> list[float]:
    """w_i of every client."""
    return [float(n) if plan.weighting == "examples" else 1.0 for n in data.sizes]


def train(
    data: FederatedData,
    plan: Plan,
    step: Step,
    mu: float = 0.0,
    scaffold: bool = False,
) -> Vector:
    """The model after the plan's rounds; `step` makes the next one of a model and a mean update."""
    model, lr, weight = zeros(data), plan.lr, weight_of(data, plan)
    control, own = zeros(data), [zeros(data) for _ in weight]
    for number in range(1, plan.rounds + 1):
        cohort = choose(plan.seed, COHORT, number, data.clients, plan.clients_per_round).tolist()
        updates, changes = [], []
        for client in cohort:
            here, steps = model, 0
            for ids, label in examples(data, client, plan, number):
                g = clipped(gradient(here, ids, label), plan.clip)
                g = combine([(1, g), (mu, here), (-mu, model), (1, control), (-1, own[client])])
                here, steps = combine([(1, here), (-lr, g)]), steps + 1
            updates.append(combine([(1, here), (-1, model)]))
            if scaffold:
                change = combine([(-1, control), (-1 / (steps * lr), updates[-1])])
                own[client] = combine([(1, own[client]), (1, change)])
                changes.append(change)
        shares = [weight[client] / sum(weight[c] for c in cohort) for client in cohort]
        mean = combine(list(zip(shares, updates, strict=True)))
        if scaffold:
            parts = [(weight[c] / sum(weight), x) for c, x in zip(cohort, changes, strict=True)]
            control = combine([(1, control), *parts])
        model, lr = step(model, mean, cohort, number), lr * plan.lr_decay
    return model


def averaged(model: Vector, mean: Vector, cohort: list[int], number: int) -> Vector:
    """The step of FedAvg: the model moves by the mean update."""
    return combine([(1, model), (1, mean)])


Factor = Callable[[str, int, list[int], int], float | None]


def row_factor(data: FederatedData, plan: Plan, mean: str) -> Factor:
    """What a row's mean update is multiplied by (table, row, cohort, round), by the row's mean.

    None: nobody in the cohort holds the row, or nobody stepped on it if the mean is "stepped".
    """
    weight = weight_of(data, plan)
    held = {
        table: [set(index.slice(i, i + 1).ids.tolist()) for i in range(data.clients)]
        for table, index in data.index.items()
    }

    def factor(table: str, row: int, cohort: list[int], number: int) -> float | None:
        holders = [i for i in range(data.clients) if row in held[table][i]]
        present = [i for i in cohort if i in holders]
        if mean == "stepped":
            present = [i for i in present if row in seen(data, plan, i, number, table)]
        if not present:
            return None
        expected = sum(weight[i] for i in holders) / sum(weight)
        here = sum(weight[i] for i in present) / sum(weight[i] for i in cohort)
        if mean == "bounded":
            return 1 / max(expected, here)
        return {"cohort": 1.0, "heat": 1 / expected}.get(mean, 1 / here)

    return factor


def seen(data: FederatedData, plan: Plan, client: int, number: int, table: str) -> set[int]:
    """The rows of a table that a client's batches hold in a round."""
    return {
        row
        for ids, _ in examples(data, client, plan, number)
        for name, x in ids.items()
        if data.fields[name] == table
        for row in x.reshape(-1).tolist()
    }
