"""A task of one's own data and module, which lives in this process alone.

`fedrows.simulate`, `fedrows.compare` and studies make runs with it in the way of the command line.
The task's name has a digest of the data and the module, so that a run never goes on with others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.personal import with_personal
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.model import Loss, Model
from fedrows.options import option
from fedrows.rows.ragged import Ragged
from fedrows.runs.settings import IN_PYTHON
from fedrows.simulator.argument_checks import check_algorithm, check_data_and_module
from fedrows.task import Task

SAMPLE = 1 << 20  # numbers at each end of a column that its digest reads

GivenAlgorithm = str | type[Algorithm] | Algorithm  # its name, its class, or one with options


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


@dataclass(frozen=True, eq=False)
class OwnTask:
    """Data and a module of one's own, as a task that studies and comparisons take.

    embeddings, dense, personal, one_by_one, loss and metrics are those of `fedrows.simulate`. All
    runs start from the numbers that the module has.
    """

    data: FederatedData
    module: nn.Module | Model
    embeddings: Mapping[str, str | Sequence[str]] | None = None
    dense: Sequence[str] = ()
    personal: Sequence[str] = ()
    one_by_one: bool = False
    loss: Loss | None = None
    metrics: OwnMetrics | None = None
    name: str = field(default="", init=False)  # with a digest of everything that decides numbers

    def __post_init__(self) -> None:
        check_data_and_module(self.data, self.module)
        if self.personal:
            object.__setattr__(self, "data", with_personal(self.data))
        self.model()  # a module that cannot be trained is refused here
        object.__setattr__(self, "name", f"{self.data.name}-{self.digest(self.data)}")

    def __repr__(self) -> str:
        module = type(self.module).__name__
        return f"OwnTask({module} on {self.data.name}, {self.data.clients} clients)"

    def digest(self, data: FederatedData) -> str:
        """A hash of some of the data, and of all else that decides numbers."""
        more: tuple[Any, ...] = (self.embeddings, self.dense, self.one_by_one)
        more += (sorted(self.metrics or ()),)
        if self.loss is not None:
            more += (getattr(self.loss, "__qualname__", type(self.loss).__qualname__),)
        return digest(data, self.module, self.personal, more)

    def model(self) -> Model:
        """The module over a cohort, made anew."""
        return lifted(
            self.module,
            self.data,
            self.embeddings,
            self.dense,
            self.personal,
            self.one_by_one,
            self.loss,
        )

    @contextmanager
    def known(self) -> Iterator[Task]:
        """The task, known by its name as long as it is used."""
        with _known(self.name, self.data, self.model, self.module, self.metrics) as task:
            yield task


@contextmanager
def own_task(
    data: FederatedData,
    model: Model,
    module: nn.Module | Model,
    personal: Sequence[str] = (),
    metrics: OwnMetrics | None = None,
) -> Iterator[Task]:
    """The task of one run, known by its name as long as it is used."""
    name = f"{data.name}-{digest(data, module, personal)}"
    with _known(name, data, lambda: model, module, metrics) as task:
        yield task


@contextmanager
def _known(
    name: str,
    data: FederatedData,
    build: Callable[[], Model],
    module: nn.Module | Model,
    metrics: OwnMetrics | None,
) -> Iterator[Task]:
    summary = f"{data.name}, given in Python."
    usual = {"clients_per_round": min(50, data.clients)}
    task = Task(name, summary, OwnData, lambda _: data, name, usual, metrics=metrics or None)
    with (
        catalogue.known_here("task", name, task),
        catalogue.known_here("model", name, _Given(build, module)),
    ):
        yield task


def algorithm_of(given: GivenAlgorithm) -> Algorithm:
    """An algorithm that was given by name, as a class or as an instance."""
    if isinstance(given, str):
        given = catalogue.algorithm(given)
    if isinstance(given, type) and issubclass(given, Algorithm):
        given = given()
    check_algorithm(given)
    return given


def own_class(algorithm: Algorithm) -> type[Algorithm] | None:
    """An algorithm's class if it cannot be found by its name; None if it can."""
    name, of = algorithm.name, type(algorithm)
    if name not in catalogue.names("algorithm"):
        return of
    if (known := catalogue.algorithm(name)) is of:
        return None
    raise PlanError(
        f"The algorithm {of.__name__} of {of.__module__} has the name of {known.__module__}'s, "
        f"{name}: give the class another name."
    )


class _Given:
    """Builds a model of the module that was given."""

    def __init__(self, build: Callable[[], Model], module: nn.Module | Model) -> None:
        self._build = build
        self.__module__ = type(module).__module__  # whose file decides the numbers, for studies

    def __call__(self, data: FederatedData, seed: int = 0) -> Model:
        return self._build()


def digest(
    data: FederatedData,
    module: nn.Module | Model,
    personal: Sequence[str] = (),
    more: tuple[Any, ...] | None = None,
) -> str:
    """A short hash of the data and of what of the module no checkpoint has.

    Of long columns only both ends are read. The start values of what is trained are left out: a
    run that goes on has its checkpoint's. With more, they are in it, as more is.
    """
    sha = hashlib.sha256()
    sha.update(repr((type(module).__qualname__, sorted(personal), data.labels)).encode())
    sha.update(repr((sorted(data.tables.items()), sorted(data.fields.items()))).encode())
    for part in (data.train, data.validation, data.test):
        for x in _columns(part):
            _add(sha, x)
    if more is not None:
        sha.update(repr(more).encode())
    if isinstance(module, nn.Module):
        frozen = {name for name, x in module.named_parameters() if not x.requires_grad}
        frozen |= {name for name, _ in module.named_buffers()}
        for name, x in module.state_dict().items():
            sha.update(f"{name} {tuple(x.shape)} {x.dtype}".encode())
            if more is not None or name in frozen:
                _add(sha, x)
    return sha.hexdigest()[:10]


def _columns(examples: Examples) -> Iterator[Tensor]:
    yield examples.splits
    yield examples.label
    if examples.weight is not None:
        yield examples.weight
    for named in (examples.ids, examples.numbers):
        for name in sorted(named):
            x = named[name]
            yield from (x.values, x.offsets) if isinstance(x, Ragged) else (x,)


def _add(sha: Any, x: Tensor) -> None:
    """Adds a tensor's shape and both its ends to a hash."""
    flat = x.detach().reshape(-1)
    sha.update(f"{tuple(x.shape)} {x.dtype}".encode())
    ends = [flat] if len(flat) <= 2 * SAMPLE else [flat[:SAMPLE], flat[-SAMPLE:]]
    for end in ends:
        copy = end.cpu().clone(memory_format=torch.contiguous_format)
        sha.update(copy.view(torch.uint8).numpy().tobytes())
