"""A client's round twice: by PyTorch, and by its device program in ONNX Runtime."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from fedrows_device import Examples, Program, Update
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.client import Assignment, Upload, train
from fedrows.data.batches import local_data
from fedrows.data.federation import FederatedData
from fedrows.device.program import build
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Submodels, take
from fedrows.rows.ragged import Ragged

CLOSE = 1e-5
LR = 0.2


def examples_of(data: FederatedData, program: Program, client: int) -> Examples:
    """The examples of one client as a device has them: ids and lists, no slots."""
    low, high = (int(x) for x in data.train.splits[client : client + 2])
    some, ids = torch.arange(low, high), {}
    for name, column in data.train.ids.items():
        if isinstance(column, Ragged):
            picked = column.pick(some)
            ends = picked.offsets.tolist()
            ids[name] = [picked.values[a:b].numpy() for a, b in itertools.pairwise(ends)]
        else:
            ids[name] = column[some].numpy()
    weight = None if data.train.weight is None else data.train.weight[some].numpy()
    numbers = {name: x[some].numpy() for name, x in data.train.numbers.items()}
    return Examples.build(program.manifest, ids, data.train.label[some].numpy(), numbers, weight)


def by_torch(
    model: Model, data: FederatedData, plan: Plan, algorithm: Algorithm, client: int
) -> tuple[Assignment, Upload]:
    """A round of one client by PyTorch; what is sent and kept is made up."""
    cohort = torch.tensor([client])
    index = {table: sets.select(cohort) for table, sets in data.index.items()}
    start = take(model.start(), index, 1)
    generator = torch.Generator().manual_seed(client)

    def drift(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator) / 50

    shared = start.without(data.local)
    sends = type(algorithm).send is not Algorithm.send
    sent = shared.map(drift) if sends else None
    kept = shared.map(drift) if algorithm.keeps else None
    lr = 0.01 if plan.optimizer.startswith("adam") else LR  # see test_the_optimisers
    facts = Round(3, lr, 12, 1.0, cohort)
    given = Assignment(local_data(data, cohort), start, sent, kept, facts)
    return given, train(model, algorithm, plan, given)


def by_device(program: Program, data: FederatedData, given: Assignment, client: int) -> Update:
    """The same round by the light client."""
    start = given.start
    return program.train(
        examples_of(data, program, client),
        {t: x.numpy() for t, x in start.rows.items() if t not in data.local},
        {name: x[0].numpy() for name, x in start.dense.items()},
        {t: start.rows[t].numpy() for t in data.local},
        round=given.round.number,
        number=client,
        lr=given.round.lr,
        sent=None if given.sent is None else flat(given.sent),
        kept=None if given.kept is None else flat(given.kept),
    )


def flat(part: Submodels) -> dict[str, np.ndarray]:
    """The tensors of one client by the names of a program."""
    rows = {f"rows/{t}": x.numpy() for t, x in part.rows.items()}
    return rows | {f"dense/{name}": x[0].numpy() for name, x in part.dense.items()}


def gap(model: Model, data: FederatedData, plan: Plan, algorithm: Algorithm, client: int) -> float:
    """The largest difference between the two rounds; also asserts that the round moved a number."""
    built = build(model, data, plan, algorithm)
    program = Program.of(dict(built.manifest), built.step)
    given, wanted = by_torch(model, data, plan, algorithm, client)
    found = by_device(program, data, given, client)
    mine = {f"rows/{t}": x for t, x in found.rows.items()}
    mine |= {f"dense/{name}": x for name, x in found.dense.items()}
    for table, rows in found.local_rows.items():
        mine[f"rows/{table}"] = rows - given.start.rows[table].numpy()
    its = flat(wanted.update)
    pairs = [(mine[name], its[name]) for name in its]
    assert mine.keys() == its.keys()
    assert max(float(np.abs(x).max()) for x in its.values() if x.size) > 100 * CLOSE
    assert found.steps == int(wanted.steps[0])
    assert found.extra.keys() == wanted.extra.keys()
    for name, part in wanted.extra.items():
        other = flat(part)
        pairs += [(found.extra[name][key], other[key]) for key in other]
    if wanted.kept is not None:
        assert found.kept is not None
        pairs += [(found.kept[key], x) for key, x in flat(wanted.kept).items()]
    if wanted.occurred is not None:
        assert found.occurred is not None
        for table, marks in wanted.occurred.items():
            np.testing.assert_array_equal(found.occurred[table], marks.numpy())
    return max(float(np.abs(x - y).max()) for x, y in pairs if x.size)
