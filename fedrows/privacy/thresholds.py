"""How many parties must take part, so that what they show together shows none of them alone."""

from __future__ import annotations


def lowest_threshold(clients: int, colluding: int) -> int:
    """The lowest threshold of a secure sum.

    A client opens for one list of survivors. Two lists with t clients each take 2t ≤ n + colluding.
    Of t survivors two must be honest, or the sum shows the vector of the only one.
    """
    return max((clients + colluding) // 2 + 1, colluding + 2)


def least_parties(min_contributors: int, colluding: int) -> int:
    """Of how many parties a count must be: two of them do not collude with the server."""
    return max(min_contributors, colluding + 2)
