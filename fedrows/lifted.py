"""Any plain module, written for ONE client with ordinary embeddings, lifted over a cohort."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrows.batches import Batch
from fedrows.data import FederatedData
from fedrows.errors import ModelError
from fedrows.model import LOSSES, Loss, Model
from fedrows.params import Params, Submodels
from fedrows.schema import Schema, Table


class Lifted(Model):
    """Any module for one client, lifted over a cohort by `torch.func.vmap`.

    `module(**fields)` takes ids of shape (B,) or (B, L), and numbers, by field name and returns a
    score for each example: (B,), or (B, C) for classes. Tables are found by name: table "item" is
    the submodule `item`, or what `embeddings` maps it to. The module itself is never changed; its
    numbers are where training starts.

    While it trains, an id is a place in the cohort's block; id 0 of a padded table stays 0, so a
    mask such as `history != 0` means the same as ever.
    """

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        embeddings: Mapping[str, str] | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.module = module
        self.loss = loss or LOSSES[data.labels]
        self._padded = data.padded
        self._tables_of = dict(data.fields)
        for table in embeddings or {}:
            if table not in data.tables:
                raise ModelError(
                    f"`embeddings` maps {table!r}, but the tables of the data are "
                    f"{', '.join(data.tables)}."
                )
        paths = {table: (embeddings or {}).get(table, table) for table in data.tables}
        for table, path in paths.items():
            _check_embedding(module, path, table, data.tables[table], table in data.padded)
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

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        modes = {part: part.training for part in self.module.modules()}
        self.module.eval()
        try:
            with torch.no_grad():
                return self._call(params.tables, params.dense, fields)
        finally:
            for part, training in modes.items():
                part.training = training

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        rows = {table: x.detach().requires_grad_() for table, x in block.rows.items()}
        dense = {name: x.detach().requires_grad_() for name, x in block.dense.items()}
        like = next(iter(rows.values()))
        weight = like.new_ones(batch.label.shape) if batch.weight is None else batch.weight
        block_rows, fields = self._with_nothing(rows, batch)
        losses = self._losses(block_rows, dense, fields, batch.label, weight)  # (K,)
        leaves = [*rows.values(), *dense.values()]
        found = torch.autograd.grad(losses.sum(), leaves, materialize_grads=True)
        split = len(rows)
        return Submodels(
            block.index,
            dict(zip(rows, found[:split], strict=True)),
            dict(zip(dense, found[split:], strict=True)),
        )

    def _with_nothing(
        self, rows: Mapping[str, Tensor], batch: Batch
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The block with a row of zeros in front of every padded table, and ids that fit it."""
        whole = {
            table: torch.cat([x.new_zeros(1, x.shape[1]), x]) if table in self._padded else x
            for table, x in rows.items()
        }
        fields = {
            name: ids + 1 if self._tables_of[name] in self._padded else ids
            for name, ids in batch.ids.items()
        }
        return whole, fields | dict(batch.numbers)

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
        two = torch.arange(min(2, len(data.train)), device=data.train.label.device)
        columns, label = data.train.fields(two), data.train.label[two]
        numbers = {name: x.detach() for name, x in self.module.named_parameters()}  # not copies
        tables = {table: numbers[name] for table, name in self._weights.items()}
        dense = {name: numbers[name] for name in self._dense}
        try:
            scores = self.scores(Params(tables, dense), columns)
            self._check_scores(scores, label)
            rows = {table: x[:1].clone() for table, x in tables.items()}
            stacked = {name: torch.stack([x, x]) for name, x in dense.items()}
            both = {name: x.expand(2, *x.shape) for name, x in columns.items()}
            ids = {name: torch.zeros_like(both[name]) for name in data.train.ids}
            numbers = {name: both[name].to(scores.dtype) for name in data.train.numbers}
            batch = Batch(ids, self._as_label(label, scores).expand(2, -1), numbers=numbers)
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
        classes = not label.is_floating_point()
        if scores.shape[:1] != label.shape or scores.dim() != 1 + classes:
            wanted = f"({count}, classes)" if classes else f"({count},)"
            raise ModelError(
                f"{name} gave scores of shape {tuple(scores.shape)} for {count} examples: it must "
                f"give {'scores' if classes else 'one score'} for each, shape {wanted}."
            )
        losses = self.loss(scores, self._as_label(label, scores))
        if losses.shape != label.shape:
            raise ModelError(
                f"The loss of {count} examples has shape {tuple(losses.shape)}: it must be one "
                f"number for each, shape ({count},), not their mean."
            )

    @staticmethod
    def _as_label(label: Tensor, scores: Tensor) -> Tensor:
        return label.to(scores.dtype) if label.is_floating_point() else label

    def _client_loss(
        self,
        rows: Mapping[str, Tensor],
        dense: Mapping[str, Tensor],
        fields: Mapping[str, Tensor],
        label: Tensor,
        weight: Tensor,
    ) -> Tensor:
        """One client's mean loss; its ids address the cohort's block, so `rows` is the block."""
        losses = self.loss(self._call(rows, dense, fields), label)
        whole = weight.sum()
        return (losses * weight).sum() / torch.where(whole > 0, whole, 1)

    def _call(
        self, rows: Mapping[str, Tensor], dense: Mapping[str, Tensor], fields: Mapping[str, Tensor]
    ) -> Tensor:
        like = next(iter(rows.values()))
        trained = {self._weights[table]: x for table, x in rows.items()} | dict(dense)
        numbers = self._fixed(like.device, like.dtype) | trained
        return functional_call(self.module, numbers, args=(), kwargs=dict(fields))

    def _fixed(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Buffers and frozen parameters, which nobody trains, where and as the numbers are."""
        if (device, dtype) not in self._still:
            frozen = {n: x for n, x in self.module.named_parameters() if not x.requires_grad}
            self._still[device, dtype] = {
                name: x.detach().to(device, dtype if x.is_floating_point() else x.dtype)
                for name, x in {**dict(self.module.named_buffers()), **frozen}.items()
            }
        return self._still[device, dtype]


def _check_embedding(module: nn.Module, path: str, table: str, rows: int, padded: bool) -> None:
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
        "padding_idx": part.padding_idx is not None and not padded,
        "max_norm": part.max_norm is not None,
        "scale_grad_by_freq": part.scale_grad_by_freq,
        "sparse": part.sparse,
    }
    if any(asked.values()):
        raise ModelError(
            f"Embedding {path!r} uses {', '.join(n for n, used in asked.items() if used)}, which a "
            "cohort cannot honour: make it a plain nn.Embedding."
        )
    if padded and part.padding_idx != 0:
        raise ModelError(
            f"Embedding {path!r} has padding_idx={part.padding_idx}, but id 0 of table {table!r} "
            "means nothing: give it padding_idx=0."
        )
    if not part.weight.requires_grad:
        raise ModelError(f"Embedding {path!r} is frozen, but the rows of a table are trained.")
    for name, x in module.named_parameters(remove_duplicate=False):
        if x is part.weight and name != f"{path}.weight":
            raise ModelError(
                f"Embedding {path!r} shares its weight with {name!r}, but a client holds some of "
                "its rows only: give each a weight of its own."
            )
