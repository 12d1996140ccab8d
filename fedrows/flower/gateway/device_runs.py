"""Which private runs devices can take part in."""

from __future__ import annotations

from fedrows.data.federation import FederatedData
from fedrows.privacy.options import Privacy

MOST_ROWS = 2**20  # of all shared tables: a device sends a word for each to find a union


def why_declined(privacy: Privacy, weighting: str, data: FederatedData) -> str | None:
    """Why a gateway declines a private run; None if devices can take part in it."""
    shared = {table: rows for table, rows in data.tables.items() if table not in data.local}
    grouped = [table for table in shared if data.groups.get(table)]
    if privacy.mechanism is not None:
        return (
            f"The run's privacy is {privacy.privacy}, but devices add no noise to secure sums: a "
            "gateway takes part in runs with privacy clear or index."
        )
    if weighting != "uniform":
        return (
            f"The run's weighting is {weighting}, but in a private run devices tell nobody how "
            "many examples they have: choose weighting uniform."
        )
    if grouped and privacy.min_contributors > 1:
        return (
            f"The rows of {grouped[0]} are in groups, and devices do not know the rule by which "
            "such rows open together: a gateway takes part with data without groups, or with "
            "min-contributors 1."
        )
    if (rows := sum(shared.values())) > MOST_ROWS:
        return (
            f"The shared tables have {rows} rows, and a device sends a word for each to find a "
            f"union: a gateway takes part in private runs with up to {MOST_ROWS} rows."
        )
    return None
