"""A module tried out on two examples, so that what cannot be trained is refused before a run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.errors import ModelError
from fedrows.lifting.module_checks import (
    FALL_BACK,
    as_label,
    cannot_score,
    cannot_train,
    check_scores,
    explain,
    no_buffer_changed,
    no_draws,
    slow_operations,
    with_place,
)
from fedrows.lifting.personal_parts import PersonalParts
from fedrows.model import Loss
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.rows.schema import Schema
from fedrows.tables import InitialRows, SparseTable, gathered


class TriedModel(Protocol):
    """What the trial needs of a lifted module."""

    module: nn.Module
    schema: Schema
    loss: Loss
    one_by_one: bool
    personal: PersonalParts | None

    def initial_rows(self) -> tuple[dict[str, InitialRows], dict[str, Tensor]]: ...
    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor: ...
    def gradient(self, block: Submodels, batch: Batch) -> Submodels: ...
    def evaluating(self) -> AbstractContextManager[None]: ...
    def fixed(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]: ...


def try_out(model: TriedModel, data: FederatedData) -> str | None:
    """What is worth knowing about how the module trains; a ModelError if it cannot be trained."""
    module, dense = model.module, model.schema.dense
    numbers = {name: x for name, x in module.named_parameters() if x.requires_grad}
    weights = [x for name, x in numbers.items() if name not in dense]
    like = next((x for x in weights if not x.is_meta), weights[0].new_empty(0, device="cpu"))
    two = torch.arange(min(2, len(data.train)), device=data.train.label.device)
    columns = {
        name: x.to(like.device, like.dtype if x.is_floating_point() else x.dtype)
        for name, x in data.train.fields(two).items()
    }
    label, candidates = data.train.label[two].to(like.device), None
    if data.labels == "ranking":
        assert data.target is not None
        field, candidates = data.target[0], 3
        columns[field] = columns[field].unsqueeze(1).repeat(1, candidates)  # (2, 3)
    try:
        with model.evaluating(), no_draws(module):
            drawn = any(x.is_meta for x in weights)
            known = _first_scores if drawn or model.personal is not None else None
            scores = known(model, columns, data) if known else module(**columns)
            check_scores(module, scores, label, model.loss, candidates)
    except ModelError as error:
        raise with_place(module, error) from error
    except Exception as error:
        raise cannot_score(module, [*columns], error) from error
    block, batch = _two_clients(model, columns, as_label(label, scores), data)
    fixed = model.fixed(like.device, like.dtype)
    versions = {name: x._version for name, x in fixed.items()}
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _try_gradient(model, block, batch)
    no_buffer_changed(module, versions, fixed)
    return slow_operations(module, heard)


def _first_scores(model: TriedModel, columns: Mapping[str, Tensor], data: FederatedData) -> Any:
    """The scores of some examples before any training, read row by row."""
    starts, dense = model.initial_rows()
    tables: dict[str, Tensor] = {
        table: SparseTable.untouched(start, data.tables[table]) for table, start in starts.items()
    }
    few, slots = gathered(Params(tables, dense), columns, data.fields, data.padded)
    device = next(iter(columns.values())).device
    return model.scores(few.map(lambda x: x.to(device)), slots)


def _two_clients(
    model: TriedModel, columns: Mapping[str, Tensor], label: Tensor, data: FederatedData
) -> tuple[Submodels, Batch]:
    """Two clients with the same examples and one row of each table, and a batch of theirs."""
    starts, numbers = model.initial_rows()
    first = torch.zeros(2, dtype=torch.int64)
    rows = {table: start(first).to(label.device) for table, start in starts.items()}
    index = Index(torch.zeros(2, dtype=torch.int64), torch.arange(3))
    dense = {name: torch.stack([x, x]) for name, x in numbers.items()}
    client = torch.arange(2, device=label.device)
    both = {name: torch.stack([x, x]) for name, x in columns.items()}
    batch = Batch(
        {
            name: torch.zeros_like(both[name]) + client.view(2, *[1] * columns[name].dim())
            for name in data.train.ids
        },
        torch.stack([label, label]),
        numbers={name: both[name] for name in data.train.numbers},
        key=client,
    )
    return Submodels(dict.fromkeys(rows, index), rows, dense), batch


def _try_gradient(model: TriedModel, block: Submodels, batch: Batch) -> None:
    """Raises a ModelError that says whether one client after another would work."""
    try:
        with no_draws(model.module):
            model.gradient(block, batch)
        return
    except ModelError as error:
        raise with_place(model.module, error) from error
    except Exception as error:
        failed = error
    if not model.one_by_one:
        model.one_by_one = True
        try:
            with no_draws(model.module):
                model.gradient(block, batch)
        except ModelError:
            raise ModelError(f"{explain(model.module, failed)}.") from failed
        except Exception as error:
            failed = error  # so lifting is not what is wrong
        else:
            raise ModelError(f"{explain(model.module, failed)}, {FALL_BACK}.") from failed
    raise cannot_train(model.module, failed) from failed
