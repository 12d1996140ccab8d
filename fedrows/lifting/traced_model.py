"""A lifted module whose steps are replayed from traces, on a CPU."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedrows.data.batches import Batch
from fedrows.data.examples import Examples
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.traced import Traced
from fedrows.model import Model
from fedrows.rows.params import Params, Submodels


class TracedModel(Model):
    """A lifted module that trains by the flat list of its operations, with the same bits.

    A module that is not the same in every call trains as it is, and `notes` then says so.
    """

    def __init__(self, lifted: Lifted, notes: list[str]) -> None:
        self.lifted = lifted
        self.schema, self.loss, self.note = lifted.schema, lifted.loss, lifted.note
        self.random, self.closed_form = lifted.random, True  # a replay needs no autograd
        self._parts, self._notes = list(lifted.module.modules()), notes
        self.traced = Traced(lifted.gradients, self._untraceable)

    def start(self) -> Params:
        return self.lifted.start()

    def scores(self, params: Params, fields: Mapping[str, Tensor]) -> Tensor:
        return self.lifted.scores(params, fields)

    def calibrate(self, params: Params, examples: Examples) -> None:
        self.lifted.calibrate(params, examples)

    def gradient(self, block: Submodels, batch: Batch) -> Submodels:
        lifted = self.lifted
        state = (lifted.loss, *(part.training for part in self._parts))
        rows = [f"rows/{table}" for table in block.rows]  # whose number changes from round to round
        return lifted.as_submodels(block, self.traced(lifted.inputs(block, batch), rows, state))

    def _untraceable(self, why: str) -> None:
        self.closed_form = False
        name = type(self.lifted.module).__name__
        self._notes.append(f"{name} trains without a trace of its steps, which is slower: {why}.")
