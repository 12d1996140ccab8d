"""One local step of one client as a function of tensors, by the names that a device knows.

rows/<table>     (R, width)    the client's rows of every table
dense/<name>                   the dense tensors
ids/<field>      (B,), (B, L)  slots; −1 where a list has ended
numbers/<field>  (B,), (B, D)
label, weight    (B,)          weight 0: the example only fills the batch
lr               ()
key              ()            of the step's own randomness, if the module has dropout
start/…          where the round began, sent/… and kept/… of the algorithm, where it reads them
state/<part>/…   of the optimiser, zero before the first step; count () is 1 in the first step

The results are next/rows/<table>, next/dense/<name>, next/state/<part>/… and loss, the mean before
the step.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm
from fedrows.data.batches import Batch
from fedrows.data.federation import FederatedData
from fedrows.device.device_operations import DeviceOperations
from fedrows.device.step_optimizers import COUNTED, STATES, moved
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.rows.index import Index
from fedrows.rows.params import Params, Submodels
from fedrows.rows.ragged import Ragged

Shape = tuple[int | str, ...]  # a word stands for a size that is free


@dataclass(frozen=True)
class TensorFacts:
    """What a tensor of the step looks like."""

    shape: Shape
    dtype: torch.dtype = torch.float32


@dataclass
class OneStep:
    """The step of one model, algorithm and plan."""

    model: Model
    data: FederatedData
    plan: Plan
    algorithm: Algorithm
    fixed: Mapping[str, int] = field(default_factory=dict)  # sizes that are not free

    def __post_init__(self) -> None:
        self.model = _for_one_client(self.model)
        shared = [t for t in self.model.schema.tables if t not in self.data.local]
        self.leaves = self._leaves(self.model.schema.tables)
        self.shared_leaves = self._leaves(shared)
        of = type(self.algorithm)
        adjusts = of.adjust_ is not Algorithm.adjust_
        self.reads_start = adjusts
        self.reads_sent = adjusts and of.send is not Algorithm.send
        self.reads_kept = adjusts and of.keeps

    def inputs(self) -> dict[str, TensorFacts]:
        facts = dict(self.leaves)
        for use, reads in {
            "start": self.reads_start,
            "sent": self.reads_sent,
            "kept": self.reads_kept,
        }.items():
            if reads:
                facts |= {f"{use}/{name}": x for name, x in self.shared_leaves.items()}
        for part in STATES[self.plan.optimizer]:
            facts |= {f"state/{part}/{name}": x for name, x in self.leaves.items()}
        if self.plan.optimizer in COUNTED:
            facts["count"] = TensorFacts(())
        train = self.data.train
        for name, column in train.ids.items():
            if isinstance(column, Ragged):
                deep: Shape = (f"length of {name}",)
            else:
                deep = tuple(column.shape[1:])
            facts[f"ids/{name}"] = TensorFacts(("batch", *deep), torch.int64)
        for name, numbers in train.numbers.items():
            facts[f"numbers/{name}"] = TensorFacts(("batch", *numbers.shape[1:]))
        classes = self.data.labels == "classes"
        facts["label"] = TensorFacts(("batch",), torch.int64 if classes else torch.float32)
        facts["weight"] = TensorFacts(("batch",))
        facts["lr"] = TensorFacts(())
        if self.model.random:
            facts["key"] = TensorFacts((), torch.int64)
        return {name: self._with_sizes(x) for name, x in facts.items()}

    def outputs(self) -> dict[str, TensorFacts]:
        facts = {f"next/{name}": x for name, x in self.leaves.items()}
        for part in STATES[self.plan.optimizer]:
            facts |= {f"next/state/{part}/{name}": x for name, x in self.leaves.items()}
        return {**facts, "loss": TensorFacts(())}

    def usual_sizes(self) -> dict[str, int]:
        """The sizes that all devices use, of what may be fixed if it cannot be free."""
        lists = {n: x.length for n, x in self.data.train.ids.items() if isinstance(x, Ragged)}
        return {"batch": self.plan.batch_size} | {f"length of {n}": x for n, x in lists.items()}

    def _with_sizes(self, facts: TensorFacts) -> TensorFacts:
        shape = (self.fixed.get(x, x) if isinstance(x, str) else x for x in facts.shape)
        return replace(facts, shape=tuple(shape))

    def __call__(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        here = self._submodels(given, "")
        batch = self._batch(given)
        gradient, loss = self._gradient(here, batch)
        if self.plan.clip is not None:
            squares = [x.square().sum() for x in _named(gradient).values()]
            norm = torch.stack(squares).sum().sqrt().clamp(min=1e-12)
            factor = (self.plan.clip / norm).clamp(max=1)
            gradient = gradient.map(lambda x: x * factor)
        private = self.data.local
        start, sent, kept = (
            self._submodels(given, f"{use}/") if reads else None
            for use, reads in (
                ("start", self.reads_start),
                ("sent", self.reads_sent),
                ("kept", self.reads_kept),
            )
        )
        if start is not None:
            local = here.without(private)
            self.algorithm.adjust_(gradient.without(private), local, start, sent, kept)
        parts = STATES[self.plan.optimizer]
        state = {part: _named(self._submodels(given, f"state/{part}/")) for part in parts}
        now, after = moved(
            self.plan, _named(here), _named(gradient), state, given["lr"], given.get("count")
        )
        tensors = {f"next/{name}": x for name, x in now.items()}
        for part in parts:
            tensors |= {f"next/state/{part}/{name}": x for name, x in after[part].items()}
        # without K = 1
        flat = {n: x.squeeze(0) if "dense/" in n else x for n, x in tensors.items()}
        return {**flat, "loss": loss}

    def _leaves(self, tables: Mapping[str, object] | list[str]) -> dict[str, TensorFacts]:
        schema = self.model.schema
        leaves = {
            f"rows/{t}": TensorFacts((f"rows of {t}", schema.tables[t].width)) for t in tables
        }
        return leaves | {f"dense/{n}": TensorFacts(tuple(s)) for n, s in schema.dense.items()}

    def _submodels(self, given: Mapping[str, Tensor], prefix: str) -> Submodels:
        """The tensors of one client that have a prefix, K = 1 in front of the dense ones."""
        schema = self.model.schema
        names = {t: f"{prefix}rows/{t}" for t in schema.tables}
        rows = {t: given[name] for t, name in names.items() if name in given}
        nowhere = Index(torch.zeros(0, dtype=torch.int64), torch.zeros(2, dtype=torch.int64))
        dense = {n: given[f"{prefix}dense/{n}"].unsqueeze(0) for n in schema.dense}
        return Submodels(dict.fromkeys(rows, nowhere), rows, dense)

    def _batch(self, given: Mapping[str, Tensor]) -> Batch:
        train = self.data.train
        return Batch(
            {name: given[f"ids/{name}"].unsqueeze(0) for name in train.ids},
            given["label"].unsqueeze(0),
            given["weight"].unsqueeze(0),
            None,
            {name: given[f"numbers/{name}"].unsqueeze(0) for name in train.numbers},
            given["key"].unsqueeze(0) if self.model.random else None,
        )

    def _gradient(self, here: Submodels, batch: Batch) -> tuple[Submodels, Tensor]:
        assert batch.weight is not None
        total = batch.weight.sum()
        share = batch.weight[0] / torch.where(total > 0, total, 1)  # (B,)
        if isinstance(self.model, Lifted):
            noted: list[Tensor] = []
            lifted = copy.copy(self.model)
            lifted.loss = lambda scores, label: _noted(noted, self.model.loss(scores, label))
            gradients = lifted.gradients(lifted.inputs(here, batch))
            return lifted.as_submodels(here, gradients), (noted[0].detach() * share).sum()
        scores = self._scores(here, batch)
        return self.model.gradient(here, batch), (
            self.model.loss(scores, batch.label[0]) * share
        ).sum()

    def _scores(self, here: Submodels, batch: Batch) -> Tensor:
        """The scores of a model that is no module: (B,)."""
        padded = self.data.padded
        tables = {
            t: torch.cat([x.new_zeros(1, x.shape[1]), x]) if t in padded else x
            for t, x in here.rows.items()
        }
        fields = {
            name: x[0] + 1 if self.data.fields[name] in padded else x[0]
            for name, x in batch.ids.items()
        }
        fields |= {name: x[0] for name, x in batch.numbers.items()}
        return self.model.scores(Params(tables, {n: x[0] for n, x in here.dense.items()}), fields)


def _for_one_client(model: Model) -> Model:
    """The model as a trace needs it: for one client, with no look at memory."""
    model = copy.copy(model)
    if isinstance(model, Lifted):
        model.one_by_one = True
        model.apart = lambda gradients: [x.clone() for x in gradients]
        model.use(DeviceOperations())
    return model


def _noted(notes: list[Tensor], x: Tensor) -> Tensor:
    notes.append(x)
    return x


def _named(part: Submodels) -> dict[str, Tensor]:
    rows = {f"rows/{t}": x for t, x in part.rows.items()}
    return rows | {f"dense/{n}": x for n, x in part.dense.items()}
