"""Clients' vectors in whole numbers, with each client's share of the noise: noise inside the sum.

    x  ──▶  y = round(x · S / C)  ──▶  words of y + Z_i,   Z_i discrete Gaussian of deviation σ_i

Rounding goes up or down by chance, right on average, and is done again until y is no longer than

    Δ² = min( (S + √d)²,  S² + d/4 + S + √d/2 )

(Kairouz, Liu and Steinke 2021, Proposition 22 with β = e^(−1/2)). A user who is replaced moves the
sum by 2Δ at most, whatever was rounded how. n parties' shares come to √n·σ_i. With drop-outs and
colluding parties, whose noise is known, those of m honest ones are left: √m·σ_i.

The secure sum is modulo 2^bits. Sums wrap around with a chance below 2·d·e^(−72) = d · 10⁻³¹, and
that costs accuracy, never privacy.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedrows.privacy.discrete_gaussian import LEAST, discrete_gaussians
from fedrows.privacy.keys import MaskWords
from fedrows.privacy.noise import RandomBytes, uniforms
from fedrows.privacy.ring import WORDS, Coding, RangeError

_FINE = 8.0  # steps of the norm for each √d: what rounding adds to Δ is below a hundredth
_TAIL = 12.0  # deviations of the noise that a word has room for


@dataclass(frozen=True)
class NoisyCoding:
    """How the vectors of one sum are written as words, and the noise that goes with them."""

    clip: float  # no client's vector is longer
    noise: float  # deviation of all clients' noise, over what one user who is replaced moves
    clients: int  # as planned
    numbers: int  # in a vector
    parties: int  # that add noise: the clients themselves, or nodes for their clients

    @cached_property
    def steps(self) -> int:
        """S: whole steps that the clip has."""
        least = LEAST * math.sqrt(self.parties) / (2 * self.noise)
        return 1 << math.ceil(math.log2(max(_FINE * math.sqrt(self.numbers), least, 2)))

    @cached_property
    def longest(self) -> float:
        """Δ: no rounded vector is longer."""
        root, s = math.sqrt(self.numbers), self.steps
        return min(s + root, math.sqrt(s**2 + root**2 / 4 + s + root / 2))

    @cached_property
    def deviation(self) -> float:
        """σ_i: of one party's noise, in steps."""
        return self.noise * 2 * self.longest / math.sqrt(self.parties)

    @cached_property
    def most(self) -> float:
        """The largest number of an honest sum, in steps."""
        return self.clients * self.longest + _TAIL * math.sqrt(self.parties) * self.deviation

    @cached_property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type of a word, in which sums do not wrap around."""
        for bits in WORDS:
            if 2 * self.most < 2**bits:
                return np.dtype(f"<u{bits // 8}")
        raise RangeError(
            f"The noisy sum of {self.clients} clients needs more than {WORDS[-1]} bits: lower "
            "dp-noise."
        )

    def rounded(self, values: np.ndarray, source: RandomBytes = os.urandom) -> np.ndarray:
        """A client's values, of norm at most the clip, in steps, no longer than Δ: int64."""
        scaled = np.asarray(values, dtype=np.float64).reshape(-1) * (self.steps / self.clip)
        norm = float(np.linalg.norm(scaled))
        if not norm <= self.steps:  # by a last bit, or somebody did not clip
            scaled = scaled * (self.steps / norm) if math.isfinite(norm) else np.zeros_like(scaled)
        low = np.floor(scaled)
        while True:
            made = low + (uniforms(len(low), source) < scaled - low)
            if float(np.linalg.norm(made)) <= self.longest:
                return made.astype(np.int64)

    def noises(self, parties: int, source: RandomBytes = os.urandom) -> np.ndarray:
        """The noise of so many parties together, for a whole vector: int64.

        Their sum is drawn at once: it differs from the sum of single draws by less than 10⁻⁶⁰.
        """
        return discrete_gaussians(math.sqrt(parties) * self.deviation, self.numbers, source)

    def words(self, steps: np.ndarray) -> MaskWords:
        """Whole numbers as words of the ring."""
        return steps.astype(np.int64).view(np.uint64).astype(self.dtype)

    def decode(self, words: MaskWords) -> np.ndarray:
        """What a sum of words stands for, cut to what an honest sum can be: float64."""
        signed = words.view(np.dtype(f"<i{self.dtype.itemsize}")).astype(np.float64)
        return np.clip(signed, -self.most, self.most) * (self.clip / self.steps)


WordCoding = Coding | NoisyCoding  # how the sum of a vector is read
