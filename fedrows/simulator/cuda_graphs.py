"""Local training as a CUDA graph: recorded once for a cohort's size, then replayed every round.

A step is a few hundred small operations, and launching one takes longer than its work. So the
steps of `client.step_` are recorded as they are, on buffers that stay where they are:

    rows       as long as the largest cohort seen, and a bit; what lies behind the cohort's own
               rows is nobody's, and its gradient is 0
    batches    looked up on the GPU; what tells a round from another (keys, sizes, where a client's
               examples and rows begin) is copied there, in one piece
    recorded   all steps, where every client takes as many, else one that is replayed

Nothing here waits for the GPU, so the host prepares the next round while this one is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedrows.client import Assignment, PlainTrainer, Upload, step_, upload
from fedrows.data.batches import (
    Batch,
    RoundInputs,
    drawn,
    nth_shuffled,
    round_inputs,
    shuffled,
    steps_of,
    with_keys,
)
from fedrows.optimizers.local_optimizer import local_optimizer
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

_SPARE = 1.25  # room to record for, over what is needed now


class CudaGraphTrainer:
    """The plain trainer on a GPU, recorded once for each size of a cohort.

    If the model or the algorithm does what cannot be recorded, the plain trainer takes over, and a
    note says so. A recording reads the examples it was made on: it serves cohorts of one fleet.
    """

    def __init__(self, plain: PlainTrainer, notes: list[str]) -> None:
        self.plain, self.notes = plain, notes
        self.failed = False  # whether it has turned out that nothing can be recorded
        self._recordings: dict[int, _Recording] = {}  # by K
        self._pool: Any = None  # of memory, which all recordings share

    def train(self, given: Assignment) -> Upload:
        if not self.failed:
            try:
                return self._replay(given)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.failed = True
                why = str(error).strip().splitlines()[0]
                self.notes.append(f"Trained without a CUDA graph, which is slower: {why}")
        return self.plain.train(given)

    def forget(self) -> None:
        """Gives the memory of all recordings back."""
        self._recordings.clear()
        self._pool = None
        torch.cuda.empty_cache()

    def _replay(self, given: Assignment) -> Upload:
        plain, count = self.plain, len(given.local.clients)
        recording = self._recordings.get(count)
        if recording is None or not recording.fits(given):
            self._recordings.pop(count, None)
            if not self._recordings:
                self._pool = None  # it went with the last recording in it
            recording = _Recording(plain, given)
            recording.load_(given)
            self._pool = recording.record(self._pool)
            self._recordings[count] = recording
        recording.load_(given)
        return upload(plain.algorithm, plain.plan, given, recording.replay(given))


class _Recording:
    """The local training of K clients with room for so many rows."""

    def __init__(self, plain: PlainTrainer, given: Assignment) -> None:
        self.model, self.algorithm, self.plan = plain.model, plain.algorithm, plain.plan
        self.local, local, start = given.local, given.local, given.start
        self.device, self.clients = local.label.device, len(local.clients)
        self.tables = list(start.index)
        self.capacity = {table: room(len(rows)) for table, rows in start.rows.items()}
        whole = (4 + len(self.tables) + (0 if local.pools is None else 3), self.clients)
        self.facts = torch.zeros(whole, dtype=torch.int64, device=self.device)
        plan = self.plan
        self.lr: float | Tensor = plan.lr  # what is the same in every round is recorded as it is
        if plan.lr_changes:
            self.lr = torch.zeros((), dtype=plan.torch_dtype, device=self.device)
        self.start, self.here = self._buffers(start), self._buffers(start)
        self.sent, self.kept = (
            None if x is None else self._buffers(x) for x in (given.sent, given.kept)
        )
        self.one_by_one = plan.batches == "epoch"  # steps, not clients
        examples = room(int(local.sizes.sum())) if self.one_by_one else 0
        self.order = torch.zeros(plan.epochs, examples, dtype=torch.int64, device=self.device)
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.optimizer = local_optimizer(plan)  # whose state outlives a recorded step
        self.graph = torch.cuda.CUDAGraph()

    def fits(self, given: Assignment) -> bool:
        """Whether there is room for a cohort."""
        if self.one_by_one and int(given.local.sizes.sum()) > self.order.shape[1]:
            return False
        rows = given.start.rows.items()
        return all(len(own) <= self.capacity[table] for table, own in rows)

    def load_(self, given: Assignment) -> None:
        """Copies a round's numbers to where the recording reads them."""
        local, start, round_ = given.local, given.start, given.round
        known = round_inputs(local, start.index, self.plan, round_.number, self.model.random)
        self.facts.copy_(known, non_blocking=True)
        if isinstance(self.lr, Tensor):
            self.lr.fill_(round_.lr)
        _copy_(self.start, start)
        for buffers, more in ((self.sent, given.sent), (self.kept, given.kept)):
            if buffers is not None and more is not None:
                _copy_(buffers, more)
        if self.one_by_one:
            order = shuffled(local, RoundInputs(self.facts, self.tables), self.plan)
            self.order[:, : order.shape[1]] = order

    def record(self, pool: Any) -> Any:
        """Records the steps, after they have run once for real, as CUDA asks for."""
        aside = torch.cuda.Stream(self.device)
        aside.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(aside):
            self._run(warm_up=True)
        torch.cuda.current_stream(self.device).wait_stream(aside)
        with torch.cuda.graph(self.graph, pool=pool):
            self._run()
        return self.graph.pool()

    def replay(self, given: Assignment) -> Submodels:
        """The update of the cohort that was loaded last."""
        start = given.start
        if self.one_by_one:
            _copy_(self.here, self.start)
            self.step.zero_()
            self.optimizer.restart_()
            for _ in range(int(steps_of(given.local, self.plan).max())):
                self.graph.replay()
            self.here.add_(self.start, -1)
        else:
            self.graph.replay()
        rows = {table: self.here.rows[table][: len(x)] for table, x in start.rows.items()}
        return Submodels(start.index, rows, self.here.dense).map(torch.clone)

    def _run(self, warm_up: bool = False) -> None:
        """What is recorded."""
        known = RoundInputs(self.facts, self.tables)
        index = {table: self._index(known, table) for table in self.tables}
        start, here, sent, kept = (
            None if x is None else replace(x, index={t: index[t] for t in x.rows})
            for x in (self.start, self.here, self.sent, self.kept)
        )
        assert start is not None
        assert here is not None
        with torch.inference_mode(self.model.closed_form):
            if not self.one_by_one:
                _copy_(here, start)
            step_(
                self.model,
                self.algorithm,
                self.optimizer if self.one_by_one else local_optimizer(self.plan),
                here,
                start,
                sent,
                kept,
                self.local.local,
                self.plan.clip,
                self.lr,
                self._stream(known, 1 if warm_up else None),
            )
            if not self.one_by_one:
                here.add_(start, -1)

    def _stream(self, known: RoundInputs, most: int | None) -> Iterator[Batch]:
        if self.one_by_one:
            batch = nth_shuffled(self.local, known, self.plan, self.order, self.step)
            stream = iter([batch])
        else:
            stream = drawn(self.local, known, self.plan)
        if self.model.random:
            stream = with_keys(stream, known, self.step if self.one_by_one else 0)
        for count, batch in enumerate(stream):
            if count == most:
                return
            yield batch
        if self.one_by_one:
            self.step += 1

    def _index(self, known: RoundInputs, table: str) -> Index:
        """An index of as many entries as there is room for; the last client owns the spare ones."""
        entries = torch.arange(self.capacity[table], device=self.device)
        starts = known.offsets[table].contiguous()
        owner = torch.searchsorted(starts, entries, right=True) - 1
        splits = torch.zeros(self.clients + 1, dtype=torch.int64)
        return Index(entries, splits, known_owner=owner)

    def _buffers(self, like: Submodels) -> Submodels:
        return Submodels(
            {},
            {
                table: x.new_zeros(self.capacity[table], x.shape[1])
                for table, x in like.rows.items()
            },
            {name: torch.zeros_like(x) for name, x in like.dense.items()},
        )


def _copy_(buffers: Submodels, given: Submodels) -> None:
    """Copies what is given into the front of buffers that may have more room."""
    to = [buffers.rows[table][: len(x)] for table, x in given.rows.items()]
    torch._foreach_copy_(
        [*to, *(buffers.dense[name] for name in given.dense)],
        [*given.rows.values(), *given.dense.values()],
        non_blocking=True,
    )


def room(count: int) -> int:
    """A bit more than is needed now, in steps of 64."""
    return -(-int(count * _SPARE) // 64) * 64 + 64
