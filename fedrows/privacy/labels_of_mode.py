"""The counters of a counted start in a private run: counted as its heat is, and for its ledger.

Both counters are counts of index sets: of the items that clients have, and of those that they like.
So they go through the same protocol as heat, as two more counts, and cost as much again each.
"""

from __future__ import annotations

import torch

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, label_sets
from fedrows.privacy.counting import count, values_of
from fedrows.privacy.ledger import Entry
from fedrows.privacy.noise import Source
from fedrows.privacy.options import Privacy


def labels_of_mode(
    privacy: Privacy, data: FederatedData, source: Source
) -> tuple[LabelCounts, list[Entry]]:
    """The two counters of every item, counted as a mode counts heat, and their ledger entries."""
    assert data.target is not None
    table = data.fields[data.target[0]]
    one, rows = torch.ones(data.clients, dtype=torch.float64), data.tables[table]
    counted = [
        count(index, one, rows, privacy.counting, values_of(data, table), source)
        for index in label_sets(data)
    ]
    have, like = (torch.from_numpy(each.estimates).double() for each in counted)
    entries = [
        entry
        for name, each in zip(("clients", "positives"), counted, strict=True)
        for entry in each.entries(f"{table}, {name}")
    ]
    return LabelCounts(table, counted[0].heat.ids, have, like), entries
