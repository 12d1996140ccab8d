"""Writes a device program: step.onnx and manifest.json in a folder.

    program = build(model, data, plan, algorithm)
    program.save(Path("program"))

The numbers of a model are not in it: a device gets its rows and the dense tensors in every round.
Where rows of local tables begin is in it, for no server has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.data.values import text_of
from fedrows.device.graph import NotRecordable, example, recorded
from fedrows.device.manifest import manifest_of
from fedrows.device.one_step import OneStep, TensorFacts
from fedrows.device.step_optimizers import STATES
from fedrows.files.whole import reason, write_whole
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.runs.export import ExportError, check_format, last_line, name_of, quiet_exporter

STEP, MANIFEST, VOCABULARY = "step.onnx", "manifest.json", "vocabulary.json"
OPSET = 18


@dataclass(frozen=True)
class DeviceProgram:
    """One client's local training, for devices without PyTorch."""

    step: bytes  # ONNX
    manifest: Mapping[str, Any]
    more: Mapping[str, bytes] = field(default_factory=dict)  # files by name: starts of local rows

    def save(self, folder: Path) -> None:
        """Writes the files; the manifest last, for it names the others."""
        text = json.dumps(self.manifest, indent=1, ensure_ascii=False) + "\n"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            files = {STEP: self.step, **self.more, MANIFEST: text.encode()}
            for name, content in files.items():
                write_whole(folder / name, content)
        except OSError as error:
            raise ExportError(
                f"{folder} cannot be written ({reason(error)}): make room, or name another folder."
            ) from error


def build(
    model: Model | nn.Module,
    data: FederatedData,
    plan: Plan,
    algorithm: Algorithm,
    contract: str | None = None,
) -> DeviceProgram:
    """The program of a model, a plan and an algorithm; an ExportError says what rules it out.

    data: any with the tables and fields of the federation; no example of theirs goes into the
    program. contract: the digest of a deployment's contract.
    """
    check_format("onnx")
    made = model if isinstance(model, Model) else Lifted(model, data)
    _check(made, data, plan, algorithm)
    fixed: dict[str, int] = {}
    first: Exception | None = None
    while True:
        step = OneStep(made, data, plan, algorithm, fixed)
        try:
            content = as_onnx(step, recorded(step))
            break
        except Exception as error:  # whatever the recorder and the exporter meet in user's code
            first = first or error
            usual = {name: x for name, x in step.usual_sizes().items() if name not in fixed}
            bound = error.bound if isinstance(error, NotRecordable) else None
            if bound in usual:  # a module may be made for batches or lists of one size
                fixed = {**fixed, bound: usual[bound]}
            elif usual and bound is None:
                fixed = {**fixed, **usual}
            else:
                text = f"{name_of(made)} cannot be a device program"
                raise ExportError(f"{text}: {last_line(first)}.") from first
    starts, files = _starts(made, data)
    files |= _vocabulary(data)
    manifest = manifest_of(step, content, starts, contract, files.get(VOCABULARY))
    return DeviceProgram(content, manifest, files)


def _starts(model: Model, data: FederatedData) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Where the rows of local tables begin: one row for all, or a file of float32 rows."""
    begins: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    own = [table for table in model.schema.tables if table in data.local]
    for number, table in enumerate(own):
        start = model.initial_rows()[0][table]
        rows = start(torch.arange(model.schema.tables[table].rows)).to(torch.float32)
        if len(rows) and bool((rows == rows[0]).all()):
            begins[table] = {"row": rows[0].tolist()}
        else:
            name = f"start-{number}.f32"
            files[name] = rows.numpy().astype("<f4").tobytes()
            begins[table] = {"file": name, "sha256": hashlib.sha256(files[name]).hexdigest()}
    return begins, files


def _vocabulary(data: FederatedData) -> dict[str, bytes]:
    """The values of shared tables, as text, in the order of their rows; none of a local one's."""
    features = data.encoder.features.values() if data.encoder else ()
    kinds = {feature.table: feature.kind for feature in features}
    words = {
        table: [text_of(word, kinds[table]) for word in values]
        for table, values in data.vocabulary.items()
        if table in kinds and table not in data.local
    }
    return {VOCABULARY: json.dumps(words, ensure_ascii=False).encode()} if words else {}


def _check(model: Model, data: FederatedData, plan: Plan, algorithm: Algorithm) -> None:
    """Raises where the plan or the algorithm rules a device program out."""
    finishes = type(algorithm).finish is not Algorithm.finish
    if finishes and not algorithm.finish_on_device:
        raise ExportError(
            f"{algorithm.name} computes what its clients send back in a way that a device program "
            "does not know: choose another algorithm."
        )
    if algorithm.pooled:
        raise ExportError(f"{algorithm.name} trains on pooled data, which no device has.")
    if data.labels == "ranking":
        raise ExportError(
            f"The labels of {data.name} are ranking, but a device program draws no negatives: "
            "export a run on other labels."
        )
    if plan.start != "zero":
        raise ExportError(
            f"start is {plan.start!r}, but a device counts no labels: export a run that starts at "
            "zero."
        )
    if plan.optimizer not in STATES:
        raise ExportError(
            f"optimizer is {plan.optimizer!r}, but a device program knows {', '.join(STATES)}."
        )
    if plan.dtype != "float32":
        raise ExportError(f"dtype is {plan.dtype}, but a device program computes in float32.")


def as_onnx(step: OneStep, graph: nn.Module) -> bytes:
    """The bytes of the file."""
    from fedrows.device.onnx_loops import TABLE  # which imports onnxscript

    inputs, outputs = step.inputs(), step.outputs()
    shapes = tuple(
        {axis: Dim.DYNAMIC for axis, x in enumerate(facts.shape) if isinstance(x, str)}
        for facts in inputs.values()
    )
    with quiet_exporter(), torch.no_grad():
        program: Any = torch.onnx.export(
            graph.eval(),
            tuple(example(step, 0).values()),
            input_names=list(inputs),
            output_names=list(outputs),
            dynamic_shapes=shapes,
            opset_version=OPSET,
            dynamo=True,
            custom_translation_table=TABLE,
            verbose=False,
        )
    model = program.model_proto
    _name_sizes(model.graph.input, inputs)
    _name_sizes(model.graph.output, outputs)
    del model.graph.value_info[:], model.metadata_props[:], model.graph.metadata_props[:]
    for node in model.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    return model.SerializeToString(deterministic=True)


def _name_sizes(values: Any, facts: Mapping[str, TensorFacts]) -> None:
    """Free sizes get the names that the manifest has for them."""
    for value in values:
        for dim, size in zip(
            value.type.tensor_type.shape.dim, facts[value.name].shape, strict=True
        ):
            if isinstance(size, str):
                dim.dim_param = size
            else:
                dim.dim_value = size
