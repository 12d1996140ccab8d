"""DIN beside a wide part: biases and the user's own past, which the network has to improve on.

    score = DIN(user, item, history) + b_u + b_m + v · l       after Cheng et al. 2016, Wide & Deep

DIN alone must learn from products of embeddings how much users and items differ, which is most of
what there is to know. Biases learn it at once. The last layer of DIN starts at 0, so that noise of
the start values does not drown them; its own bias is the model's. A row of the user's table is the
user's embedding and bias, and so is a row of the item's. All else is as in `din`.

l is what the user's own past labels say (`fedrows.data.recent_labels`), where the data have these
numbers. They are log-odds, so v starts at the mean of each field. Where they say how the user has
rated lately, there is no b_u: it would learn the labels by heart that l may not see.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import Biases
from fedrows.nn.initial_values import start_glorot_
from fedrows.nn.interest_network import DIN, WIDTH, tables_of


class WideDIN(nn.Module):
    """The model of one client; `names` are the fields that hold user, item and history.

    past: the fields of (B, D) numbers that say how the user has rated, each with its D.
    """

    def __init__(
        self,
        users: int,
        items: int,
        names: tuple[str, str, str],
        padded_users: bool = False,
        past: Mapping[str, int] | None = None,
        user_bias: bool = True,
    ) -> None:
        super().__init__()
        self.names = names
        self.deep = DIN(users, items, names, padded_users)
        self.item_bias = nn.Embedding(items, 1, padding_idx=0)
        self.user_bias: nn.Embedding | None = None
        if user_bias:
            self.user_bias = nn.Embedding(users, 1, padding_idx=0 if padded_users else None)
        widths = (past or {}).items()
        self.past = nn.ModuleDict({name: nn.Linear(width, 1, False) for name, width in widths})

    def forward(self, **fields: Tensor) -> Tensor:
        user, item, _ = (fields[name] for name in self.names)  # (B,), (B,), (B, L)
        wide = self.item_bias(item)  # (B, 1)
        if self.user_bias is not None:
            wide = wide + self.user_bias(user)
        for name, weigh in self.past.items():
            wide = wide + weigh(fields[name])  # (B, D) → (B, 1)
        deep: Tensor = self.deep(**fields)  # (B,)
        return deep + wide.squeeze(1)


def build(
    data: FederatedData,
    seed: int = 0,
    user: str = "user",
    item: str = "item",
    history: str = "history",
    lately: str = "lately",
    beside: str = "beside",
) -> Lifted:
    """DIN with biases, for data with a user, a target item and a history of items.

    lately, beside: numbers that say how the user has rated, read if the data have them.
    """
    names, numbers = (user, item, history), data.train.numbers
    past = {name: numbers[name].shape[1] for name in (lately, beside) if name in numbers}
    users, items = tables_of(data, names, list(past))
    constant = lately not in past
    module = WideDIN(
        data.tables[users], data.tables[items], names, users in data.padded, past, constant
    )
    start_glorot_(module, seed)
    for name, width in past.items():
        for x in module.past[name].parameters():
            nn.init.constant_(x, 1 / width)
    parts = {users: ["deep.user"], items: ["deep.item", "item_bias"]}
    columns = {items: WIDTH}
    if constant:
        parts[users], columns[users] = ["deep.user", "user_bias"], WIDTH
    for zero in (module.user_bias, module.item_bias, module.deep.third):
        for x in zero.parameters() if zero is not None else ():
            nn.init.zeros_(x)
    model = Lifted(module, data, parts)
    model.biases = Biases("deep.third.bias", columns)
    return model
