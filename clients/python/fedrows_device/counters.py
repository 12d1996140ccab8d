"""Counter-based randomness, bit for bit as the server's: SplitMix64 in wrapping 64-bit words.

A draw is a function of (seed, use, round, client, counter). No generator has a state.
"""

from __future__ import annotations

import numpy as np

BATCH, SHUFFLE, STEP = 1, 2, 7  # the uses that a device has

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = 2**64 - 1


def mixed(x: int) -> int:
    """A hash of a 64-bit word, in which each bit of the input flips half of the output's."""
    x = ((x ^ (x >> 30)) * _FIRST) & _MASK
    x = ((x ^ (x >> 27)) * _SECOND) & _MASK
    return x ^ (x >> 31)


def key(*numbers: int) -> int:
    """One 64-bit key for a tuple of integers such as (seed, use, round)."""
    result = 0
    for number in numbers:
        result = mixed((result + (number & _MASK) * _GOLDEN + _GOLDEN) & _MASK)
    return result


def client_key(seed: int, use: int, round_: int, client: int) -> int:
    """The key of a client's own stream for one use in one round."""
    return mixed((key(seed, use, round_) + client * _GOLDEN) & _MASK)


def bits(stream: int, counters: np.ndarray) -> np.ndarray:
    """64 random bits for each counter, as uint64."""
    x = np.asarray(counters).astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(stream)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_FIRST)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_SECOND)
    return x ^ (x >> np.uint64(31))


def one(stream: int, counter: int) -> int:
    """The 64 random bits of one counter, signed, as ONNX's int64 has them."""
    x = mixed((stream + counter * _GOLDEN) & _MASK)
    return x - 2**64 if x >= 2**63 else x


def below(random: np.ndarray, limit: int) -> np.ndarray:
    """An integer in [0, limit) from each 64 random bits."""
    fraction = (random >> np.uint64(16)).astype(np.float64) * 2.0**-48
    return (fraction * limit).astype(np.int64)
