"""A task of one's own data and module, which lives in this process alone.

`fedrows.simulate` makes a run folder with it in the way of `fedrows run`. The task's name has a
digest of the data and the module, so that a run never goes on with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import Loss, Model
from fedrows.options import option
from fedrows.rows.ragged import Ragged
from fedrows.runs.settings import IN_PYTHON
from fedrows.task import Task

SAMPLE = 1 << 20  # numbers at each end of a column that its digest reads


@dataclass(frozen=True)
class OwnData:
    """The options of a task that was given in Python."""

    given: str = option(IN_PYTHON, "Where the data and the module come from.")


def lifted(
    module: nn.Module | Model,
    data: FederatedData,
    embeddings: Mapping[str, str | Sequence[str]] | None = None,
    dense: Sequence[str] = (),
    personal: Sequence[str] = (),
    one_by_one: bool = False,
    loss: Loss | None = None,
) -> Model:
    """The module over a cohort; a `Model` as it is."""
    if isinstance(module, Model):
        return module
    return Lifted(
        module,
        data,
        embeddings,
        loss,
        dense=dense,
        personal=personal,
        one_by_one=one_by_one,
    )


@contextmanager
def own_task(
    data: FederatedData, model: Model, module: nn.Module | Model, personal: Sequence[str] = ()
) -> Iterator[Task]:
    """The task, known by its name as long as it is used."""
    name = f"{data.name}-{digest(data, module, personal)}"
    task = Task(name, f"{data.name}, given in Python.", OwnData, lambda _: data, name)
    with (
        catalogue.known_here("task", name, task),
        catalogue.known_here("model", name, _Given(model)),
    ):
        yield task


class _Given:
    """Builds a model by handing it out: it was made before."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, data: FederatedData, seed: int = 0) -> Model:
        return self._model


def digest(data: FederatedData, module: nn.Module | Model, personal: Sequence[str] = ()) -> str:
    """A short hash of the data and of what of the module no checkpoint has.

    Of long columns only both ends are read. The start values of what is trained are left out: a
    run that goes on has its checkpoint's.
    """
    found = hashlib.sha256()
    found.update(repr((type(module).__qualname__, sorted(personal), data.labels)).encode())
    found.update(repr((sorted(data.tables.items()), sorted(data.fields.items()))).encode())
    for part in (data.train, data.validation, data.test):
        for x in _columns(part):
            _add(found, x)
    if isinstance(module, nn.Module):
        frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
        frozen |= {name for name, _ in module.named_buffers()}
        for name, x in module.state_dict().items():
            found.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
            if name in frozen:
                _add(found, x)
    return found.hexdigest()[:10]


def _columns(examples: Examples) -> Iterator[Tensor]:
    """The tensors of a part of the data."""
    yield examples.splits
    yield examples.label
    if examples.weight is not None:
        yield examples.weight
    for named in (examples.ids, examples.numbers):
        for name in sorted(named):
            x = named[name]
            yield from (x.values, x.offsets) if isinstance(x, Ragged) else (x,)


def _add(found: Any, x: Tensor) -> None:
    """Adds a tensor's shape and both its ends to a hash."""
    flat = x.detach().reshape(-1)
    found.update(f"{tuple(x.shape)} {x.dtype}".encode())
    ends = [flat] if len(flat) <= 2 * SAMPLE else [flat[:SAMPLE], flat[-SAMPLE:]]
    for end in ends:
        whole = end.cpu().clone(memory_format=torch.contiguous_format)
        found.update(whole.view(torch.uint8).numpy().tobytes())
