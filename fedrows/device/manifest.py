"""What a device has to know beside step.onnx, in what JSON knows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch

from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.device.one_step import OneStep, TensorFacts
from fedrows.device.step_optimizers import STATES
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.rows.ragged import Ragged
from fedrows.runs.export import name_of
from fedrows.version import __version__

FORMAT = 1
TYPES = {torch.float32: "float32", torch.int64: "int64"}


def manifest_of(
    step: OneStep,
    data_of_step: bytes,
    starts: Mapping[str, Any],
    contract: str | None,
    vocabulary: bytes | None = None,
) -> dict[str, Any]:
    """The manifest of a program.

    starts: where the rows of local tables begin, by table. vocabulary: what is in its file.
    """
    data, plan, schema = step.data, step.plan, step.model.schema
    return {
        "format": FORMAT,
        "fedrows": __version__,
        "model": name_of(step.model),
        "step": {
            "file": "step.onnx",
            "bytes": len(data_of_step),
            "sha256": hashlib.sha256(data_of_step).hexdigest(),
            "inputs": _tensors(step.inputs()),
            "outputs": _tensors(step.outputs()),
        },
        "tables": {
            name: {
                "rows": layout.rows,
                "width": layout.width,
                "local": name in data.local,
                "padded": name in data.padded,
                **({"start": starts[name]} if name in starts else {}),
            }
            for name, layout in schema.tables.items()
        },
        "dense": {name: list(shape) for name, shape in schema.dense.items()},
        "fields": {name: _field(data, name) for name in data.train.ids},
        "numbers": {name: list(x.shape[1:]) for name, x in data.train.numbers.items()},
        "labels": data.labels,
        "weighted": data.train.weight is not None,
        "plan": _plan(plan),
        "random": step.model.random,
        "optimizer": {"name": plan.optimizer, "state": list(STATES[plan.optimizer])},
        "algorithm": _algorithm(step.algorithm),
        "returns": list(step.algorithm.returns),
        "keeps": step.algorithm.keeps,
        "occurred": step.algorithm.needs_occurred,
        "encoder": data.encoder.as_facts() if data.encoder else None,
        "vocabulary": None if vocabulary is None else hashlib.sha256(vocabulary).hexdigest(),
        "contract": contract,
    }


def _tensors(facts: dict[str, TensorFacts]) -> dict[str, Any]:
    return {n: {"shape": list(x.shape), "type": TYPES[x.dtype]} for n, x in facts.items()}


def _field(data: FederatedData, name: str) -> dict[str, Any]:
    column, table = data.train.ids[name], data.fields[name]
    if isinstance(column, Ragged):
        return {"table": table, "kind": "list", "length": column.length}
    if column.dim() == 2:
        return {"table": table, "kind": "several", "width": column.shape[1]}
    return {"table": table, "kind": "one"}


def _plan(plan: Plan) -> dict[str, Any]:
    names = ("seed", "batches", "local_steps", "epochs", "batch_size", "clip", "weight_decay")
    facts = {name: getattr(plan, name) for name in names}
    if plan.seed >= 2**53:  # which JSON's numbers do not hold everywhere
        facts["seed"] = str(plan.seed)
    return facts


def _algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """The client's side; what `finish` gives is a sum of update, sent and kept, times factors."""
    of = type(algorithm)
    facts: dict[str, Any] = {
        "name": algorithm.name,
        "options": {item.name: getattr(algorithm, item.name) for item in options(of)},
        "sends": of.send is not Algorithm.send,
        "extra": {},
        "kept": {},
    }
    return {**facts, **of.finish_on_device}
