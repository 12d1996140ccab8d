"""Which rows a client asks for, answered with two stages of randomized response.

The first stage is permanent: a client answers once for a raw value and remembers what it said, so
that asking again teaches nothing. The second lies anew in every round, so that the answers of two
rounds cannot be matched with each other.

    b  ──permanent (p1, q1)──▶  b'  ──fresh (p2, q2), each round──▶  y

    ε after R answers = max( ln P(all 1 | held)/P(all 1 | not), ln P(all 0 | not)/P(all 0 | held) )
    P(all 1 | b) = P(b'=1 | b)·p2^R + P(b'=0 | b)·q2^R, and alike for 0

These are the extremes, since the likelihood ratio grows with the number of ones. With R → ∞ it is
the permanent stage's ε. A holder keeps a row with probability p1·p2 + (1−p1)·q2, by which the
correction divides; for one client it is p2 or q2 for ever, so that only the mean over a row's
holders is unbiased. A value that a client comes to hold later keeps its first answer.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import numpy as np

from fedrows.errors import PlanError, RunFolderError
from fedrows.files.whole import make_private, reason, write_private
from fedrows.privacy.noise import RandomBytes
from fedrows.privacy.response import Response, check_epsilon
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.values import Values


@dataclass(frozen=True)
class TwoStage:
    """A permanent response and a fresh one."""

    permanent: Response
    fresh: Response

    @classmethod
    def of(cls, once: float, for_ever: float) -> TwoStage:
        """Symmetric stages such that one answer has ε `once`, and any number of them `for_ever`."""
        check_epsilon(once, "The ε of one round")
        check_epsilon(for_ever, "The ε for ever")
        if once >= for_ever:
            raise PlanError(
                f"The ε of one round is {once}, but must be below the ε for ever, {for_ever}."
            )
        permanent = Response.symmetric(for_ever)
        keep = 1 / (1 + math.exp(-once))
        fresh = (keep - permanent.lie) / (permanent.keep - permanent.lie)
        return cls(permanent, Response(fresh, 1 - fresh))

    @property
    def keep_probability(self) -> float:
        """How likely a client that holds a row asks for it."""
        return self._one(self.permanent.keep)

    @property
    def decoy_probability(self) -> float:
        """How likely a client that does not hold a row asks for it."""
        return self._one(self.permanent.lie)

    @property
    def epsilon_for_ever(self) -> float:
        """ε of all answers there will ever be, for one raw value."""
        return self.permanent.epsilon

    def epsilon_after(self, answers: int) -> float:
        """ε of so many rounds' answers together, for one raw value."""
        p, q = self.permanent.keep, self.permanent.lie
        ones = (self.fresh.lie / self.fresh.keep) ** answers
        zeros = ((1 - self.fresh.keep) / (1 - self.fresh.lie)) ** answers
        return max(
            math.log((p + (1 - p) * ones) / (q + (1 - q) * ones)),
            math.log((1 - q + q * zeros) / (1 - p + p * zeros)),
        )

    def _one(self, permanent: float) -> float:
        return permanent * self.fresh.keep + (1 - permanent) * self.fresh.lie


@dataclass
class Answers:
    """What one client has permanently said about one table's values. It is as secret as its data.

    Goes to disk with `save` before the first answer leaves the device, or a killed process would
    answer a second time.
    """

    permanent: Response
    values: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))  # sorted
    yes: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=bool))

    def recall_(
        self, values: np.ndarray, held: np.ndarray, source: RandomBytes = os.urandom
    ) -> np.ndarray:
        """The permanent answer to each value, given now if never before: (V,)."""
        asked, back = np.unique(values, return_inverse=True)
        new = asked[~np.isin(asked, self.values, assume_unique=True)]
        first = self.permanent.answer(np.isin(new, held), source)
        both, yes = np.concatenate([self.values, new]), np.concatenate([self.yes, first])
        order = np.argsort(both, kind="stable")
        self.values, self.yes = both[order], yes[order]
        return self.yes[np.searchsorted(self.values, asked)][back]

    def answer_(
        self,
        rows: np.ndarray,
        held: np.ndarray,
        stages: TwoStage,
        values: Values | None = None,
        source: RandomBytes = os.urandom,
    ) -> np.ndarray:
        """Whether a client that holds some rows asks for each row of a union, in one round: (U,).

        Rows of one raw value get one answer: a client asks for all of them or for none, whatever
        variants it holds, so that nothing can be seen of its variants.
        """
        if stages.permanent != self.permanent:
            raise PlanError(
                f"The permanent answers were given at ε {self.permanent.epsilon:.4g}, not "
                f"{stages.permanent.epsilon:.4g}: keep that ε, since answering anew spends anew."
            )
        named, own = (
            (values or Values()).of(np.asarray(some, dtype=np.int64))[0] for some in (rows, held)
        )
        asked, back = np.unique(named, return_inverse=True)
        return stages.fresh.answer(self.recall_(asked, own, source), source)[back]

    def save(self, path: Path) -> None:
        """Writes the answers into a file of their own that only the user may read."""
        stage, file = np.array([self.permanent.keep, self.permanent.lie]), BytesIO()
        np.savez(file, values=self.values, yes=np.packbits(self.yes), permanent=stage)
        write_private(path, file.getvalue())

    @classmethod
    def open(cls, path: Path) -> Answers:
        """The answers that `save` has written."""
        try:
            with np.load(BytesIO(path.read_bytes()), allow_pickle=False) as file:
                values, permanent = file["values"], file["permanent"].tolist()
                yes = np.unpackbits(file["yes"], count=len(values)).astype(bool)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise RunFolderError(
                f"The permanent answers in {path} cannot be read ({error}): restore the file, since"
                " answering anew spends anew."
            ) from error
        return cls(Response(*permanent), values, yes)


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
