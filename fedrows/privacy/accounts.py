"""What a private run writes into its ledger, round by round, and when it must stop.

With a file, the ledger on disk is what counts: a run that was killed and goes on from an older
checkpoint has spent what the file says, the rounds that it lost included.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from fedrows.errors import FedrowsError
from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Ledger
from fedrows.privacy.ledger_file import LedgerFile, Spending, combined, of_run
from fedrows.privacy.mechanism import stored
from fedrows.privacy.options import OF_THE_MODEL, Privacy
from fedrows.privacy.values import Values, rows_per_value
from fedrows.rows.index import Index


class BudgetSpentError(FedrowsError):
    """A release that a budget over several runs has no ε left for: trying again does not help."""


@dataclass(frozen=True, eq=False)
class Releasable:
    """What may leave a run whose model is private, beside the model."""

    tables: tuple[str, ...]  # whose rows are shared
    heat: dict[str, Tensor]
    spent: dict[str, Any]  # as JSON: ε of every kind, δ, the mechanism


class Accounts:
    """The ledger of a run, and how often each client has answered."""

    def __init__(self, privacy: Privacy, cohort: int, clients: int) -> None:
        self.run = os.urandom(8).hex()  # by which the run is known in a ledger of many
        self.ledger = Ledger(privacy.delta)
        self._privacy, self._cohort, self._clients = privacy, cohort, clients
        self._answered: Counter[int] = Counter()
        self._lost = 0  # rounds that are paid for, but not in the checkpoint gone back to
        # table → the most answers of one client that one raw value, or all its data, may change
        self._changed: dict[str, tuple[int, int]] = {}
        self._file = None if privacy.ledger is None else LedgerFile(Path(privacy.ledger))
        if self._file is not None:
            self._file.spendings()  # a file that cannot be used is found out here

    def keep_in_(self, path: Path, round_: int = 0) -> None:
        """Keeps the ledger in a file, unless the run has one over several runs.

        round_: where the run stands. What the file knows of this run counts, and what it lacks
        is added.
        """
        if self._file is None:
            self._file = LedgerFile(path)
        spendings = self._file.of(self.run)
        known = [entry for each in spendings for entry in each.entries]
        missing = Counter(self.ledger.entries) - Counter(known)
        self.ledger.entries = known
        self._lost = max(0, len([each for each in spendings if each.round]) - round_)
        by_round: dict[int, list[Entry]] = {}
        for entry in missing.elements():
            by_round.setdefault(entry.round, []).append(entry)
        for number, entries in by_round.items():
            self.spend_(number, entries)

    def spend_(self, round_: int, entries: Sequence[Entry]) -> None:
        """Writes down what is about to be released, on the disk if there is a file."""
        if self._file is not None and entries:
            spending = Spending(self.run, round_, tuple(entries))
            self._file.append(spending, lambda before: self._check(before, entries))
        self.ledger.add_(*entries)

    def know_(self, table: str, index: Index, values: Values) -> None:
        """Takes note of a table that clients will answer for.

        index: what they hold, or one client with all rows if that is not known.
        """
        rows, owner = index.ids.cpu().numpy(), index.owner.cpu().numpy()
        if self._privacy.coins == "row":
            largest = int(np.bincount(owner, minlength=1).max())
            self._changed[table] = rows_per_value(values, owner, rows), largest
            return
        pairs = np.unique(np.stack([owner, values.of(rows)[0]]), axis=1)
        self._changed[table] = 1, int(np.bincount(pairs[0], minlength=1).max())

    def answered_(self, round_: int, clients: Iterable[int]) -> None:
        """Writes down a round in which these clients said what they want."""
        self._answered.update(clients)
        self.spend_(round_, self._entries(round_, self._most_answers))

    def exceeds(self, round_: int) -> str:
        """Why a round must not be run; nothing if it may."""
        most, kind = self._privacy.max_epsilon, self._privacy.limited
        if most is None:
            return ""
        coming, ledger = self._entries(round_, self._most_answers + 1), self.ledger
        if self._privacy.ledger is not None and self._file is not None:
            ledger, coming = self._file.ledger(ledger.delta), of_run(self.run, coming)
        if not ledger.would_exceed(most, kind, *coming):
            return ""
        where = "" if ledger is self.ledger else f" in {self._privacy.ledger}"
        return (
            f"max-epsilon of {kind} is {most:g}: {ledger.spent(kind):.4g} is spent{where} after "
            f"round {round_ - 1}, and another round would exceed it"
        )

    def line(self) -> dict[str, float | str]:
        """ε of every kind that was spent; JSON has no infinity."""
        spent = {kind: self.ledger.spent(kind) for kind in self.ledger.kinds}
        return {kind: x if math.isfinite(x) else "inf" for kind, x in spent.items()}

    def releasable(self, tables: tuple[str, ...], heat: dict[str, Tensor]) -> Releasable:
        """Heat that has noise, and what was spent on it and on the model."""
        privacy = self._privacy
        mechanism = None if privacy.mechanism is None else stored(privacy.mechanism)
        # Kinds against the server follow from how often the most frequent client was drawn.
        epsilon = {kind: x for kind, x in self.line().items() if kind in OF_THE_MODEL}
        spent = {"epsilon": epsilon, "delta": privacy.delta, "mechanism": mechanism}
        dials = {"dp_heat_noise": privacy.dp_heat_noise, "dp_heat_rows": privacy.dp_heat_rows}
        return Releasable(tables, heat, {**spent, **dials})

    def state(self) -> dict[str, Any]:
        """All of it as JSON."""
        answered = {str(client): count for client, count in sorted(self._answered.items())}
        return {"run": self.run, "ledger": self.ledger.to_json(), "answered": answered}

    def restore_(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave; `keep_in_` then says what was spent since."""
        self.run = state.get("run", self.run)
        self.ledger = Ledger.from_json(state["ledger"])
        self._answered = Counter(
            {int(client): count for client, count in state["answered"].items()}
        )

    @property
    def _most_answers(self) -> int:
        """How often one client may have answered at most."""
        return max(self._answered.values(), default=0) + self._lost

    def _check(self, before: Sequence[Spending], entries: Sequence[Entry]) -> None:
        """Raises a BudgetSpentError if a budget over several runs does not have this much left."""
        most, kind = self._privacy.max_epsilon, self._privacy.limited
        if self._privacy.ledger is None or most is None:
            return
        ledger, coming = combined(before, self.ledger.delta), of_run(self.run, entries)
        spends = any(entry.kind == kind for entry in entries)
        if spends and ledger.would_exceed(most, kind, *coming):
            raise BudgetSpentError(
                f"max-epsilon of {kind} is {most:g}, and {ledger.spent(kind):.4g} of it is spent "
                f"in {self._privacy.ledger}: nothing was released; raise the limit, or stop here."
            )

    def _entries(self, round_: int, answers: int) -> list[Entry]:
        """What a round writes if no client has answered more often than this."""
        privacy = self._privacy
        if not privacy.secret_sums:
            return []
        entries = []
        if not privacy.noise_in_sum:
            entries.append(Entry("totals/value", "union", round_, math.inf, series=True))
            entries.append(Entry("totals/value", "updates", round_, math.inf, series=True))
        if privacy.stages is None:
            for kind in ("server/value", "server/set"):
                entries.append(Entry(kind, "rows asked for", round_, math.inf, series=True))
        else:
            for table, changed in self._changed.items():
                name = f"rows asked for in {table}"
                spent = privacy.stages.epsilon_after(answers) if answers else 0.0
                for kind, times in zip(("server/value", "server/set"), changed, strict=True):
                    entries.append(Entry(kind, name, round_, times * spent, series=True))
        if privacy.mechanism is not None:
            tables, clients = bool(self._changed), self._clients or self._cohort
            noise = privacy.mechanism.accounted(round_, self._cohort, clients, tables)
            if self._clients:
                entries.append(noise)
            if privacy.noise_in_sum:
                entries += self._known_cohorts(noise, answers)
        return entries

    def _known_cohorts(self, noise: Entry, answers: int) -> list[Entry]:
        """The same noise against the server, which knows who is in a cohort.

        A user spends in rounds that it takes part in, so there is an event for every round that
        the most frequent client was in. If nobody knows how many clients there are, nothing is
        amplified for others either: whoever sees the model sees less than the server.
        """
        assert noise.event is not None, "noise in a sum is accounted for by an event"
        event = replace(noise.event, sampling="all", cohort=0, clients=0)
        kinds = [AGAINST_SERVER] if self._clients else [AGAINST_SERVER, noise.kind]
        known = [e for e in self.ledger.entries if e.kind == AGAINST_SERVER and e.round]
        more = max(0, answers - len(known))
        return [replace(noise, kind=kind, event=event) for kind in kinds for _ in range(more)]
