"""How a cohort is cut into chunks of clients that train together: measured once, then kept.

On a CPU many small products of few clients stay in the cache, and several chunks at a time, each on
a thread of its own, waste less than one on all threads. Which is best depends on the model and on
the machine, so all are tried on a run's first cohort, whose results are thrown away: what comes out
of a run depends on the chunks in its last bits only, and a run has one way to cut throughout.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from fedrows.client import Assignment, PlainTrainer, Trainer, Upload
from fedrows.rows.params import join

_SLOW = 0.2  # seconds: a round that takes less is not worth measuring
_BETTER = 0.9  # of the time of one chunk, to be worth leaving it
_MOST = 1_000  # clients in a chunk: with more, what a step touches has left the cache by the next


@dataclass(frozen=True)
class Chunks:
    """So many clients in a chunk; so many chunks at a time, each on one thread."""

    clients: int
    at_a_time: int = 1  # 1: one after another, each on all threads

    def bounds(self, cohort: int) -> list[int]:
        """Where a cohort is cut, its two ends included.

        One client left over joins the chunk before it: PyTorch takes the products of a single one
        by another routine, which rounds another way.
        """
        lows = list(range(0, cohort, self.clients))
        if len(lows) > 1 and self.clients > 1 and cohort - lows[-1] == 1:
            lows.pop()
        return [*lows, cohort]


def cut(cohort: int, threads: int, parts: int) -> Chunks:
    """A cohort in so many chunks for each of some threads."""
    clients = min(-(-cohort // (parts * threads)), _MOST)
    return Chunks(clients, min(threads, -(-cohort // clients)))


def fastest(train: Callable[[Chunks], object], cohort: int, threads: int) -> Chunks:
    """The way that takes the least time; one chunk unless another is clearly better.

    Of many threads, twice as many are tried until they are slower: they wait for each other
    whenever Python has its turn. Then that many threads have several chunks each.
    """
    tried: dict[Chunks, float] = {}

    def seconds(way: Chunks) -> float:
        if way not in tried:
            train(way)  # warm up: other shapes have other traces
            start = time.perf_counter()
            train(way)
            tried[way] = time.perf_counter() - start
        return tried[way]

    whole = Chunks(min(cohort, _MOST))  # cut only if it is huge
    if seconds(whole) < _SLOW:
        return whole
    counts = [2**n for n in range(1, threads.bit_length()) if 2**n < threads] + [threads]
    at_once, least = counts[0], math.inf
    for count in counts:
        now = seconds(cut(cohort, count, 1))
        if now >= least:
            break
        at_once, least = count, now
    for parts in (2, 5):
        seconds(cut(cohort, at_once, parts))
    best = min(tried, key=lambda way: tried[way])
    return best if tried[best] < _BETTER * tried[whole] else whole


def train_in_chunks(
    trainer: Trainer, chunks: Chunks, given: Assignment, pool: ThreadPoolExecutor | None = None
) -> Upload:
    """Trains the clients chunk by chunk, and joins what they upload in their own order.

    pool: threads for several chunks at a time; without it one chunk follows another.
    """

    def train(low: int, high: int) -> Upload:
        return trainer.train(given.slice(low, high))

    bounds = chunks.bounds(len(given.local.clients))
    if len(bounds) == 2:
        return trainer.train(given)
    run = map if pool is None else pool.map
    parts = list(run(train, bounds[:-1], bounds[1:]))
    names, index, kept = parts[0].extra, given.start.index, given.kept
    marks = [part.occurred for part in parts if part.occurred is not None]
    return Upload(
        given.local.clients,
        join(index, [part.update for part in parts]),
        torch.cat([part.steps for part in parts]),
        {name: join(index, [part.extra[name] for part in parts]) for name in names},
        None if kept is None else join(kept.index, [part.kept for part in parts if part.kept]),
        occurred={t: torch.cat([x[t] for x in marks]) for t in marks[0]} if marks else None,
    )


class ChunkedTrainer:
    """Another trainer, on chunks of a cohort; chunks that do not fit into a GPU are halved.

    chunk: how many clients train together; None: the whole cohort. measured: whether the first
    cohort is to find out what is fastest, if no chunk was given.
    """

    def __init__(
        self, inner: Trainer, chunk: int | None, measured: bool, notes: list[str]
    ) -> None:  # fmt: skip
        self.inner, self.notes = inner, notes
        # How cohorts are cut: chosen in the first round, or given back to a resumed run.
        self.chunks: Chunks | None = None
        self._chunk, self._measured = chunk, measured and chunk is None
        self._threads: tuple[int, ThreadPoolExecutor] | None = None

    def train(self, given: Assignment) -> Upload:
        return self._train(self.inner, given)

    def train_plainly(self, given: Assignment) -> Upload:
        """Trains on examples that are others in every round, of which nothing can be recorded."""
        return self._train(self.inner.plain, given)

    def _train(self, trainer: Trainer, given: Assignment) -> Upload:
        cohort = len(given.local.clients)

        def cut(chunks: Chunks) -> Upload:
            pool = None if chunks.at_a_time == 1 else self._pool(chunks.at_a_time)
            return train_in_chunks(trainer, chunks, given, pool)

        while True:
            try:
                if self.chunks is None and self._measured:
                    self.chunks = fastest(cut, cohort, torch.get_num_threads())
                elif self.chunks is None:
                    self.chunks = Chunks(self._chunk or len(given.round.cohort))
                return cut(self.chunks)
            except torch.OutOfMemoryError:
                if self.chunks is not None and self.chunks.clients == 1:
                    raise
                self._halve(cohort)

    @property
    def plain(self) -> PlainTrainer:
        return self.inner.plain

    def forget(self) -> None:
        self.inner.forget()

    def _halve(self, cohort: int) -> None:
        """Halves the chunks, after a cohort has not fitted into the memory of the GPU."""
        self.forget()
        before = cohort if self.chunks is None else min(self.chunks.clients, cohort)
        self.chunks = Chunks(-(-before // 2))
        begin = f"A cohort of {cohort} does not fit into the GPU's memory: it trains in chunks of "
        self.notes[:] = [note for note in self.notes if not note.startswith(begin)]
        self.notes.append(f"{begin}{self.chunks.clients}.")

    def _pool(self, threads: int) -> ThreadPoolExecutor:
        """Threads that compute on one core each."""
        if self._threads is None or self._threads[0] != threads:
            pool = ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,))
            self._threads = threads, pool  # one that was there ends with its last reference
        return self._threads[1]
