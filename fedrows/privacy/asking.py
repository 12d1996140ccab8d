"""Which rows of a union a client asks for: exactly its own, or permanent answers with lies.

An answer is for a raw value, and then for all of its rows in the union, or for one row (`coins`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from fedrows.errors import RunFolderError
from fedrows.files.whole import make_private, reason
from fedrows.privacy.answers import Answers, TwoStage
from fedrows.privacy.noise import RandomBytes
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.values import Values

Name = int | str  # of a client
AnswerPath = Callable[[Name, str], Path]  # client, table → the file of its permanent answers


class Asking:
    """Answers for clients, and remembers what they have permanently said.

    values: of each table. coins: what an answer is for, `value` or `row`. path: where a client's
    answers for a table are kept; without it they are in memory only.
    """

    def __init__(
        self,
        space: RowSpace,
        stages: TwoStage | None,
        values: Mapping[str, Values],
        path: AnswerPath | None,
        source: RandomBytes,
        coins: str = "value",
    ) -> None:
        self._space, self._stages = space, stages
        self._values = dict(values) if coins == "value" else {t: Values() for t in values}
        self._path, self._source = path, source
        self._in_memory: dict[tuple[Name, str], Answers] = {}

    def wanted(self, client: Name, union: np.ndarray, held: np.ndarray) -> np.ndarray:
        """The places of the union (U,) that a client asks for; `held` are its own, sorted."""
        if self._stages is None:
            return _common(held, union)
        asked, own = self._space.by_table(union), self._space.by_table(held)
        parts = [np.empty(0, dtype=np.int64)]
        for table, rows in asked.items():
            answers = self._recall(self._stages, client, table)
            before = len(answers.values)
            yes = answers.answer_(rows, own[table], self._stages, self._values[table], self._source)
            if len(answers.values) > before:
                self._keep(client, table, answers)
            parts.append(self._space.starts[table] + rows[yes])
        return np.concatenate(parts)

    def _recall(self, stages: TwoStage, client: Name, table: str) -> Answers:
        if self._path is None:
            return self._in_memory.setdefault((client, table), Answers(stages.permanent))
        path = self._path(client, table)
        return Answers.open(path) if path.exists() else Answers(stages.permanent)

    def _keep(self, client: Name, table: str, answers: Answers) -> None:
        """Puts the answers on the disk, before any of them is used."""
        if self._path is None:
            return
        path = self._path(client, table)
        try:
            make_private(path.parent)
            answers.save(path)
        except OSError as error:
            raise RunFolderError(
                f"The permanent answers in {path} cannot be written ({reason(error)}): make room, "
                "or choose another folder with --answers."
            ) from error


def _common(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """What two sorted arrays have in common, by binary search."""
    if not len(others):
        return some[:0]
    position = np.searchsorted(others, some).clip(max=len(others) - 1)
    return some[others[position] == some]
