"""What tries of rounds and secure sums are called, so that nothing is taken for another one.

tag     one try of one round: an answer to another try is not taken for an answer to this one
name    one secure sum: names rise, so that a node begins none twice
"""

from __future__ import annotations

import secrets
import time

_TEN_YEARS = 10 * 365 * 86_400 * 10**9  # ns


def tag_of(round_: int) -> int:
    """A new tag for a try of a round; it cannot be guessed."""
    return (round_ << 31) | secrets.randbits(31) or 1


def round_of(tag: int) -> int:
    """The round that a tag is of."""
    return tag >> 31


class SumNames:
    """Names of sums: a number that rises, by the clock if it can, and random digits behind it.

    So a node need remember the newest name alone in order to begin no sum twice.
    """

    def __init__(self) -> None:
        self._newest = 0

    def make(self) -> str:
        """A name above all before it."""
        self._newest = max(self._newest + 1, time.time_ns())
        return f"{self._newest:016x}{secrets.token_hex(8)}"

    def learn_(self, newest: object) -> None:
        """Takes note of a newer name that a node knows, as after a clock was set back.

        A node that lies cannot use the numbers up.
        """
        if not isinstance(newest, str) or not 0 < len(newest) <= 16:
            return
        try:
            number = int(newest, 16)
        except ValueError:
            return
        if number < time.time_ns() + _TEN_YEARS:
            self._newest = max(self._newest, number)
