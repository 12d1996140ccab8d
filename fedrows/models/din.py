"""Deep Interest Network (Zhou et al., KDD 2018), as the paper on FedSubAvg uses it.

`fedrows.nn.interest_network` has the network. Start values are functions of the seed. Embeddings
and dense layers start from Glorot's uniform distribution, U(±√(6 / (rows + columns))), biases and
Dice's α from 0: the defaults of the framework that the paper's authors used.
"""

from __future__ import annotations

from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.nn.initial_values import start_glorot_
from fedrows.nn.interest_network import DIN, tables_of


def build(
    data: FederatedData,
    seed: int = 0,
    user: str = "user",
    item: str = "item",
    history: str = "history",
) -> Lifted:
    """DIN for data with a user, a target item and a history of items, in the fields so named."""
    names = (user, item, history)
    users, items = tables_of(data, names)
    module = DIN(data.tables[users], data.tables[items], names, users in data.padded)
    start_glorot_(module, seed)
    return Lifted(module, data, {users: "user", items: "item"})
