"""Which rows the clients of a cohort ask for: a private union, then answers with lies over it.

The rows of all shared tables stand in one line, table after table, so that one union serves all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError
from fedrows.files.whole import reason
from fedrows.privacy import union
from fedrows.privacy.answers import Answers, TwoStage
from fedrows.privacy.counting import values_of
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.noise import Source
from fedrows.privacy.options import Privacy
from fedrows.privacy.protocol import Outcome, ProtocolError, run
from fedrows.rows.index import Index

_MISSED = 1e-6  # the odds, at most, that a Bloom filter misses a row


@dataclass(frozen=True)
class Lines:
    """Where each table's rows begin when all stand in one line."""

    tables: tuple[str, ...]
    starts: tuple[int, ...]  # (T+1,)

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Lines:
        """The line of tables of some sizes."""
        return cls(tuple(sizes), (0, *np.cumsum([*sizes.values()]).tolist()))

    def of_client(self, held: Mapping[str, Index], client: int) -> np.ndarray:
        """The places of all rows that one client of an index holds."""
        parts = []
        for start, table in zip(self.starts, self.tables, strict=False):
            low, high = held[table].splits[client : client + 2].tolist()
            parts.append(start + held[table].ids[low:high].cpu().numpy())
        return np.concatenate(parts)

    def by_table(self, places: np.ndarray) -> dict[str, np.ndarray]:
        """Sorted places as ids of each table."""
        cuts = np.searchsorted(places, self.starts)
        return {
            table: places[cuts[i] : cuts[i + 1]] - self.starts[i]
            for i, table in enumerate(self.tables)
        }


class Permanent:
    """All clients' permanent answers: in a folder, or in memory without one."""

    def __init__(self, stages: TwoStage, folder: Path | None) -> None:
        self._stages, self._folder = stages, folder
        self._here: dict[tuple[str, int], Answers] = {}

    def recall(self, table: str, client: int) -> Answers:
        """What a client has said about a table so far."""
        if self._folder is None:
            return self._here.setdefault((table, client), Answers(self._stages.permanent))
        path = self._path(table, client)
        return Answers.open(path) if path.exists() else Answers(self._stages.permanent)

    def keep(self, table: str, client: int, answers: Answers) -> None:
        """Puts the answers away; to be called before any of them is used."""
        if self._folder is None:
            return
        path = self._path(table, client)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            answers.save(path)
        except OSError as error:
            raise RunFolderError(
                f"The permanent answers in {path} cannot be written ({reason(error)}): make room, "
                "or choose another folder with --answers."
            ) from error

    def _path(self, table: str, client: int) -> Path:
        assert self._folder is not None
        return self._folder / table / f"{client}.npz"


@dataclass(frozen=True, eq=False)
class Asked:
    """What came of asking a cohort."""

    union: dict[str, np.ndarray]  # table → ids, sorted
    there: np.ndarray  # (K,), whether each client came through
    index: dict[str, Index]  # table → what each client asks for
    bytes_up: float  # of all clients together
    bytes_down: float
    failed: str = ""  # why there is no union


class Asking:
    """Asks cohorts for their rows."""

    def __init__(
        self,
        data: FederatedData,
        privacy: Privacy,
        nodes: Mapping[int, NodeKey],
        source: Source,
    ) -> None:
        shared = {t: rows for t, rows in data.tables.items() if t not in data.local}
        self.lines, self.stages, self.privacy = Lines.of(shared), privacy.stages, privacy
        self.values = {table: values_of(data, table) for table in shared}
        self._nodes, self._source = nodes, source
        folder = None if privacy.answers is None else Path(privacy.answers)
        self._permanent = None if self.stages is None else Permanent(self.stages, folder)
        sizes = sum((data.index[t].lengths for t in shared), start=torch.zeros(1, dtype=torch.long))
        # Rounded up, or the filter's size would tell the size of the largest set.
        self._most = 1 << max(int(sizes.max()) - 1, 1).bit_length()

    def plan(self, cohort: int, name: str) -> union.UnionPlan:
        """How a union is found: a word per row, or a Bloom filter."""
        rows = self.lines.starts[-1]
        direct = union.Direct(rows)
        bloom = union.Bloom.for_sets(rows, cohort, self._most, missed=_MISSED, salt=name)
        sizes = [x.length * np.dtype(x.word).itemsize for x in (direct, bloom)]
        if self.privacy.union == "auto":
            return direct if sizes[0] <= sizes[1] else bloom
        return direct if self.privacy.union == "direct" else bloom

    def ask(
        self,
        cohort: list[int],
        held: Mapping[str, Index],
        name: str,
        threshold: int,
        drop: Mapping[int, int],
    ) -> Asked:
        """The union of a cohort's rows, and what each client asks for; `drop` as in `run`."""
        plan = self.plan(len(cohort), name)
        sets = {one: self.lines.of_client(held, place) for place, one in enumerate(cohort)}
        up = down = 0.0
        if self.privacy.secure_sum == "real":
            try:
                outcome = self._real(plan, sets, name, threshold, drop)
            except ProtocolError as error:
                nothing = {table: np.empty(0, dtype=np.int64) for table in self.lines.tables}
                nobody = np.zeros(len(cohort), dtype=bool)
                return Asked(nothing, nobody, self._index(nothing, nobody, {}), up, down,
                             str(error))  # fmt: skip
            up = float(sum(phase.bytes_up for phase in outcome.phases))
            down = float(sum(phase.bytes_down for phase in outcome.phases))
            ids, through = outcome.result.ids, set(outcome.clients)
        else:
            through = set(cohort) - drop.keys()
            ids = np.unique(np.concatenate([np.empty(0, int), *(sets[one] for one in through)]))
            up = float(len(cohort) * plan.length * np.dtype(plan.word).itemsize)
            down = float(4 * len(ids) * len(cohort))
        there = np.array([one in through for one in cohort])
        found = self.lines.by_table(ids)
        wanted = {}
        for place, one in enumerate(cohort):
            if there[place]:
                wanted[place] = self._answer(one, found, held, place)
        if self.stages is None:
            up += 4.0 * sum(len(x) for its in wanted.values() for x in its.values())
        else:
            up += len(wanted) * -(-len(ids) // 8)
        return Asked(found, there, self._index(found, there, wanted), up, down)

    def _real(
        self,
        plan: union.UnionPlan,
        sets: Mapping[int, np.ndarray],
        name: str,
        threshold: int,
        drop: Mapping[int, int],
    ) -> Outcome[union.UnionResult, union.Ids]:
        """The union by its protocol."""
        cohort = tuple(sorted(sets))
        terms = union.terms(plan, f"{name}, union", cohort, threshold)
        registry = {one: self._nodes[one].public for one in cohort}
        halves = {
            one: union.client(terms, plan, one, self._nodes[one], registry, sets[one])
            for one in cohort
        }
        return run(union.server(terms, plan, registry), halves, drop)

    def _answer(
        self, client: int, found: Mapping[str, np.ndarray], held: Mapping[str, Index], place: int
    ) -> dict[str, np.ndarray]:
        """The rows of the union that one client asks for."""
        wanted = {}
        for table, rows in found.items():
            low, high = held[table].splits[place : place + 2].tolist()
            mine = held[table].ids[low:high].cpu().numpy()
            if self._permanent is None or self.stages is None:
                wanted[table] = _common(mine, rows)
                continue
            answers = self._permanent.recall(table, client)
            before = len(answers.values)
            said = answers.answer_(rows, mine, self.stages, self.values[table], self._source)
            if len(answers.values) > before:
                self._permanent.keep(table, client, answers)
            wanted[table] = rows[said]
        return wanted

    def _index(
        self,
        found: Mapping[str, np.ndarray],
        there: np.ndarray,
        wanted: Mapping[int, Mapping[str, np.ndarray]],
    ) -> dict[str, Index]:
        empty = np.empty(0, dtype=np.int64)
        index = {}
        for table in found:
            parts = [wanted[k][table] if k in wanted else empty for k in range(len(there))]
            splits = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
            ids = torch.from_numpy(np.concatenate(parts).astype(np.int64))
            index[table] = Index(ids, torch.from_numpy(splits.astype(np.int64)))
        return index


def _common(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """What two sorted arrays have in common, by binary search."""
    if not len(others):
        return some[:0]
    place = np.searchsorted(others, some).clip(max=len(others) - 1)
    return some[others[place] == some]
