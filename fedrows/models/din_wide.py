"""DIN beside a wide part: a bias per user and per item, which the network has to improve on.

    score = DIN(user, item, history) + b_u + b_m + v · l       after Cheng et al. 2016, Wide & Deep

DIN alone must learn from products of embeddings how much users and items differ, which is most of
what there is to know. Biases learn it at once. The last layer of DIN starts at 0, so that noise of
the start values does not drown them; its own bias is the model's. A row of the user's table is the
user's embedding and bias, and so is a row of the item's. All else is as in `din`.

l is how the user has rated lately (`fedrows.data.recent_labels`), where the data say so. It takes
the place of a constant in a counted start: v starts at the mean of l, and b_u at 0.
"""

from __future__ import annotations

from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.lifting.lifted import Lifted
from fedrows.model import Biases
from fedrows.nn.initial_values import start_glorot_
from fedrows.nn.interest_network import DIN, WIDTH, tables_of


class WideDIN(nn.Module):
    """The model of one client; `names` are the fields that hold user, item and history.

    lately: the field of (B, D) numbers that says how the user has rated lately, and D; or none.
    """

    def __init__(
        self,
        users: int,
        items: int,
        names: tuple[str, str, str],
        padded_users: bool = False,
        lately: tuple[str, int] | None = None,
    ) -> None:
        super().__init__()
        self.names, self.lately = names, lately
        self.deep = DIN(users, items, names, padded_users)
        self.user_bias = nn.Embedding(users, 1, padding_idx=0 if padded_users else None)
        self.item_bias = nn.Embedding(items, 1, padding_idx=0)
        if lately is not None:
            self.past = nn.Linear(lately[1], 1, bias=False)

    def forward(self, **fields: Tensor) -> Tensor:
        user, item, _ = (fields[name] for name in self.names)  # (B,), (B,), (B, L)
        wide = self.user_bias(user) + self.item_bias(item)  # (B, 1)
        if self.lately is not None:
            wide = wide + self.past(fields[self.lately[0]])  # (B, D) → (B, 1)
        deep: Tensor = self.deep(**fields)  # (B,)
        return deep + wide.squeeze(1)


def build(
    data: FederatedData,
    seed: int = 0,
    user: str = "user",
    item: str = "item",
    history: str = "history",
    lately: str = "lately",
) -> Lifted:
    """DIN with biases, for data with a user, a target item and a history of items.

    lately: numbers that say how the user has rated before, read if the data have them.
    """
    names = (user, item, history)
    past = data.train.numbers.get(lately)
    users, items = tables_of(data, names, () if past is None else (lately,))
    read = None if past is None else (lately, past.shape[1])
    module = WideDIN(data.tables[users], data.tables[items], names, users in data.padded, read)
    start_glorot_(module, seed)
    for zero in (module.user_bias, module.item_bias, module.deep.third):
        for x in zero.parameters():
            nn.init.zeros_(x)
    columns = {items: WIDTH}
    if past is None:
        columns[users] = WIDTH
    else:
        nn.init.constant_(module.past.weight, 1 / past.shape[1])
    model = Lifted(
        module,
        data,
        {users: ["deep.user", "user_bias"], items: ["deep.item", "item_bias"]},
    )
    model.biases = Biases("deep.third.bias", columns)
    return model
