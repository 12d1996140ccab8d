"""Small federations of positives, for the tests of ranking."""

from __future__ import annotations

import numpy as np

from fedrows import FederatedData
from fedrows.rows.ragged import ragged


def positives(
    users: int = 12, items: int = 40, each: int = 8, history: bool = False, seed: int = 0
) -> FederatedData:
    """Users who each meet items of one half of the table; the last is for the test.

    The last but one is for validation. With a history there is no user, and the table is padded.
    """
    rng = np.random.default_rng(seed)
    first = int(history)
    client, item, lists, test, validation = [], [], [], [], []
    for user in range(users):
        half = np.arange(first, first + items)[user % 2 :: 2]
        met = rng.choice(half, each, replace=False)
        for position in range(each):
            client.append(user)
            item.append(met[position])
            lists.append(met[:position])
            test.append(position == each - 1)
            validation.append(position == each - 2)
    ids = {"item": np.array(item)}
    if history:
        ids["history"] = ragged(lists, 5)
    else:
        ids["user"] = np.array(client)
    fields = {"item": "item", **({"history": "item"} if history else {"user": "user"})}
    return FederatedData.build(
        name="positives",
        client=np.array(client),
        ids=ids,
        fields=fields,
        label=np.ones(len(client)),
        test=np.array(test),
        validation=np.array(validation),
        tables={"item": items + first, **({} if history else {"user": users})},
        local=[] if history else ["user"],
        target=("item", None),
        labels="ranking",
    )
