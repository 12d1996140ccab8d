"""Any plain module, written for ONE client with ordinary embeddings, lifted over a cohort."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedrows.data.batches import Batch
from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.personal import PERSONAL, rows_per_client
from fedrows.errors import ModelError
from fedrows.lifting.calibration import CalibrationPass
from fedrows.lifting.module_checks import check_layers, embeddings_of
from fedrows.lifting.personal_parts import PersonalParts
from fedrows.lifting.replaced_operations import ReplacedOperations
from fedrows.lifting.slope import slope_of
from fedrows.lifting.trial_step import try_out
from fedrows.model import LOSSES, Loss, Model
from fedrows.nn import step_context
from fedrows.nn.initial_values import start_of
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels, join
from fedrows.rows.schema import Schema, Table
from fedrows.tables import GivenRows, InitialRows, RowsSideBySide, SameRow, SparseTable, whole

# A cohort's dense tensors, fields, weights and keys: what every client has of its own.
_Own = tuple[Mapping[str, Tensor], Mapping[str, Tensor], Tensor, Tensor | None]


class Lifted(Model):
    """Any module for one client, lifted over a cohort by `torch.func.vmap`.

    `module(**fields)` takes ids of shape (B,) or (B, L), and numbers, by field name and returns a
    score for each example: (B,), or (B, C) for classes. Tables are found by name: table "item" is
    the submodule `item`, or what `embeddings` maps it to; where that is several submodules, as in
    `{"item": ["linear", "factors"]}`, a row of the table is a row of each, side by side. Embeddings
    named in `dense`, such as one of positions, belong to no table: every client holds them whole.
    Parameters and submodules named in `personal` stay on their clients: each has its own, in a row
    of the table that `with_personal` gives the data.
    The module itself is never changed; its numbers are where training starts, and its parts train
    in the mode (`train()` or `eval()`) they are in. An embedding on the device "meta" has no
    numbers: its rows start from N(0, 1), or as `nn.start.start_` has said, each when it is read.

    While it trains, an id is a place in the cohort's block; id 0 of a padded table stays 0, so a
    mask such as `history != 0` means the same as ever. Dropout is drawn by counters.

    A module that cannot be lifted trains `one_by_one`, slower, with the same results. `note` says
    what is worth knowing about how it trains.
    """

    apart: Callable[[Sequence[Tensor]], list[Tensor]]  # `own_memory`, or what a trace needs

    def __init__(
        self,
        module: nn.Module,
        data: FederatedData,
        embeddings: Mapping[str, str | Sequence[str]] | None = None,
        loss: Loss | None = None,
        *,
        dense: Sequence[str] = (),
        personal: Sequence[str] = (),
        one_by_one: bool = False,
    ) -> None:
        self.module = module
        self.loss = loss or LOSSES[data.labels]
        self.one_by_one = one_by_one
        self.apart = own_memory
        self._copies: dict[int, nn.Module] = {}  # by thread
        self._padded = data.padded
        self._tables_of = dict(data.fields)
        tables = {t: rows for t, rows in data.tables.items() if not (personal and t == PERSONAL)}
        paths = embeddings_of(module, tables, data.padded, embeddings or {}, dense)
        check_layers(module, one_by_one)
        numbers = dict(module.named_parameters())
        self._weights = {
            table: [f"{path}.weight" for path in embeddings] for table, embeddings in paths.items()
        }
        self._widths = {
            table: [numbers[name].shape[1] for name in names]
            for table, names in self._weights.items()
        }
        rows = {name: table for table, names in self._weights.items() for name in names}
        sizes = {t: Table(tables[t], sum(widths)) for t, widths in self._widths.items()}
        self.personal: PersonalParts | None = None
        if personal:
            self.personal = PersonalParts.of(module, personal, rows)
            sizes[PERSONAL] = Table(rows_per_client(data), self.personal.width)
        elsewhere = rows.keys() | (self.personal.shapes if self.personal else {})
        self._dense = [n for n, x in numbers.items() if x.requires_grad and n not in elsewhere]
        self.schema = Schema(sizes, {name: tuple(numbers[name].shape) for name in self._dense})
        self._calibration = CalibrationPass(module)
        if self.personal and self._calibration.layers:
            raise ModelError(
                f"Submodule {next(iter(self._calibration.layers))!r} measures moments over all "
                "clients, which a module with personal parts cannot: use LayerNorm, or leave "
                "`personal` out."
            )
        self._measured: dict[str, Tensor] = {}
        self._still: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        self._nothing: dict[tuple[torch.device, torch.dtype], dict[str, Tensor]] = {}
        self._replaced: ReplacedOperations | None = ReplacedOperations()
        self.note = try_out(self, data)
        if not self._replaced.used:
            self._replaced = None  # they would cost time in every operation
        if one_by_one:
            name = type(module).__name__
            self.note = f"{name} is trained one client after another, at one_by_one's request."

    @property
    def embeddings(self) -> dict[str, list[str]]:
        """The paths of each table's embeddings in the module."""
        return {
            table: [name.removesuffix(".weight") for name in names]
            for table, names in self._weights.items()
        }

    def use(self, replaced: ReplacedOperations) -> None:
        """Replaces operations in every step, also those that the trial did not need to."""
        self._replaced = replaced

    def start(self) -> Params:
        starts, dense = self.initial_rows()
        tables = {
            table: whole(SparseTable.untouched(starts[table], size.rows))
            for table, size in self.schema.tables.items()
        }
        return Params(tables, {name: x.clone() for name, x in dense.items()})

    def initial_rows(self) -> tuple[dict[str, InitialRows], dict[str, Tensor]]:
        numbers = {name: x.detach() for name, x in self.module.named_parameters()}
        starts: dict[str, InitialRows] = {}
        for table, names in self._weights.items():
            parts = [self._start_of(name, numbers[name]) for name in names]
            starts[table] = parts[0] if len(parts) == 1 else RowsSideBySide(parts)
        if self.personal is not None:
            starts[PERSONAL] = SameRow(self.personal.row(numbers))
        return starts, {name: numbers[name] for name in self._dense}

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        numbers, own = self._numbers(params.tables, params.dense), dict(fields)
        with self.evaluating():
            if self.personal is None:
                return self._call(numbers, own)
            clients = own.pop(PERSONAL)
            rows = params.tables[PERSONAL]
            return self.personal.scores(self._call, numbers, rows, clients, own, self.one_by_one)

    def calibrate(self, params: Params, examples: Examples) -> None:
        if not self._calibration.layers:
            return
        numbers = self._numbers(params.tables, params.dense)
        names = self._calibration.buffers_of_layers()
        inside = {f"module.{n}": x.clone() if n in names else x for n, x in numbers.items()}
        with self.evaluating():
            functional_call(self._calibration, inside, (examples,))
        self._measured = {name: inside[f"module.{name}"] for name in names}
        self._still.clear()

    def export(self, params: Params) -> dict[str, Tensor]:
        """The trained numbers as a state dict of the module."""
        tables = {table: whole(x) for table, x in params.tables.items()}
        trained = {name: x.contiguous() for name, x in self._by_name(tables).items()}
        trained |= params.dense
        state = self.module.state_dict()
        state |= {name: x.to(state[name]) for name, x in self._measured.items() if name in state}
        first: dict[Tensor, str] = {}  # a tensor that has two names was trained under the first
        for name, x in self.module.named_parameters(remove_duplicate=False):
            state[name] = trained.get(first.setdefault(x, name), state[name])
        return state

    def of_client(self, params: Params, client: int) -> dict[str, Tensor]:
        """The same with the personal parts of one client, by its number."""
        own: dict[str, Tensor] = {}
        if self.personal is not None:
            row = params.tables[PERSONAL][torch.tensor([client])]  # (1, width)
            own = {name: x[0] for name, x in self.personal.split(row).items()}
        return self.export(params) | own

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        if not self.one_by_one:
            return self._gradient(block, batch)
        parts = []
        for k in range(len(batch.label)):
            own, its_batch = block.slice(k, k + 1), self._batch_of(batch, block.index, k)
            parts.append(self._gradient(own, its_batch))
        return join(block.index, parts)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The module in evaluation, recording no gradient; its modes come back afterwards."""
        modes = {part: part.training for part in self.module.modules()}
        self.module.eval()
        try:
            with torch.no_grad():
                yield
        finally:
            for part, training in modes.items():
                part.training = training

    def fixed(self, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
        """Buffers and frozen parameters, which nobody trains, where and as the numbers are."""
        if (device, dtype) not in self._still:
            with torch.inference_mode(False):  # they also serve steps that autograd follows
                fixed = dict(self.module.named_buffers())
                fixed = {name: x.clone() for name, x in fixed.items()} | self._measured
                for name, x in self.module.named_parameters():
                    if not x.requires_grad:
                        fixed[name] = x.detach()
                self._still[device, dtype] = {
                    name: x.to(device, dtype if x.is_floating_point() else x.dtype)
                    for name, x in fixed.items()
                }
        return self._still[device, dtype]

    def _gradient(self, block: Submodels, batch: Batch) -> Submodels:
        """The gradients of clients that are computed together."""
        return self.as_submodels(block, self.gradients(self.inputs(block, batch)))

    def inputs(self, block: Submodels, batch: Batch) -> dict[str, Tensor]:
        """All that a step reads, by name."""
        like = next(iter(block.rows.values()))
        groups: dict[str, Mapping[str, Tensor]] = {
            "rows": block.rows,
            "dense": block.dense,
            "fixed": self.fixed(like.device, like.dtype),
            "nothing": {table: self._row_of_nothing(table, like) for table in self._padded},
            "ids": batch.ids,
            "numbers": batch.numbers,
        }
        given = {f"{group}/{n}": x for group, own in groups.items() for n, x in own.items()}
        given["label"] = batch.label
        if batch.weight is not None:
            given["weight"] = batch.weight
        if batch.key is not None:
            given["key"] = batch.key
        return given

    def as_submodels(self, block: Submodels, gradients: Sequence[Tensor]) -> Submodels:
        """What `gradients` gives, by table and by dense tensor."""
        split = len(block.rows)
        return Submodels(
            block.index,
            dict(zip(block.rows, gradients[:split], strict=True)),
            dict(zip(block.dense, gradients[split:], strict=True)),
        )

    def gradients(self, given: Mapping[str, Tensor]) -> Sequence[Tensor]:
        """The gradients by the rows and by the dense tensors among the `inputs` of a step."""

        def of(group: str) -> dict[str, Tensor]:
            prefix = f"{group}/"
            return {n.removeprefix(prefix): x for n, x in given.items() if n.startswith(prefix)}

        rows = {table: x.detach().requires_grad_() for table, x in of("rows").items()}
        dense = {name: x.detach().requires_grad_() for name, x in of("dense").items()}
        label, weight, key = (given.get(name) for name in ("label", "weight", "key"))
        assert label is not None
        every = weight
        if every is None:
            every = next(iter(rows.values())).new_ones(()).expand(label.shape)
        ids, stacked = of("ids"), dict(dense)
        if self.personal is not None:  # all examples of a client read its one row
            places = ids.pop(PERSONAL)[:, 0]  # (K, B) → (K,)
            stacked |= self.personal.split(rows[PERSONAL].index_select(0, places))
        whole, fields = self._with_nothing(rows, of("nothing"), ids)
        fields |= of("numbers")
        own = (stacked, fields, every, key)
        scores = self._scores(whole, of("fixed"), own)  # (K, B) or (K, B, C)
        slope = slope_of(self.loss, scores.detach(), label, weight, self.one_by_one)
        leaves = [*rows.values(), *dense.values()]
        return self.apart(torch.autograd.grad(scores, leaves, slope, materialize_grads=True))

    def _scores(self, rows: Mapping[str, Tensor], fixed: Mapping[str, Tensor], own: _Own) -> Tensor:
        """The scores of every client's examples: (K, B) or (K, B, C)."""
        dense, fields, weight, key = own
        if self.one_by_one:
            # Not [0], whose gradient is filled up with zeros and copied.
            first, own_fields = (
                {n: x.squeeze(0) for n, x in part.items()} for part in (dense, fields)
            )
            only = None if key is None else key[0]
            return self._client_scores(rows, fixed, first, own_fields, weight[0], only)[None]
        over = (None, None, 0, 0, 0, None if key is None else 0)
        return vmap(self._client_scores, in_dims=over)(rows, fixed, *own)

    def _client_scores(
        self,
        rows: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        dense: Mapping[str, Tensor],
        fields: Mapping[str, Tensor],
        weight: Tensor,
        key: Tensor | None,
    ) -> Tensor:
        """One client's scores; its ids address the block, so `rows` is the whole block."""
        on_gpu = next(iter(rows.values())).is_cuda
        # Also where no trace pays for them: when a run is resumed, it is not traced at once.
        lifted = on_gpu or not self.one_by_one
        replaced = self._replaced or (ReplacedOperations() if lifted else nullcontext())
        with step_context.step(weight, key) as step, replaced:
            scores: Tensor = self._call({**fixed, **self._by_name(rows), **dense}, fields)
        self.random = self.random or step.calls > 0  # known from the trial on
        return scores

    def _with_nothing(
        self, rows: Mapping[str, Tensor], nothing: Mapping[str, Tensor], ids: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The block with row 0 of the module in front of every padded table, and ids that fit."""
        whole = dict(rows)
        for table, first in nothing.items():
            whole[table] = torch.cat([first, rows[table]])
        fields = {
            name: places + 1 if self._tables_of[name] in self._padded else places
            for name, places in ids.items()
        }
        return whole, fields

    def _batch_of(self, batch: Batch, index: Mapping[str, Index], k: int) -> Batch:
        """One client's batch, its places counted from the beginning of its own rows."""
        ids = {}
        for name, places in batch.ids.items():
            table = self._tables_of[name]
            own = places[k : k + 1]
            moved = own - int(index[table].splits[k])
            ids[name] = torch.where(own < 0, -1, moved) if table in self._padded else moved
        weight, key = (None if x is None else x[k : k + 1] for x in (batch.weight, batch.key))
        numbers = {name: x[k : k + 1] for name, x in batch.numbers.items()}
        return Batch(ids, batch.label[k : k + 1], weight, None, numbers, key)

    def _call(self, numbers: dict[str, Tensor], fields: Mapping[str, Tensor]) -> Any:
        return functional_call(self._own_module(), numbers, args=(), kwargs=dict(fields))

    def _own_module(self) -> nn.Module:
        """The module, or a copy for a thread that computes beside the main one.

        A call puts its numbers into the module for as long as it runs, so threads cannot share one.
        The copy has the same tensors.
        """
        if threading.current_thread() is threading.main_thread():
            return self.module
        thread = threading.get_ident()
        if thread not in self._copies:
            tensors = (*self.module.parameters(), *self.module.buffers())
            self._copies[thread] = copy.deepcopy(self.module, {id(x): x for x in tensors})
        return self._copies[thread]

    def _numbers(
        self, rows: Mapping[str, Tensor], dense: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Everything the module has numbers for, by the module's own names."""
        like = next(iter(rows.values()))
        return self.fixed(like.device, like.dtype) | self._by_name(rows) | dict(dense)

    def _by_name(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weight of each embedding: the columns that it has in its table's rows."""
        weights: dict[str, Tensor] = {}
        for table, names in self._weights.items():
            columns = rows[table].split(self._widths[table], 1) if len(names) > 1 else [rows[table]]
            weights |= zip(names, columns, strict=True)
        return weights

    def _row_of_nothing(self, table: str, like: Tensor) -> Tensor:
        """Row 0 of a padded table, which no client holds or moves: (1, width)."""
        first_rows = self._nothing.setdefault((like.device, like.dtype), {})
        if table not in first_rows:
            start = self.initial_rows()[0][table]
            with torch.inference_mode(False):
                first_rows[table] = start(torch.zeros(1, dtype=torch.int64)).to(like)
        return first_rows[table]

    def _start_of(self, name: str, weight: Tensor) -> InitialRows:
        """The start values of an embedding: its own, or drawn if it has none."""
        if not weight.is_meta:
            return GivenRows(weight)
        part = self.module.get_submodule(name.removesuffix(".weight"))
        assert isinstance(part, nn.Embedding)
        return start_of(part, name)


def own_memory(gradients: Sequence[Tensor]) -> list[Tensor]:
    """The gradients, each in memory of its own: they are changed in place.

    Autograd gives both a and b of a + b the same tensor.
    """
    seen: set[int] = set()
    separate = []
    for x in gradients:
        shared = x.data_ptr() in seen or 0 in x.stride()
        seen.add(x.data_ptr())
        separate.append(x.clone(memory_format=torch.contiguous_format) if shared else x)
    return separate
