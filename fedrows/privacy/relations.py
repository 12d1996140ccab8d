"""Linear relations between rows, read off the examples: which columns refine which.

If the id in one column decides the id in another, as an item decides its category, the rows of the
first split those of the second: in a linear model Σ(category) is the sum of its items' Σ. Where the
split is declared by groups (`item` and `x×item`), rows open by the rule of `families`. Where it is
not, each row opens by its own count, and a difference may be one client's number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.privacy.families import contributed_values
from fedrows.privacy.values import Values

_EXAMPLES = 100_000  # looked at, at most
_COLUMNS = 8  # of a field, at most: a longer one is a text
_CHANCES = 30  # times that an id occurs again with the same other id, before it is no accident


def undeclared(data: FederatedData) -> list[tuple[str, str]]:
    """Pairs of columns of shared tables, the first of which refines the second undeclared."""
    columns = dict(_columns(data))
    pairs = []
    for fine, ids in columns.items():
        for coarse, others in columns.items():
            declared = fine[0] == coarse[0] and coarse[1] in fine[1].split("×")
            if fine != coarse and not declared and _refines(ids, others):
                pairs.append((fine[1], coarse[1]))
    return pairs


def warning(data: FederatedData) -> str:
    """What to say of relations that are not declared; nothing if there are none."""
    pairs = undeclared(data)
    if not pairs:
        return ""
    fine, coarse = pairs[0]
    more = f", and {len(pairs) - 1} more such pairs" if len(pairs) > 1 else ""
    return (
        f"Each {fine} belongs to one {coarse}{more}: with a linear model, opened sums of the one "
        "and the other may differ by a single client's number; declare the rows as groups of one "
        f"table ({coarse}, x×{coarse}), or leave one of them out."
    )


def check_declared(
    data: FederatedData, values: Mapping[str, Values], clients: Tensor | None = None
) -> None:
    """Raises a PlanError if a client holds a value without a row of every declared family.

    clients: some of them; all if not given.
    """
    for table, of in values.items():
        index = data.index[table] if clients is None else data.index[table].select(clients)
        owner, ids = index.owner.cpu().numpy(), index.ids.cpu().numpy()
        complete = contributed_values(owner, ids, np.ones(len(ids), dtype=bool), of)
        if not complete.all():
            at = int(np.argmin(complete))
            raise PlanError(
                f"Client {owner[at]} holds row {ids[at]} of table {table}, but not a row of every "
                f"group that is made of the same value ({', '.join(data.groups[table])}): rows of "
                "one value open together, so mend the groups, or set min-contributors to 1."
            )


def _columns(data: FederatedData) -> Iterator[tuple[tuple[str, str], np.ndarray]]:
    """(table, name) → the ids of some examples, for each column of a shared table."""
    for field, table in data.fields.items():
        ids = data.train.ids[field]
        if table in data.local or not isinstance(ids, Tensor):
            continue
        some = ids[:_EXAMPLES].cpu().numpy()
        some = some.reshape(len(some), -1)
        if not len(some) or some.shape[1] > _COLUMNS:
            continue
        for number, column in enumerate(some.T):
            name = field if some.shape[1] == 1 else f"{field} {number}"
            for group, (low, high) in data.groups.get(table, {}).items():
                if low <= column.min() and column.max() < high:
                    name = group
            yield (table, name), column


def _refines(fine: np.ndarray, coarse: np.ndarray) -> bool:
    """Whether an id decides the other, and some other id is decided by several."""
    _, first, inverse = np.unique(fine, return_index=True, return_inverse=True)
    kinds = len(np.unique(coarse))
    if kinds < 2 or len(first) <= kinds or len(fine) - len(first) < _CHANCES:
        return False
    return bool((coarse[first][inverse.reshape(-1)] == coarse).all())
