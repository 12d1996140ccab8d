"""What a node puts into the sums of a private run.

    heat      how many of its clients hold each row, and in a counted start two counters of labels
    update    what its clients made of the rows, as the arrays that it keeps until the sum is over

Counters of labels are index sets, as those of the tables are: of the items that each client has
examples about, and of those that it likes. They leave the node in the one sum that counts heat, so
they are counted over the same clients, and the policy's `heat-counts` limits how often.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import items_of, label_sets
from fedrows.flower.node.node_sums import Arrays
from fedrows.flower.wire.contract import Contract
from fedrows.privacy.client_side import heat_vector
from fedrows.privacy.layout import Contribution
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.row_space import RowSpace
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


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


def contribution_arrays(sent: Contribution) -> Arrays:
    """The arrays of a contribution."""
    arrays = {"extra": sent.extra}
    for table, index in sent.rows.index.items():
        arrays[f"{table}/ids"] = index.ids.numpy()
        arrays[f"{table}/rows"] = sent.rows.rows[table].numpy()
        arrays[f"{table}/rest"] = sent.rest[table]
    return arrays


def read_contribution(arrays: Arrays, tables: Iterable[str]) -> Contribution:
    """The contribution that some arrays were made of."""
    index, rows = {}, {}
    for table in tables:
        ids = torch.from_numpy(arrays[f"{table}/ids"])
        index[table] = Index(ids, torch.tensor([0, len(ids)]))
        rows[table] = torch.from_numpy(arrays[f"{table}/rows"])
    rest = {table: arrays[f"{table}/rest"] for table in index}
    return Contribution(Submodels(index, rows, {}), arrays["extra"], rest)
