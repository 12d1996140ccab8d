"""What the rest of the package needs of a model, and the lift of any plain module to it.

A module is written for ONE client, with ordinary `nn.Embedding`s. A cohort's rows and dense
tensors are disjoint between clients, so the gradient of the *sum* of the K losses is the stack of
the K gradients: one backward pass, and no client's gradient of a whole table is ever built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedrows.batches import Batch
from fedrows.data import FederatedData
from fedrows.errors import ModelError
from fedrows.params import Params, Submodels
from fedrows.schema import Schema, Table

Loss = Callable[[Tensor, Tensor], Tensor]


def logistic_loss(scores: Tensor, label: Tensor) -> Tensor:
    """The cross-entropy of every example, its score being a logit."""
    return F.binary_cross_entropy_with_logits(scores, label, reduction="none")


class Model(ABC):
    """A model over a cohort: K submodels go in, K gradients come out."""

    schema: Schema
    closed_form: bool = False  # gradients without autograd: local training then records nothing
    loss: Loss = staticmethod(logistic_loss)  # (scores, label) → a loss per example

    @abstractmethod
    def start(self) -> Params:
        """The numbers that training starts from."""

    @abstractmethod
    def scores(self, params: Params, ids: Mapping[str, Tensor]) -> Tensor:
        """The whole model's score of each example: (n,). Feature ids go in, not slots."""

    @abstractmethod
    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        """Each client's gradient of its mean loss over its own batch."""


class Lifted(Model):
    """Any module for one client, lifted over a cohort by `torch.func.vmap`.

    `module(**fields)` takes ids of shape (B,) or (B, L) by field name and returns a score for each
    example. Tables are found by name: table "item" is the submodule `item`, or what `embeddings`
    maps it to. The module itself is never changed; its numbers are where training starts.
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        embeddings: Mapping[str, str] | None = None,
        loss: Loss = logistic_loss,
    ) -> None:
        self.module = module
        self.loss = loss
        paths = {table: (embeddings or {}).get(table, table) for table in data.tables}
        for table, path in paths.items():
            _check_embedding(module, path, table, data.tables[table])
        self._weights = {table: f"{path}.weight" for table, path in paths.items()}
        numbers = dict(module.named_parameters())
        strays = [
            name
            for name, part in module.named_modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and name not in paths.values()
        ]
        if strays:
            raise ModelError(
                f"Embedding {strays[0]!r} belongs to no table of the data "
                f"({', '.join(data.tables)}): name it in `embeddings`."
            )
        tables = {
            table: Table(data.tables[table], numbers[name].shape[1])
            for table, name in self._weights.items()
        }
        self._dense = [name for name in numbers if name not in self._weights.values()]
        self.schema = Schema(tables, {name: tuple(numbers[name].shape) for name in self._dense})
        self._losses = vmap(self._client_loss, in_dims=(None, 0, 0, 0, 0))
        self._try(data)

    def start(self) -> Params:
        numbers = {name: x.detach().clone() for name, x in self.module.named_parameters()}
        return Params(
            {table: numbers[name] for table, name in self._weights.items()},
            {name: numbers[name] for name in self._dense},
        )

    def scores(self, params: Params, ids: Mapping[str, Tensor]) -> Tensor:
        training = self.module.training
        self.module.eval()
        try:
            with torch.no_grad():
                return self._call(params.tables, params.dense, ids)
        finally:
            self.module.train(training)

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        rows = {table: x.detach().requires_grad_() for table, x in block.rows.items()}
        dense = {name: x.detach().requires_grad_() for name, x in block.dense.items()}
        weight = torch.ones_like(batch.label) if batch.weight is None else batch.weight
        losses = self._losses(rows, dense, batch.ids, batch.label, weight)  # (K,)
        leaves = [*rows.values(), *dense.values()]
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        split = len(rows)
        return Submodels(
            block.index,
            dict(zip(rows, found[:split], strict=True)),
            dict(zip(dense, found[split:], strict=True)),
        )

    def export(self, params: Params) -> dict[str, Tensor]:
        """The trained numbers as a state dict of the module."""
        tables = {name: params.tables[table] for table, name in self._weights.items()}
        return {**self.module.state_dict(), **tables, **params.dense}

    def _try(self, data: FederatedData) -> None:
        """Raises a ModelError now, rather than in a round, if the module cannot be lifted."""
        columns = {name: column[:2] for name, column in data.train.ids.items()}
        label = data.train.label[:2]
        try:
            scores = self.scores(self.start(), columns)
            rows = {table: x[:1].clone() for table, x in self.start().tables.items()}
            dense = {name: torch.stack([x, x]) for name, x in self.start().dense.items()}
            ids = {name: torch.zeros_like(x).expand(2, *x.shape) for name, x in columns.items()}
            both = label.to(scores.dtype).expand(2, -1)
            self._losses(rows, dense, ids, both, torch.ones_like(both))
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise ModelError(
                f"{type(self.module).__name__} cannot be lifted over a cohort "
                f"({type(error).__name__}: {reason}): its forward must take {', '.join(columns)} "
                "by name and use operations that torch.vmap has a rule for, without randomness."
            ) from error
        if scores.shape != label.shape:
            raise ModelError(
                f"{type(self.module).__name__} gave scores of shape {tuple(scores.shape)} for "
                f"{len(label)} examples: it must give one score for each, shape ({len(label)},)."
            )

    def _client_loss(
        self,
        rows: Mapping[str, Tensor],
        dense: Mapping[str, Tensor],
        ids: Mapping[str, Tensor],
        label: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """One client's mean loss; its ids address the cohort's block, so `rows` is the block."""
        losses = self.loss(self._call(rows, dense, ids), label)
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    def _call(
        self, rows: Mapping[str, Tensor], dense: Mapping[str, Tensor], ids: Mapping[str, Tensor]
    ) -> Tensor:
        numbers = {self._weights[table]: x for table, x in rows.items()} | dict(dense)
        return functional_call(self.module, numbers, args=(), kwargs=dict(ids))


def _check_embedding(module: nn.Module, path: str, table: str, rows: int) -> None:
    """Raises a ModelError unless the embedding at a path can stand for a table of the data."""
    try:
        part = module.get_submodule(path)
    except AttributeError:
        known = [name for name, m in module.named_modules() if isinstance(m, nn.Embedding)]
        raise ModelError(
            f"The module has no submodule {path!r} for table {table!r}; its embeddings are "
            f"{', '.join(known) or 'none'}: rename one, or map the table to it in `embeddings`."
        ) from None
    if not isinstance(part, nn.Embedding):
        raise ModelError(f"Submodule {path!r} is a {type(part).__name__}, not an nn.Embedding.")
    if part.num_embeddings != rows:
        raise ModelError(
            f"Embedding {path!r} has {part.num_embeddings} rows, but table {table!r} of the data "
            f"has {rows}: make them equal."
        )
    if part.padding_idx is not None or part.max_norm is not None or part.scale_grad_by_freq:
        raise ModelError(
            f"Embedding {path!r} uses padding_idx, max_norm or scale_grad_by_freq, which a cohort "
            "cannot honour: make it a plain nn.Embedding."
        )
