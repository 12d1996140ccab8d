"""A step recorded as a graph of PyTorch's operations, forward and backward, with free sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain, count
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from fedrows.device.one_step import OneStep, TensorFacts
from fedrows.device.time_loops import recorded_as_one


def _add_each_(own: list[Tensor], others: list[Tensor], alpha: float = 1) -> None:
    for x, y in zip(own, others, strict=True):
        x.add_(y, alpha=alpha)


_ONE_BY_ONE: dict[Any, Any] = {  # operations on lists of tensors, which ONNX does not have
    torch.ops.aten._foreach_add_.List: _add_each_,
    torch.ops.aten._foreach_mul.Scalar: lambda own, by: [x * by for x in own],
    torch.ops.aten._foreach_mul.Tensor: lambda own, by: [x * by for x in own],
}


class NotRecordable(Exception):
    """A step that a graph cannot stand for; the message says why."""

    def __init__(self, why: str, bound: str | None = None) -> None:
        super().__init__(why)
        self.bound = bound  # the size that it is made for


def recorded(step: OneStep) -> nn.Module:
    """The step as a module that takes the inputs by place and gives the outputs by place."""
    names = list(step.inputs())

    def by_place(*tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(step(dict(zip(names, tensors, strict=True))).values())

    examples = example(step, 0)
    with recorded_as_one():
        tracer: Any = make_fx(
            by_place, _ONE_BY_ONE, tracing_mode="symbolic", _allow_non_fake_inputs=True
        )
        graph: nn.Module = tracer(*examples.values())
        for name, x in [(n, x) for n, x in vars(graph).items() if isinstance(x, Tensor)]:
            delattr(graph, name)  # constants, which an exporter looks for among the buffers
            graph.register_buffer(name, x.detach())
        _check_free(graph, step.inputs())
        for trial in (0, 1):
            inputs = example(step, trial)
            results, wanted = graph(*inputs.values()), by_place(*inputs.values())
            for name, result, right in zip(step.outputs(), results, wanted, strict=True):
                if result.shape != right.shape or not torch.allclose(result, right, 1e-4, 1e-5):
                    raise NotRecordable(f"its recording gives other numbers for {name}")
    return graph


def example(step: OneStep, trial: int) -> dict[str, Tensor]:
    """Inputs of some size; every free size is another, and none is 0 or 1."""
    generator = torch.Generator().manual_seed(trial)
    sizes = _sizes(step, trial)
    rows = {t: sizes[f"rows of {t}"] for t in step.model.schema.tables}
    tensors = {}
    for name, facts in step.inputs().items():
        shape = [x if isinstance(x, int) else sizes[x] for x in facts.shape]
        if name.startswith("ids/"):
            table = step.data.fields[name.removeprefix("ids/")]
            lowest = -1 if table in step.data.padded else 0
            x = torch.randint(lowest, rows[table], shape, generator=generator)
        elif name == "label":
            x = torch.randint(0, 2, shape, generator=generator).to(facts.dtype)
        elif name == "key":
            x = torch.randint(-(2**62), 2**62, shape, generator=generator)
        elif name in ("weight", "count"):
            x = torch.ones(shape)
        elif name == "lr":
            x = torch.full(shape, 0.1)
        elif name.startswith("state/"):
            x = torch.rand(shape, generator=generator)  # squares are not negative
        else:
            x = torch.randn(shape, generator=generator) / 4
        tensors[name] = x
    return tensors


def _sizes(step: OneStep, trial: int) -> dict[str, int]:
    """A size for every word in the shapes.

    Equal sizes would be taken for one and the same, so each is unlike all others. Lists are as long
    as in the data or shorter: a module may have a place for no more.
    """
    sizes = dict(step.fixed)
    taken = {x for facts in step.inputs().values() for x in facts.shape if isinstance(x, int)}

    def take(name: str, wishes: Iterable[int]) -> None:
        if name not in sizes:
            sizes[name] = next(x for x in wishes if x not in taken)
            taken.add(sizes[name])

    for name, length in step.usual_sizes().items():
        if name != "batch":
            take(name, chain(range(length - trial, 1, -1), count(length + 1)))
    take("batch", count(7 - 3 * trial))
    for table in step.model.schema.tables:
        take(f"rows of {table}", count(23 - 5 * trial))
    return sizes


def _check_free(graph: nn.Module, inputs: Mapping[str, TensorFacts]) -> None:
    """Raises if the step is made for the sizes of one example."""
    places = [n for n in graph.graph.nodes if n.op == "placeholder"]  # type: ignore[union-attr]
    for node, facts in zip(places, inputs.values(), strict=True):
        for size, dimension in zip(node.meta["val"].shape, facts.shape, strict=True):
            if isinstance(dimension, str) and not _is_free(size):
                raise NotRecordable(f"it is made for one size of its {dimension}", dimension)


def _is_free(size: Any) -> bool:
    if isinstance(size, int):
        return False
    return bool(size.node.shape_env.simplify(size.node.expr).free_symbols)
