"""A tag names one try of one round, so that an answer cannot be taken for that of another try."""

from __future__ import annotations

import secrets


def tag_of(round_: int) -> int:
    """A new tag for a try of a round; it cannot be guessed."""
    return (round_ << 31) | secrets.randbits(31) or 1


def round_of(tag: int) -> int:
    """The round that a tag is of."""
    return tag >> 31
