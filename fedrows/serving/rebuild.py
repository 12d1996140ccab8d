"""The model of a bundle, made again: from a name of the catalogue, or from what the user gives.

A bundle may name the code of a module, but loading it never imports that code: a file from
elsewhere would then choose what runs. The user names it, or gives the module.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrows import catalogue
from fedrows.data.encoder import Encoder
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.personal import PERSONAL, with_personal
from fedrows.errors import BundleError, FedrowsError, PlanError
from fedrows.lifting.adapt import adapt, with_rows
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.relift import lift
from fedrows.model import Loss, Model
from fedrows.rows.params import Params
from fedrows.rows.ragged import lists_of
from fedrows.serving.bundle import Bundle

GivenModel = nn.Module | Callable[[FederatedData, int], Any] | str


@dataclass(frozen=True, eq=False)
class TorchScorer:
    """Scores by the model itself."""

    model: Model
    params: Params
    dtype: torch.dtype

    @property
    def personal(self) -> bool:
        """Whether the model has personal parts; of them it has the start values, in row 0."""
        return isinstance(self.model, Lifted) and self.model.personal is not None

    def scores(self, fields: dict[str, Tensor]) -> Tensor:
        if self.personal:
            count = len(next(iter(fields.values())))
            fields = {**fields, PERSONAL: torch.zeros(count, dtype=torch.int64)}
        with torch.no_grad():
            return self.model.scores(self.params, fields)

    def adapted(
        self, examples: Examples, encoder: Encoder, steps: int, lr: float
    ) -> TorchScorer:  # fmt: skip
        """The same with the own rows and personal parts of the client that has these examples."""
        fields, own = encoder.fields, set(encoder.local)
        if self.personal:
            first = torch.zeros(len(examples), dtype=torch.int64)
            examples = replace(examples, ids={**examples.ids, PERSONAL: first})
            fields, own = {**fields, PERSONAL: PERSONAL}, {*own, PERSONAL}
        rows = adapt(
            self.model, self.params, examples, fields, own, padded=encoder.padded, steps=steps,
            lr=lr,
        )  # fmt: skip
        return replace(self, params=with_rows(self.params, rows))


def rebuild(bundle: Bundle, given: GivenModel | None, loss: Loss | None) -> TorchScorer:
    """The trained model of a bundle; a BundleError if its parts make no model."""
    try:
        return _rebuilt(bundle, given, loss)
    except FedrowsError:
        raise
    except Exception as error:
        if given is not None:  # the user's code may be what fails
            raise
        raise BundleError(
            f"{bundle.path} has parts that make no model ({type(error).__name__}: "
            f"{' '.join(str(error).split())}): write it again with fedrows export."
        ) from error


def _rebuilt(bundle: Bundle, given: GivenModel | None, loss: Loss | None) -> TorchScorer:
    data = blank_data(bundle)
    made = _made(bundle, given, data)
    dtype = next(x.dtype for x in bundle.weights.values() if x.is_floating_point())
    if isinstance(made, Model) and not isinstance(made, Lifted):
        return TorchScorer(made, _params(bundle, made), dtype)
    module = copy.deepcopy(made.module if isinstance(made, Lifted) else made).to(dtype)
    _check_fit(bundle, {name: tuple(x.shape) for name, x in module.state_dict().items()})
    module.load_state_dict(dict(bundle.weights))
    lifting = _lifting(bundle)
    if isinstance(made, Lifted):
        lifting["embeddings"] = made.embeddings
        loss = loss or made.loss
    # Anew, for the first one has measured the numbers that it started from.
    model = lift(module, with_personal(data) if lifting.get("personal") else data, loss, lifting)
    return TorchScorer(model, model.start(), dtype)


def blank_data(bundle: Bundle) -> FederatedData:
    """Two made-up examples, with the tables and fields that the model was trained on."""
    encoder = bundle.encoder
    ids: dict[str, Any] = {}
    for name, column in encoder.features.items():
        row = int(column.table in encoder.padded)
        if column.length is not None:
            width = column.length
            ids[name] = lists_of(np.full(2 * width, row), np.full(2, width))
        else:
            ids[name] = np.full(2 if column.width is None else (2, column.width), row)
    numbers = {
        name: np.zeros(2 if width is None else (2, width))
        for name, width in encoder.numbers.items()
    }
    return FederatedData.build(
        client=np.zeros(2, dtype=np.int64),
        ids=ids,
        label=np.ones(2),
        test=np.zeros(2, dtype=bool),
        tables={name: table.rows for name, table in encoder.tables.items()},
        fields=encoder.fields,
        numbers=numbers,
        labels=encoder.labels,
        padded=encoder.padded,
        local=encoder.local,
        name=str(bundle.facts["about"]["data"]),
        target=encoder.target,
        vocabulary=dict(bundle.vocabulary),
        encoder=encoder,
    )


def _made(bundle: Bundle, given: GivenModel | None, data: FederatedData) -> Model | nn.Module:
    """The model or the module, with numbers of no meaning."""
    name, reference = bundle.model["name"], bundle.model["reference"]
    if isinstance(given, nn.Module):
        return given
    if given is None:
        if name is None or ":" in name or name.endswith(".py"):
            such = f" {reference!r} was named at export." if reference else ""
            raise BundleError(
                f"The model in {bundle.path} is a module, {bundle.model['class']}, and a bundle "
                f"runs no code that it names: give the module, or the reference of its "
                f"build(data, seed), to load.{such}"
            )
        given = str(name)
    build = catalogue.builder(given) if isinstance(given, str) else given
    own: dict[str, Any] = {}
    if (of := getattr(build, "options", None)) is not None:
        own = _options(bundle, of)
    try:
        made = build(data, 0, **own)
    except FedrowsError:
        raise
    except Exception as error:  # whatever the user's code does
        raise BundleError(
            f"The module for {bundle.path} cannot be built by {given!r} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): give a function "
            "build(data, seed), or the module itself."
        ) from error
    if not isinstance(made, Model | nn.Module):
        raise BundleError(
            f"{given!r} gave a {type(made).__name__}, but the model in {bundle.path} needs a torch "
            "module or a fedrows.model.Model."
        )
    return made


def _options(bundle: Bundle, of: type) -> dict[str, Any]:
    """The options that the model was built with; a BundleError if they cannot be."""
    try:
        return asdict(of(**bundle.model.get("options", {})))
    except (PlanError, TypeError) as error:
        raise BundleError(
            f"{bundle.path} has options that its model does not take ({error}): write it again "
            "with fedrows export."
        ) from error


def _lifting(bundle: Bundle) -> dict[str, Any]:
    """How the module was lifted; a BundleError if its ridge cannot be right."""
    facts = dict(bundle.model)
    ridge, first = facts.get("ridge", 0.0), facts.get("first", {})
    right = isinstance(ridge, float | int) and 0 <= ridge < inf and isinstance(first, dict)
    widths = {name: width for name, (_, width) in bundle.facts["schema"]["tables"].items()}
    if not right or not all(type(n) is int and 0 <= n < widths.get(t, 0) for t, n in first.items()):
        raise BundleError(
            f"{bundle.path} has a ridge that does not fit its tables: write it again with fedrows "
            "export."
        )
    return facts


def _params(bundle: Bundle, model: Model) -> Params:
    """The numbers of a model that is no module."""
    start = model.start()
    _check_fit(
        bundle, {name: tuple(x.shape) for name, x in {**start.tables, **start.dense}.items()}
    )
    return Params(
        {name: bundle.weights[name] for name in start.tables},
        {name: bundle.weights[name] for name in start.dense},
    )


def _check_fit(bundle: Bundle, wanted: dict[str, tuple[int, ...]]) -> None:
    """Raises a BundleError unless the weights are those of the module."""
    shapes = {name: tuple(x.shape) for name, x in bundle.weights.items()}
    for name in [*wanted, *shapes]:
        if wanted.get(name) != shapes.get(name):
            shape, own = shapes.get(name, "missing"), wanted.get(name, "missing")
            raise BundleError(
                f"The weights in {bundle.path} are not those of the module: {name!r} is {shape} in "
                f"the bundle and {own} in the module. Give the module that was trained."
            )
