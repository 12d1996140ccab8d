"""Randomized response (Warner 1965) on bit vectors: a client answers each bit with a lie at times.

    P(answer 1 | bit 1) = keep = p,   P(answer 1 | bit 0) = lie = q,   q < p
    ε = max( ln p/q, ln (1−q)/(1−p) )                        for one bit that is flipped
    estimate   n̂ = (ones − q·N) / (p − q)                    unbiased, from N answers
    variance   ( n·p(1−p) + (N−n)·q(1−q) ) / (p − q)²

Of all pairs with the same ε the symmetric one, p = 1 − q = e^ε/(1+e^ε), has the least variance for
a cold bit. The probabilities are multiples of 2⁻³², rounded towards each other, so that coins are
exact and ε is never above what was asked for.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.noise import RandomBytes, binomials, words

_ONE = 2**32
_BLOCK = 1 << 22  # coins thrown at once


@dataclass(frozen=True)
class Response:
    """One way to lie: the chances of a 1 for a true 1 and for a true 0."""

    keep: float
    lie: float

    def __post_init__(self) -> None:
        if not 0 < self.lie < self.keep < 1:
            raise PlanError(
                f"A randomized response keeps a 1 with probability {self.keep} and makes one of a 0"
                f" with {self.lie}, but needs 0 < lie < keep < 1."
            )
        keep, lie = math.floor(self.keep * _ONE), math.ceil(self.lie * _ONE)  # lowers ε
        if not 0 < lie < keep < _ONE:
            raise PlanError(
                f"A randomized response with keep {self.keep} and lie {self.lie} is finer than its "
                "coins of 32 bits: choose probabilities further from 0, from 1 and from each other."
            )
        object.__setattr__(self, "keep", keep / _ONE)
        object.__setattr__(self, "lie", lie / _ONE)

    @classmethod
    def symmetric(cls, epsilon: float) -> Response:
        """The response that lies equally often both ways, at a given ε."""
        check_epsilon(epsilon)
        lie = max(1 / (1 + math.exp(min(epsilon, 700.0))), 1 / _ONE)
        return cls(1 - lie, lie)

    @property
    def epsilon(self) -> float:
        """ε of one answer, for a bit that is flipped."""
        return max(math.log(self.keep / self.lie), math.log1p(-self.lie) - math.log1p(-self.keep))

    def answer(self, bits: np.ndarray, source: RandomBytes = os.urandom) -> np.ndarray:
        """What a client says for its bits, of any shape: every bit with a coin of its own."""
        flat = np.asarray(bits, dtype=bool).reshape(-1)
        answers = np.empty(len(flat), dtype=bool)
        limits = np.array([round(self.lie * _ONE), round(self.keep * _ONE)], dtype=np.uint32)
        for low in range(0, len(flat), _BLOCK):
            part = flat[low : low + _BLOCK]
            answers[low : low + _BLOCK] = words(len(part), source) < limits[part.astype(np.int8)]
        return answers.reshape(np.shape(bits))

    def ones(
        self, counts: np.ndarray, clients: int | np.ndarray, source: RandomBytes = os.urandom
    ) -> np.ndarray:
        """How many of the clients say 1 for each bit that `counts` of them have.

        Two binomial draws a bit: the sum of everybody's answers, at a cost that does not grow with
        the number of clients. For simulation; a client on a device calls `answer`.
        """
        counts = np.asarray(counts, dtype=np.int64)
        without = np.broadcast_to(np.asarray(clients, dtype=np.int64), counts.shape) - counts
        return binomials(counts, self.keep, source) + binomials(without, self.lie, source)

    def estimate(self, ones: np.ndarray, clients: float | np.ndarray) -> np.ndarray:
        """The unbiased estimate of how many clients have each bit; it may be below 0."""
        return (np.asarray(ones, dtype=np.float64) - self.lie * clients) / (self.keep - self.lie)

    def error(self, counts: np.ndarray, clients: float | np.ndarray) -> np.ndarray:
        """The standard error of the estimate for bits that `counts` clients have."""
        held = np.clip(np.asarray(counts, dtype=np.float64), 0, clients)
        keep, lie = self.keep * (1 - self.keep), self.lie * (1 - self.lie)
        return np.sqrt(held * keep + (clients - held) * lie) / (self.keep - self.lie)


def floored(estimates: np.ndarray, errors: np.ndarray, z: float = 1.0) -> np.ndarray:
    """max(estimate, 1, z standard errors): no correction rests on a count that noise could make."""
    return np.maximum(estimates, np.maximum(1.0, z * errors))


def check_epsilon(epsilon: float, what: str = "epsilon") -> None:
    """Raises a PlanError unless ε is a number above 0."""
    if not epsilon > 0 or not math.isfinite(epsilon):
        raise PlanError(f"{what} is {epsilon}, but must be a finite number above 0.")
