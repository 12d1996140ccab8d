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
        for table in embeddings or {}:
            if table not in data.tables:
                raise ModelError(
                    f"`embeddings` maps {table!r}, but the tables of the data are "
                    f"{', '.join(data.tables)}."
                )
        paths = {table: (embeddings or {}).get(table, table) for table in data.tables}
        for table, path in paths.items():
            _check_embedding(module, path, table, data.tables[table])
        self._weights = {table: f"{path}.weight" for table, path in paths.items()}
        for table, name in self._weights.items():
            if [*self._weights.values()].count(name) > 1:
                raise ModelError(
                    f"Table {table!r} and another are both mapped to embedding {paths[table]!r}: "
                    "let their fields read one table of the data."
                )
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
        self._dense = [
            name
            for name, x in numbers.items()
            if x.requires_grad and name not in self._weights.values()
        ]
        self.schema = Schema(tables, {name: tuple(numbers[name].shape) for name in self._dense})
        self._still: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        self._losses = vmap(self._client_loss, in_dims=(None, 0, 0, 0, 0))
        self._try(data)

    def start(self) -> Params:
        numbers = {name: x.detach().clone() for name, x in self.module.named_parameters()}
        return Params(
            {table: numbers[name] for table, name in self._weights.items()},
            {name: numbers[name] for name in self._dense},
        )

    def scores(self, params: Params, ids: Mapping[str, Tensor]) -> Tensor:
        modes = {part: part.training for part in self.module.modules()}
        self.module.eval()
        try:
            with torch.no_grad():
                return self._call(params.tables, params.dense, ids)
        finally:
            for part, training in modes.items():
                part.training = training

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
        trained = {name: params.tables[table] for table, name in self._weights.items()}
        trained |= params.dense
        state = self.module.state_dict()
        first: dict[Tensor, str] = {}  # a tensor that has two names was trained under the first
        for name, x in self.module.named_parameters(remove_duplicate=False):
            state[name] = trained.get(first.setdefault(x, name), state[name])
        return state

    def _try(self, data: FederatedData) -> None:
        """Raises a ModelError now, rather than in a round, if the module cannot be lifted."""
        columns = {name: column[:2] for name, column in data.train.ids.items()}
        label = data.train.label[:2]
        numbers = {name: x.detach() for name, x in self.module.named_parameters()}  # not copies
        tables = {table: numbers[name] for table, name in self._weights.items()}
        dense = {name: numbers[name] for name in self._dense}
        try:
            scores = self.scores(Params(tables, dense), columns)
            self._check_scores(scores, label)
            rows = {table: x[:1].clone() for table, x in tables.items()}
            stacked = {name: torch.stack([x, x]) for name, x in dense.items()}
            ids = {name: torch.zeros_like(x).expand(2, *x.shape) for name, x in columns.items()}
            batch = Batch(ids, label.to(scores.dtype).expand(2, -1))
            self.gradient(Submodels({}, rows, stacked), batch)
        except ModelError:
            raise
        except Exception as error:
            reason = str(error).strip().split("\n")[0]
            raise ModelError(
                f"{type(self.module).__name__} cannot be lifted over a cohort "
                f"({type(error).__name__}: {reason}): its forward must take {', '.join(columns)} "
                "by name and use operations that torch.vmap has a rule for, without randomness."
            ) from error

    def _check_scores(self, scores: Tensor, label: Tensor) -> None:
        """Raises a ModelError unless there is one score, and one loss, for each example."""
        name, count = type(self.module).__name__, len(label)
        if not isinstance(scores, Tensor):
            raise ModelError(f"{name} gave a {type(scores).__name__}, not a tensor of scores.")
        if scores.shape != label.shape:
            raise ModelError(
                f"{name} gave scores of shape {tuple(scores.shape)} for {count} examples: it must "
                f"give one score for each, shape ({count},)."
            )
        losses = self.loss(scores, label.to(scores.dtype))
        if losses.shape != label.shape:
            raise ModelError(
                f"The loss of {count} examples has shape {tuple(losses.shape)}: it must be one "
                f"number for each, shape ({count},), not their mean."
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
        like = next(iter(rows.values()))
        trained = {self._weights[table]: x for table, x in rows.items()} | dict(dense)
        numbers = self._fixed(like.device, like.dtype) | trained
        return functional_call(self.module, numbers, args=(), kwargs=dict(ids))

    def _fixed(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Buffers and frozen parameters, which nobody trains, where and as the numbers are."""
        if (device, dtype) not in self._still:
            frozen = {n: x for n, x in self.module.named_parameters() if not x.requires_grad}
            self._still[device, dtype] = {
                name: x.detach().to(device, dtype if x.is_floating_point() else x.dtype)
                for name, x in {**dict(self.module.named_buffers()), **frozen}.items()
            }
        return self._still[device, dtype]


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
    asked = {
        "padding_idx": part.padding_idx is not None,
        "max_norm": part.max_norm is not None,
        "scale_grad_by_freq": part.scale_grad_by_freq,
        "sparse": part.sparse,
    }
    if any(asked.values()):
        raise ModelError(
            f"Embedding {path!r} uses {', '.join(n for n, used in asked.items() if used)}, which a "
            "cohort cannot honour: make it a plain nn.Embedding."
        )
    if not part.weight.requires_grad:
        raise ModelError(f"Embedding {path!r} is frozen, but the rows of a table are trained.")
    for name, x in module.named_parameters(remove_duplicate=False):
        if x is part.weight and name != f"{path}.weight":
            raise ModelError(
                f"Embedding {path!r} shares its weight with {name!r}, but a client holds some of "
                "its rows only: give each a weight of its own."
            )
