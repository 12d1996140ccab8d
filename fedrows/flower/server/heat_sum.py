"""The secure sum of heat: its end is told to everybody, and a second count needs everybody."""

from __future__ import annotations

from typing import TypeVar

from fedrows.privacy import secure_sum
from fedrows.privacy.protocol import LastRequests, ProtocolError, ServerHalf

R = TypeVar("R")


def closed(
    half: ServerHalf[secure_sum.SumResult],
) -> ServerHalf[secure_sum.SumResult]:
    """A sum that tells its clients when it is over, so that they forget it."""
    total = yield from half
    yield LastRequests(dict.fromkeys(total.answering, b""))
    return total


def whole(half: ServerHalf[R]) -> ServerHalf[R]:
    """A protocol that ends before anything is opened if a client falls silent.

    A second count of heat that lacks somebody would show that somebody's rows by its difference.
    """
    request = next(half)
    everybody = request.keys()
    while not (gone := sorted(everybody - request.keys())):
        replies = yield request
        try:
            request = half.send(replies)
        except StopIteration as end:
            return end.value
    raise ProtocolError(f"Client {gone[0]} dropped out, and the count needs everybody.")
