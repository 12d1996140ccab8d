"""What a private run writes into its ledger, round by round, and when it must stop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from fedrows.privacy.ledger import Entry, Ledger
from fedrows.privacy.options import Privacy
from fedrows.privacy.values import Values
from fedrows.rows.index import Index


class Accounts:
    """The ledger of a run, and how often each client has answered."""

    def __init__(self, privacy: Privacy, cohort: int, clients: int) -> None:
        self.ledger = Ledger(privacy.delta)
        self._privacy, self._cohort, self._clients = privacy, cohort, clients
        self._answered: Counter[int] = Counter()
        self._values: dict[str, int] = {}  # table → the most raw values that a client holds

    def know_(self, table: str, index: Index, values: Values) -> None:
        """Takes note of a table that clients will answer for."""
        named = values.of(index.ids.cpu().numpy())[0]
        pairs = np.unique(np.stack([index.owner.cpu().numpy(), named]), axis=1)
        self._values[table] = int(np.bincount(pairs[0]).max(initial=0))

    def bound_(self, table: str, values: int) -> None:
        """Takes note of a table of which nobody may know more than how many values there are."""
        self._values[table] = values

    def answered_(self, round_: int, clients: Iterable[int]) -> None:
        """Writes down a round in which these clients said what they want."""
        self._answered.update(clients)
        self.ledger.add_(*self._entries(round_, max(self._answered.values(), default=0)))

    def exceeds(self, round_: int) -> str:
        """Why a round must not be run; nothing if it may."""
        most, kind = self._privacy.max_epsilon, self._privacy.limited
        if most is None:
            return ""
        coming = self._entries(round_, max(self._answered.values(), default=0) + 1)
        if not self.ledger.would_exceed(most, kind, *coming):
            return ""
        spent = self.ledger.spent(kind)
        return (
            f"max-epsilon of {kind} is {most:g}: {spent:.4g} is spent after round {round_ - 1}, "
            "and another round would exceed it"
        )

    def line(self) -> dict[str, float | str]:
        """ε of every kind that was spent; JSON has no infinity."""
        spent = {kind: self.ledger.spent(kind) for kind in self.ledger.kinds}
        return {kind: x if math.isfinite(x) else "inf" for kind, x in spent.items()}

    def state(self) -> dict[str, Any]:
        """All of it as JSON."""
        answered = {str(one): count for one, count in sorted(self._answered.items())}
        return {"ledger": self.ledger.to_json(), "answered": answered}

    def restore_(self, state: Mapping[str, Any]) -> None:
        """Takes back what `state` gave."""
        self.ledger = Ledger.from_json(state["ledger"])
        self._answered = Counter({int(one): count for one, count in state["answered"].items()})

    def _entries(self, round_: int, answers: int) -> list[Entry]:
        """What a round writes if no client has answered more often than this."""
        privacy = self._privacy
        if not privacy.secret_sums:
            return []
        entries = [Entry("totals/value", "union", round_, math.inf, series=True)]
        if privacy.stages is None:
            for kind in ("server/value", "server/set"):
                entries.append(Entry(kind, "rows asked for", round_, math.inf, series=True))
        else:
            for table, values in self._values.items():
                name = f"rows asked for in {table}"
                spent = privacy.stages.epsilon_after(answers) if answers else 0.0
                entries.append(Entry("server/value", name, round_, spent, series=True))
                entries.append(Entry("server/set", name, round_, values * spent, series=True))
        entries.append(Entry("totals/value", "updates", round_, math.inf, series=True))
        if privacy.mechanism is not None:
            tables = bool(self._values)
            entries.append(privacy.mechanism.accounted(round_, self._cohort, self._clients, tables))
        return entries
