"""A frequency oracle for sets: hashed heat, at bytes that do not depend on the vocabulary.

A count sketch under local differential privacy. A client draws one of G public hash functions, adds
a sign s(m) = ±1 to bucket h(m) for every id m that it holds, and noise to every bucket:

    y[b] = clip( Σ_{m ∈ S, h(m) = b} s(m) + X_b ),    P(X = x) ∝ a^|x|,    a = e^−ε

One id more or less changes one bucket by 1, so ε is per id, and k·ε for k of them: nothing is
sampled, and the size of S stays unknown. The server adds up the reports of each hash function.

    estimate   n̂_m = Σ_g s_g(m) · Y_g[h_g(m)]                        unbiased
    variance   N · 2a/(1−a)² + Σ_g Σ_{m' ≠ m} n_{g,m'}² / B          noise, and collisions

Both parts of the variance show in the sums themselves: Σ_g mean_b Y_g[b]² estimates it. Sampling
one id of a set and hashing it (OLH, Hadamard response) has |S|² times such a noise. The noise is a
difference of two geometric numbers made of coins of 32 bits, so ε holds exactly; clipping to the
width of a word comes after it.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.noise import RandomBytes, uniforms, words
from fedrows.privacy.response import check_epsilon
from fedrows.seeds import key, mix

_ONE = 2**32
_GOLDEN = np.int64(0x9E3779B97F4A7C15 - 2**64)
_CHUNK = 1 << 16  # ids estimated at once


@dataclass(frozen=True)
class Oracle:
    """What all clients of one collection agree on; the salt is public and fresh each time."""

    epsilon: float
    salt: int = 0
    buckets: int = 2**15
    hashes: int = 256

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        for name in ("buckets", "hashes"):
            if getattr(self, name) < 1:
                raise PlanError(f"{name} is {getattr(self, name)}, but must be at least 1.")

    @property
    def bytes_up(self) -> int:
        """What a client sends: a word per bucket, and the number of its hash function."""
        return self.buckets * self._word.itemsize + 4

    @property
    def noise_variance(self) -> float:
        """Of one bucket of one client."""
        return 2 * self._chance / (1 - self._chance) ** 2

    def place(self, ids: np.ndarray, hash_: int | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The bucket and the sign of each id under hash functions that broadcast against them."""
        random = mix(np.asarray(ids, dtype=np.int64) * _GOLDEN + self._keys[hash_])
        return ((random >> 1) & (2**48 - 1)) % self.buckets, 1 - 2 * (random & 1)

    def sketch(self, ids: np.ndarray, hash_: int) -> np.ndarray:
        """A client's buckets before the noise: (buckets,)."""
        bucket, sign = self.place(ids, hash_)
        return np.bincount(bucket, sign, self.buckets).astype(np.int64)

    def report(self, ids: np.ndarray, hash_: int, source: RandomBytes = os.urandom) -> np.ndarray:
        """What a client that holds some ids sends: (buckets,)."""
        noise = self._geometric(self.buckets, source) - self._geometric(self.buckets, source)
        most = np.iinfo(self._word).max
        return np.clip(self.sketch(ids, hash_) + noise, -most, most).astype(self._word)

    def noise_of(self, clients: int, count: int, source: RandomBytes = os.urandom) -> np.ndarray:
        """`count` sums of the noise of so many clients, without making each: for simulation."""
        if not clients:
            return np.zeros(count, dtype=np.int64)
        reach = int(12 * math.sqrt(clients * self.noise_variance) + 50 / -math.log(self._chance))
        size = 1 << (2 * reach + 1).bit_length()
        away = np.minimum(np.arange(size), size - np.arange(size))  # |x|, negative x at the end
        single = (1 - self._chance) / (1 + self._chance) * self._chance**away
        summed = np.fft.irfft(np.fft.rfft(single) ** clients, size).clip(min=0)
        cumulative = np.cumsum(np.roll(summed, size // 2))  # from −size/2 up
        steps = np.searchsorted(cumulative / cumulative[-1], uniforms(count, source), side="right")
        return np.minimum(steps, size - 1) - size // 2

    @cached_property
    def _keys(self) -> np.ndarray:
        return np.array([_signed(key(self.salt, hash_)) for hash_ in range(self.hashes)])

    @property
    def _chance(self) -> float:
        """a = e^−ε, rounded up to a multiple of 2⁻³²."""
        return math.ceil(math.exp(-self.epsilon) * _ONE) / _ONE

    @property
    def _word(self) -> np.dtype[np.signedinteger]:
        """Wide enough for the noise to be cut off once in e²⁵ times."""
        for width in (np.int8, np.int16):
            if np.iinfo(width).max * self.epsilon >= 25:
                return np.dtype(width)
        return np.dtype(np.int32)

    def _geometric(self, count: int, source: RandomBytes) -> np.ndarray:
        """How often a coin of chance a comes up before it does not, `count` times."""
        limit = np.uint64(round(self._chance * _ONE))
        if limit >= _ONE:
            raise PlanError(f"epsilon is {self.epsilon}, but coins of 32 bits need at least 1e-9.")
        made = np.zeros(count, dtype=np.int64)
        going = np.arange(count)
        while len(going):
            going = going[words(len(going), source) < limit]
            made[going] += 1
        return made


@dataclass
class Sketches:
    """What the server adds the reports up to, by hash function."""

    oracle: Oracle
    clients: int = 0
    sums: np.ndarray = field(init=False)  # (hashes, buckets)

    def __post_init__(self) -> None:
        self.sums = np.zeros((self.oracle.hashes, self.oracle.buckets), dtype=np.int64)

    def add_(self, report: np.ndarray, hash_: int, client: str = "a client") -> None:
        """Adds one client's report."""
        if report.shape != (self.oracle.buckets,) or not 0 <= hash_ < self.oracle.hashes:
            raise PlanError(
                f"The report of {client} has {report.size} buckets under hash {hash_}, but "
                f"{self.oracle.buckets} under a hash below {self.oracle.hashes} were agreed."
            )
        self.sums[hash_] += report
        self.clients += 1

    def estimate(self, ids: np.ndarray) -> np.ndarray:
        """The unbiased estimate of how many clients hold each id: (V,)."""
        counts = np.zeros(len(ids))
        for low in range(0, len(ids), _CHUNK):
            part = ids[low : low + _CHUNK]
            for hash_ in range(self.oracle.hashes):
                bucket, sign = self.oracle.place(part, hash_)
                counts[low : low + _CHUNK] += sign * self.sums[hash_][bucket]
        return counts

    @property
    def error(self) -> float:
        """The standard error of every estimate, noise and collisions together."""
        return float(np.sqrt(np.square(self.sums, dtype=np.float64).mean(1).sum()))


def simulated(
    oracle: Oracle,
    owner: np.ndarray,
    ids: np.ndarray,
    clients: int,
    source: RandomBytes = os.urandom,
) -> Sketches:
    """The sums of the reports of clients that hold (owner, id) pairs, noise drawn once per sum."""
    made = Sketches(oracle, clients)
    hashes = (words(clients, source, np.uint64) % np.uint64(oracle.hashes)).astype(np.int64)
    bucket, sign = oracle.place(ids, hashes[owner])
    flat = np.bincount(hashes[owner] * oracle.buckets + bucket, sign, made.sums.size)
    made.sums += flat.astype(np.int64).reshape(made.sums.shape)
    sizes = np.bincount(hashes, minlength=oracle.hashes)
    for size in np.unique(sizes).tolist():
        alike = np.flatnonzero(sizes == size)
        noise = oracle.noise_of(size, len(alike) * oracle.buckets, source)
        made.sums[alike] += noise.reshape(len(alike), -1)
    return made


def _signed(x: int) -> int:
    return x - 2**64 if x >= 2**63 else x
