"""Counter-based randomness: a draw is a function of (seed, round, client, use, step, position).

No generator has a state, so the same draw comes out on CPU, GPU and a device, whatever the order,
chunk or cohort it is made in, and resuming needs no more than the round's number.
The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood 2014), in wrapping int64.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

_Words = TypeVar("_Words", Tensor, np.ndarray)  # int64 on a device, or on the host

_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB
_MASK = 2**64 - 1

# The uses of randomness; each has streams of its own.
COHORT, BATCH, SHUFFLE, START, SAMPLE, SPLIT, MAKE, STEP, WIRE, VALIDATION = range(10)
POOL, NEGATIVE, CANDIDATE = range(10, 13)  # of ranking
DEVICE, SLOT = range(13, 15)  # of virtual time


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x


def mix(x: _Words) -> _Words:
    """A hash of every int64, in which each bit of the input flips half of the output's."""
    x = x ^ ((x >> 30) & (2**34 - 1))
    x *= _signed(_FIRST)
    x ^= (x >> 27) & (2**37 - 1)
    x *= _signed(_SECOND)
    x ^= (x >> 31) & (2**33 - 1)
    return x


def key(*numbers: int) -> int:
    """One 64-bit key for a tuple of integers such as (seed, use, round)."""
    result = 0
    for number in numbers:
        x = (result + (number & _MASK) * _GOLDEN + _GOLDEN) & _MASK
        x = ((x ^ (x >> 30)) * _FIRST) & _MASK
        x = ((x ^ (x >> 27)) * _SECOND) & _MASK
        result = x ^ (x >> 31)
    return result


def bits(keys: int | Tensor, counters: Tensor) -> Tensor:
    """64 random bits for each (key, counter); `keys` is one key or a tensor that broadcasts."""
    if isinstance(keys, int):
        keys = torch.tensor(_signed(keys), device=counters.device)
    return mix(keys + counters * _signed(_GOLDEN))


def host_bits(key_: int, counters: np.ndarray) -> np.ndarray:
    """The same bits for one key and a few counters, on the host: a call costs less there."""
    return mix(counters * _signed(_GOLDEN) + _signed(key_))


def client_keys(seed: int, use: int, round_: int, clients: Tensor) -> Tensor:
    """The key of every client's own stream for one use in one round: (K,)."""
    if clients.device.type == "cpu":  # so few numbers that what counts is what a call costs
        return torch.from_numpy(host_bits(key(seed, use, round_), clients.numpy()))
    return bits(key(seed, use, round_), clients)


def counters(steps: int, positions: int, device: torch.device) -> Tensor:
    """A counter for each (step, position): (steps, positions)."""
    step = torch.arange(steps, device=device)
    return (step << 32)[:, None] + torch.arange(positions, device=device)


def below(random: Tensor, limit: Tensor | int) -> Tensor:
    """An integer in [0, limit) from each 64 random bits, uniform to 2⁻⁴⁸·limit."""
    fraction = ((random >> 16) & (2**48 - 1)).to(torch.float64) * 2.0**-48
    return (fraction * limit).to(torch.int64)


def uniform(random: Tensor) -> Tensor:
    """A float64 in (0, 1) from each 64 random bits."""
    return (((random >> 12) & (2**52 - 1)).to(torch.float64) + 0.5) * 2.0**-52


def normal(random: Tensor) -> Tensor:
    """A standard normal float64 from each 64 random bits, by the inverse distribution function."""
    return torch.special.ndtri(uniform(random))


def choose(seed: int, use: int, round_: int, among: int, count: int) -> Tensor:
    """`count` different numbers below `among`, each set equally likely, ascending, in O(count)."""
    stream = _signed(key(seed, use, round_))

    def draw(size: int) -> np.ndarray:
        return mix(np.arange(size) * _signed(_GOLDEN) + stream)

    if 4 * count > among:
        order = np.argsort(draw(among), kind="stable")
        return torch.from_numpy(np.sort(order[:count]))
    tries = count + count * count // among + 8  # a few more than there are doubles to expect
    while True:
        # The first `count` different draws of one endless stream, however many are looked at.
        drawn = (((draw(tries) >> 16) & (2**48 - 1)) * (among * 2.0**-48)).astype(np.int64)
        different = list(dict.fromkeys(drawn.tolist()))
        if len(different) >= count:
            return torch.from_numpy(np.sort(np.array(different[:count], dtype=np.int64)))
        tries *= 2
