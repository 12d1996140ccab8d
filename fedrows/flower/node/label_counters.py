"""The counters of labels that a node of a private run puts into the sum of heat.

They are index sets, as those of the tables are: of the items that each client has examples about,
and of those that it likes. They leave the node in the one sum that counts heat, so they are counted
over the same clients, and the policy's `heat-counts` limits how often.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import items_of, label_sets
from fedrows.flower.wire.contract import Contract
from fedrows.privacy.client_side import heat_vector
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.row_space import RowSpace
from fedrows.rows.index import Index


def counter_sets(facts: Mapping[str, Any], contract: Contract, data: FederatedData) -> list[Index]:
    """The two index sets that a sum counts beside those of the tables; none if it counts none."""
    table = facts.get("labels")
    if table is None:
        return []
    if contract.plan.start != "counted" or table != items_of(data):
        raise ProtocolError(
            "The message asks for counts of labels that the run does not start from: the node "
            "drops out."
        )
    return list(label_sets(data))


def counted_words(
    facts: Mapping[str, Any], contract: Contract, data: FederatedData, space: RowSpace
) -> np.ndarray:
    """How many of a node's clients hold each row, and its counters of labels behind, if asked."""
    words = [heat_vector(space, data)]
    for each in counter_sets(facts, contract, data):
        rows = space.sizes[str(facts["labels"])]
        words.append(np.bincount(each.ids.numpy(), minlength=rows).astype(np.uint64))
    return np.concatenate(words)
