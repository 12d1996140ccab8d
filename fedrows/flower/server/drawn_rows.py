"""What nodes say about the items that clients draw negatives from; they may lie."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fedrows.data.fresh_negatives import PoolDraws
from fedrows.flower.wire.message import WireError


def check_held(draws: PoolDraws | None, node: str, table: str, held: Sequence[Tensor]) -> None:
    """Raises a WireError if a client cannot hold these sorted ids of a table, and draw others.

    Heat counts on the items that are left to draw: with none it would no longer be a number.
    """
    if draws is None or table != draws.table:
        return
    for ids in held:
        if len(ids) and int(ids[0]) < draws.span[0]:
            raise WireError(
                f"Node {node!r} has a client that holds row 0 of table {table!r}, which means "
                "nothing."
            )
        if len(ids) >= draws.items:
            raise WireError(
                f"Node {node!r} has a client that holds all {draws.items} items of table "
                f"{table!r}, so there is no negative to draw for it: leave it out."
            )
