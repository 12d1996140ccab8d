"""A log of who met which item when, as data to be ranked: the last item of each client is the test.

The item before it is for validation, and all earlier ones are for training. A client that meets an
item again has met it the first time: the question is what it meets next that is new. Clients with
fewer than three different items have nothing left to train on, and are left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from fedrows.data.column_checks import no_nulls
from fedrows.data.federation import FederatedData
from fedrows.data.splits import as_times
from fedrows.errors import DataError
from fedrows.options import known_keywords
from fedrows.rows.ragged import histories

LEAST = 3  # items of a client: one to train on, one for validation, one for the test


@known_keywords
def leave_one_out(
    client: Any,
    item: Any,
    time: Any = None,
    *,
    history: int = 0,
    name: str = "data",
    users: Any = None,
    items: Any = None,
) -> FederatedData:
    """A federation of positives with the fields user and item, or item and history.

    client, item (n,): anything sortable. time (n,): numbers or dates; without it, and where times
    are equal, a later row is later. history: how many of the client's earlier items an example has,
    in place of the user, for models of sequences; 0 for none. users, items: all that there are in
    any order, where several hosts have a part of the log each and must number rows alike.
    """
    if isinstance(history, bool) or not isinstance(history, int) or history < 0:
        raise DataError(f"history is {history!r}, but must be a whole number of at least 0.")
    alike = items is not None
    (users, user), (items, item) = (
        _numbered("client", client, "users", users),
        _numbered("item", item, "items", items),
    )
    if len(user) != len(item) or not len(user):
        raise DataError(
            f"{name} has {len(user)} clients and {len(item)} items: give one of each in every row."
        )
    by = (user,) if time is None else (as_times("time", np.asarray(time)), user)
    if len(by[0]) != len(user):
        raise DataError(f"{name} has {len(by[0])} times, but {len(user)} rows: give one for each.")
    order = np.lexsort(by)  # by client, then time, then row
    pairs = (user * len(items) + item)[order]
    first = np.zeros(len(order), dtype=bool)
    first[np.unique(pairs, return_index=True)[1]] = True
    order = order[first]  # each item of a client once, when it met it first
    counts = np.bincount(user[order], minlength=len(users))
    enough, few = counts >= LEAST, int(((counts > 0) & (counts < LEAST)).sum())
    order = order[enough[user[order]]]
    if not len(order):
        raise DataError(
            f"No client of {name} has {LEAST} different items, but one is for the test, one for "
            "validation and one to train on: nothing can be ranked."
        )
    user, item = user[order], item[order]
    start, position = np.searchsorted(user, user), np.arange(len(user))
    left = start + np.bincount(user)[user] - position  # items of the client from here on
    notes: tuple[str, ...] = ()
    if few:
        clients = int((counts > 0).sum())
        notes = (f"{few} of {clients} clients have fewer than {LEAST} items: left out.",)
    shape: dict[str, Any] = {
        "ids": {"user": user, "item": item},
        "tables": {"user": len(users), "item": len(items)},
        "vocabulary": {"user": users, "item": items},
        "local": ["user"],
    }
    if history:
        earlier = histories(item + 1, position, position - start, history)
        if alike:  # also in how long lists may be, on which a model's shape depends
            earlier = replace(earlier, length=history)
        shape = {
            "ids": {"item": item + 1, "history": earlier},  # id 0 of the table is no item
            "fields": {"item": "item", "history": "item"},
            "tables": {"item": len(items) + 1},
            "vocabulary": {"item": items},
        }
    return FederatedData.build(
        name=name,
        client=users[user],
        label=np.ones(len(user)),
        test=left == 1,
        validation=left == 2,
        target=("item", None),
        labels="ranking",
        notes=notes,
        **shape,
    )


def _numbered(
    column: str, values: Any, catalogue: str, known: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The different values of a column, and the number of each row's: (V,), (n,).

    known: all values that count, the argument `catalogue`; None for those of the column.
    """
    values = np.asarray(values)
    if values.ndim != 1:
        raise DataError(f"Column {column!r} has shape {values.shape}: give one value for each row.")
    no_nulls(column, values)
    try:
        words, number = np.unique(values, return_inverse=True)
        if known is None:
            return words, number
        every = np.unique(np.asarray(known))
        position = np.searchsorted(every, words)
    except TypeError:
        raise DataError(
            f"The values of column {column!r} cannot be put in order: make all of them text, or "
            "all numbers."
        ) from None
    listed = position < len(every)
    listed[listed] = every[position[listed]] == words[listed]
    if not listed.all():
        raise DataError(
            f"Column {column!r} has {words[~listed][0].item()!r}, which is not in `{catalogue}`: "
            "name all values of all hosts there, of the same type as in the column."
        )
    return every, position[number]
