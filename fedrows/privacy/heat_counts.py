"""Which clients were in which count of heat, and whether they may be counted again.

The server sees every count, and so every sum and difference of counts. Clients that were in the
same counts cannot be told apart by any of these, and clients that were not can. So the members of
all counts so far fall into groups by the counts that they were in, and heat may be counted again
only if every group, with the coming count, has clients of enough parties:

    counts   {a, b, c, d}   {a, b, c, d, e, f}             groups {a, b, c, d}, {e, f}
    next     {b, c, d, e, f}                               would show a alone: refused
    next     {a, b, c, d, e, g}                            would show f and g: refused
    next     {a, b, c, d, e, f, g, h}                      groups of 4, 2 and 2

Two clients more and two others less are one difference, but two groups: joiners and leavers never
make up for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Member = tuple[str, int | str]  # party, client


@dataclass
class HeatCounts:
    """The counts of heat so far."""

    least: int  # parties of a group
    counts: list[frozenset[Member]] = field(default_factory=list)

    def may_count(self, members: Iterable[Member]) -> bool:
        """Whether these clients may be counted now: somebody is new or gone, and nobody is shown.

        The first count is up to the terms of its secure sum.
        """
        now = frozenset(members)
        if not self.counts:
            return True
        return now != self.counts[-1] and all(
            len({party for party, _ in group}) >= self.least
            for group in _groups([*self.counts, now])
        )

    def add_(self, members: Iterable[Member]) -> None:
        """Takes note of a count of these clients."""
        self.counts.append(frozenset(members))


def _groups(counts: Sequence[frozenset[Member]]) -> list[list[Member]]:
    """The members of any count, by the counts that they are in."""
    groups: dict[tuple[int, ...], list[Member]] = {}
    for member in frozenset().union(*counts):
        within = tuple(number for number, count in enumerate(counts) if member in count)
        groups.setdefault(within, []).append(member)
    return list(groups.values())
