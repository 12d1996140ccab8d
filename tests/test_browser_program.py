"""Device programs in Chromium give PyTorch's numbers: zoo, LSTM, DIN and matrix factorisation."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import device_programs
import pytest
import torch
from browser_pages import bare_page, browser, dist  # noqa: F401
from fast_paths import federation, model_of
from zoo import ZOO

from fedrows import catalogue
from fedrows.algorithm import Algorithm, Round
from fedrows.algorithms.fedavg import FedAvg
from fedrows.client import Assignment, train
from fedrows.data.batches import local_data
from fedrows.data.federation import FederatedData
from fedrows.device.program import build
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.params import Submodels, take
from fedrows.rows.ragged import Ragged

PLAN = Plan(local_steps=20, batch_size=4, device="cpu", seed=3)

TRAIN = """async ([files, given, start]) => {
  const {Program, indexOf, columnsOf} = await import("/device.js");
  const bytes = Object.fromEntries(Object.entries(files).map(
    ([name, text]) => [name, Uint8Array.from(atob(text), (x) => x.charCodeAt(0))]));
  const program = await Program.load("test", bytes);
  const index = indexOf(given, program.manifest);
  const floats = (of) => Object.fromEntries(
    Object.entries(of).map(([name, x]) => [name, Float32Array.from(x)]));
  const submodel = (x) => x && {rows: floats(x.rows), dense: floats(x.dense)};
  const result = await program.train({
    ...start, ...submodel(start), sent: submodel(start.sent), kept: submodel(start.kept), index,
    examples: columnsOf(given, program.manifest, index)});
  const lists = (of) => Object.fromEntries(Object.entries(of).map(([name, x]) => [name, [...x]]));
  const listed = (x) => x && {rows: lists(x.rows), dense: lists(x.dense)};
  return {...listed(result), steps: result.steps, losses: result.losses, kept: listed(result.kept),
          returns: Object.entries(result.returns).map(([name, x]) => [name, listed(x)])};
}"""


def given_of(data: FederatedData, client: int) -> dict[str, Any]:
    """A client's examples as an app gives them to the browser's device."""
    examples = data.train.of(torch.tensor([client]))
    ids: dict[str, Any] = {}
    for name, column in examples.ids.items():
        if isinstance(column, Ragged):
            ends = column.offsets.tolist()
            ids[name] = [column.values[a:b].tolist() for a, b in pairwise(ends)]
        else:
            ids[name] = column.tolist()
    numbers = {name: x.tolist() for name, x in examples.numbers.items()}
    return {"ids": ids, "label": examples.label.tolist(), "numbers": numbers}


def lists_of(submodel: Submodels | None) -> dict[str, Any] | None:
    """A submodel as JSON; None if there is none."""
    if submodel is None:
        return None
    return {
        "rows": {table: x.flatten().tolist() for table, x in submodel.rows.items()},
        "dense": {name: x.flatten().tolist() for name, x in submodel.dense.items()},
    }


def drift(like: Submodels, seed: int) -> Submodels:
    """Made-up numbers in the form of a submodel."""
    generator = torch.Generator().manual_seed(seed)
    return like.map(lambda x: torch.randn(x.shape, generator=generator) / 50)


def compare(
    page: Any,
    model: Model,
    data: FederatedData,
    lr: float,
    plan: Plan = PLAN,
    client: int = 1,
    algorithm: Algorithm = FedAvg(),  # noqa: B008
) -> float:
    """The largest difference between PyTorch and Chromium after the local steps of a round."""
    data = data.to(torch.device("cpu"), torch.float32)
    program = build(model, data, plan, algorithm)
    files = {
        **program.more,
        "step.onnx": program.step,
        "manifest.json": json.dumps(dict(program.manifest)).encode(),
    }
    who = torch.tensor([client])
    index = {table: sets.select(who) for table, sets in data.index.items()}
    start = take(model.start(), index, 1)
    round_ = Round(5, lr, data.clients, 1.0, who)
    shared = start.without(data.local)
    sent = drift(shared, 1) if type(algorithm).send is not Algorithm.send else None
    kept = drift(shared, 2) if algorithm.keeps else None
    given = Assignment(local_data(data, who), start, sent, kept, round_)
    upload = train(model, algorithm, plan, given)
    begun = {"lr": lr, "round": 5, "number": client}
    begun |= {**(lists_of(start) or {}), "sent": lists_of(sent), "kept": lists_of(kept)}
    encoded = {name: base64.b64encode(x).decode() for name, x in files.items()}
    result = page.evaluate(TRAIN, [encoded, given_of(data, client), begun])
    assert result["steps"] == len(result["losses"]) == plan.local_steps
    worst, moved = 0.0, 0.0
    for kind, ours in (("rows", upload.update.rows), ("dense", upload.update.dense)):
        for name, update in ours.items():
            begin = getattr(start, kind)[name]
            theirs = torch.tensor(result[kind][name]).view_as(begin) - begin
            worst = max(worst, float((theirs - update).abs().max()))
            moved = max(moved, float(update.abs().max()))
    assert moved > 1e-3, "nothing was trained, so nothing is compared"
    assert [name for name, _ in result["returns"]] == [*upload.extra]
    for theirs, ours in (
        *((x, upload.extra[name]) for name, x in result["returns"]),
        (result["kept"], upload.kept),
    ):
        for kind, part in (theirs or {}).items():
            for name, x in part.items():
                wanted = getattr(ours, kind)[name]
                worst = max(worst, float((torch.tensor(x).view_as(wanted) - wanted).abs().max()))
    assert (result["kept"] is None) == (upload.kept is None)
    return worst


@pytest.mark.slow(minutes=0.5)
@pytest.mark.parametrize("name", ZOO)
def test_zoo_in_chromium(name: str, bare_page: Any) -> None:  # noqa: F811
    animal = ZOO[name]
    data = animal.data()
    model = Lifted(animal.module(), data, animal.embeddings, dense=animal.dense)
    assert compare(bare_page, model, data, animal.lr) < 1e-5


@pytest.mark.slow(minutes=0.2)
@pytest.mark.parametrize("name", ["fedprox", "scaffold", "boundedsubavg", "steppedmean"])
def test_what_algorithms_add_in_chromium(name: str, bare_page: Any) -> None:  # noqa: F811
    """The proximal term; control variates, kept and sent; the bounded rule; marks of rows."""
    model, data = device_programs.factors()
    algorithm = catalogue.algorithm(name)(**({"mu": 0.5} if name == "fedprox" else {}))
    assert compare(bare_page, model, data, 0.3, client=3, algorithm=algorithm) < 1e-5


@pytest.mark.slow(minutes=0.4)
@pytest.mark.parametrize("kind", ["LSTM", "DIN", "dropout", "adam", "mf"])
def test_our_models_in_chromium(kind: str, bare_page: Any) -> None:  # noqa: F811
    plan = replace(PLAN, optimizer="adam") if kind == "adam" else PLAN
    if kind == "mf":
        model, data = device_programs.factors()
    else:
        data = federation(kind)
        model = model_of(kind, data)
    lr = 0.01 if kind == "adam" else 0.3
    assert compare(bare_page, model, data, lr, plan, client=3) < 1e-5
