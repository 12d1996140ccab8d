"""A recorded step as an ONNX file of standard operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.export import Dim

from fedrows.device.graph import example
from fedrows.device.one_step import OneStep, TensorFacts
from fedrows.runs.export import quiet_exporter

OPSET = 18


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
