"""The ledger of a run: every ε that was spent, against whom, for what kind of neighbour.

An entry names its adversary and its unit. Entries compose within one such kind and never across:

    server/value          against the server: one raw value of a client, added or removed
    server/set            against the server: everything a client holds
    server/user-replaced  against the server, which knows the cohorts: one user replaced by another
    totals/value          against whoever sees exact totals of secure sums: one raw value
    model/user            against whoever sees the model: one user, added or removed
    model/user-replaced   the same, one user replaced by another

Entries with ε and δ add up. Entries with an event (Gaussian noise on a sampled cohort) compose in
Rényi differential privacy by dp-accounting, which is needed only then. A series, such as permanent
answers, has a bound of its own: each entry says what all of them come to so far, and the largest
counts. Sums are exactly rounded, so that a ledger that was written and read gives the same numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedrows.errors import FedrowsError, PlanError

AGAINST_SERVER = "server/user-replaced"
KINDS = (
    "server/value",
    "server/set",
    AGAINST_SERVER,
    "totals/value",
    "model/user",
    "model/user-replaced",
)
SAMPLING = ("all", "poisson", "fixed")


@dataclass(frozen=True)
class Event:
    """Gaussian noise on sums over one cohort, all released together.

    noise: standard deviation over sensitivity, one for each sum; the sensitivity is that of the
    entry's neighbours. sampling: everybody is in the cohort; each of `clients` is with probability
    cohort / clients; or exactly `cohort` of them are. discrete: the noise is a sum of whole numbers
    (`discrete_gaussian`), with the divergences of Gaussian noise but not its distribution.
    """

    noise: tuple[float, ...]
    sampling: str = "all"
    cohort: int = 0
    clients: int = 0
    discrete: bool = False

    def __post_init__(self) -> None:
        if self.discrete and self.sampling == "poisson":
            raise PlanError("Noise in whole numbers is accounted for fixed cohorts, not Poisson's.")
        if not self.noise or not all(x > 0 for x in self.noise):
            raise PlanError(f"The noise multipliers are {self.noise}, but each must be above 0.")
        if self.sampling not in SAMPLING:
            raise PlanError(
                f"sampling is {self.sampling!r}, but must be one of {', '.join(SAMPLING)}."
            )
        if self.sampling != "all" and not 0 < self.cohort <= self.clients:
            raise PlanError(
                f"A cohort of {self.cohort} cannot be drawn from {self.clients} clients."
            )


@dataclass(frozen=True)
class Entry:
    """One mechanism's spending in one round; round 0 is before the first."""

    kind: str
    mechanism: str
    round: int
    epsilon: float = 0.0
    delta: float = 0.0
    event: Event | None = None
    series: bool = False  # ε is what all entries of this mechanism come to so far

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise PlanError(f"There is no kind of privacy {self.kind!r}: name one of {KINDS}.")
        if not self.epsilon >= 0 or not 0 <= self.delta < 1:
            raise PlanError(
                f"{self.mechanism} spends ε {self.epsilon} and δ {self.delta}, which cannot be."
            )
        if self.event is not None:
            wrong = {"poisson": ("model/user-replaced",), "fixed": ("model/user", AGAINST_SERVER)}
            if self.kind in wrong.get(self.event.sampling, ()):
                raise PlanError(
                    f"{self.mechanism} samples its cohort by {self.event.sampling!r}, which is not "
                    f"accounted for neighbours of the kind {self.kind}."
                )

    def to_json(self) -> dict[str, Any]:
        """The entry as JSON, which has no infinity."""
        return {**asdict(self), "epsilon": _plain(self.epsilon)}

    @classmethod
    def from_json(cls, json: Mapping[str, Any]) -> Entry:
        """The entry that `to_json` has written."""
        event = json["event"]
        if event is not None:
            event = Event(**{**event, "noise": tuple(event["noise"])})
        return cls(**{**json, "epsilon": float(json["epsilon"]), "event": event})


@dataclass
class Ledger:
    """Everything a run has spent."""

    delta: float = 1e-6  # at which ε is told where a mechanism needs one
    entries: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.delta < 1:
            raise PlanError(f"delta is {self.delta}, but must be above 0 and below 1.")

    def add_(self, *entries: Entry) -> None:
        """Writes entries down."""
        self.entries += entries

    @property
    def kinds(self) -> list[str]:
        """The kinds of privacy that were spent."""
        return [kind for kind in KINDS if any(entry.kind == kind for entry in self.entries)]

    def spent(self, kind: str) -> float:
        """ε of one kind, at δ; infinite if δ is used up."""
        return _epsilon([e for e in self.entries if e.kind == kind], self.delta)

    def would_exceed(self, max_epsilon: float, kind: str, *entries: Entry) -> bool:
        """Whether ε of a kind would pass a limit if these entries were written too."""
        if kind not in KINDS:
            raise PlanError(f"There is no kind of privacy {kind!r}: name one of {KINDS}.")
        return replace(self, entries=[*self.entries, *entries]).spent(kind) > max_epsilon

    def to_json(self) -> dict[str, Any]:
        """The ledger as JSON: equal entries once, with their rounds."""
        rounds: dict[Entry, list[int]] = {}
        for entry in self.entries:
            rounds.setdefault(replace(entry, round=0), []).append(entry.round)
        return {
            "delta": self.delta,
            "entries": [{**entry.to_json(), "round": spans} for entry, spans in rounds.items()],
        }

    @classmethod
    def from_json(cls, json: dict[str, Any]) -> Ledger:
        """The ledger that `to_json` has written."""
        ledger = cls(json["delta"])
        for each in json["entries"]:
            made = Entry.from_json({**each, "round": 0})
            ledger.entries += [replace(made, round=number) for number in each["round"]]
        return ledger


def _plain(epsilon: float) -> float | str:
    """JSON has no infinity."""
    return epsilon if math.isfinite(epsilon) else "inf"


def _epsilon(entries: Sequence[Entry], delta: float) -> float:
    """ε at δ of entries of one kind."""
    if not entries:
        return 0.0
    series: dict[str, Entry] = {}
    for entry in entries:
        if entry.series and entry.epsilon >= series.get(entry.mechanism, entry).epsilon:
            series[entry.mechanism] = entry
    plain = [*series.values(), *(e for e in entries if not e.series)]
    pure = math.fsum(entry.epsilon for entry in plain)
    left = delta - math.fsum(entry.delta for entry in plain)
    if left < 0:
        return math.inf
    events = Counter(entry.event for entry in entries if entry.event is not None)
    if not events:
        return pure
    return pure + _of_events(events.items(), left) if left > 0 else math.inf


def _of_events(events: Iterable[tuple[Event, int]], delta: float) -> float:
    """ε at δ of so many of each event."""
    rdp = accounting_package().rdp
    accountant = rdp.RdpAccountant()
    for event, times in sorted(events, key=repr):  # one order, so that sums are the same
        accountant._rdp = accountant._rdp + times * _rdp(event)
    return float(accountant.get_epsilon(delta))


@lru_cache(maxsize=64)
def _rdp(event: Event) -> np.ndarray:
    """The Rényi divergences of one event at the accountant's orders.

    An accountant takes a third of a second for an event sampled without replacement, so its answer
    is kept; it has no public name there.
    """
    dp = accounting_package()
    if event.discrete and event.sampling == "fixed":
        multiplier = math.fsum(noise**-2 for noise in event.noise) ** -0.5
        orders = dp.rdp.RdpAccountant()._orders
        return sampled_divergences(multiplier, event.cohort / event.clients, orders)
    relation = dp.NeighboringRelation
    replaced = event.sampling == "fixed"
    accountant = dp.rdp.RdpAccountant(
        neighboring_relation=relation.REPLACE_ONE if replaced else relation.ADD_OR_REMOVE_ONE
    )
    accountant.compose(_as_dp_event(event))
    return np.asarray(accountant._rdp)


def _as_dp_event(event: Event) -> Any:
    """The same as an event of dp-accounting."""
    dp = accounting_package()
    sums = [dp.GaussianDpEvent(float(noise)) for noise in event.noise]
    both = sums[0] if len(sums) == 1 else dp.ComposedDpEvent(sums)
    if event.sampling == "poisson":
        return dp.PoissonSampledDpEvent(event.cohort / event.clients, both)
    if event.sampling == "fixed":
        return dp.SampledWithoutReplacementDpEvent(event.clients, event.cohort, both)
    return both


def accounting_package() -> Any:
    """The package dp-accounting, or a FedrowsError if it is not installed."""
    try:
        import dp_accounting
    except ImportError as error:
        raise FedrowsError(
            "Accounting for Gaussian noise needs dp-accounting: pip install 'fedrows[privacy]'."
        ) from error
    return dp_accounting


def sampled_divergences(multiplier: float, rate: float, orders: Sequence[float]) -> np.ndarray:
    """What a secret cohort makes of the Rényi divergences of Gaussian noise: a bound, by order.

    Wang, Balle and Kasiviswanathan (2019), Theorem 9, for any mechanism. K of N clients are drawn
    without replacement, γ = K/N is the rate, and one user is replaced by another. If a mechanism's
    divergence of order j is ε(j), here j / (2·multiplier²), that of the mechanism on the cohort, at
    a whole order α, is at most

        1/(α−1) · ln( 1 + γ²·C(α,2)·min(4(e^ε(2) − 1), 2·e^ε(2))
                        + Σ_{j=3..α} 2·γ^j·C(α,j)·e^((j−1)·ε(j)) )

    A divergence grows with its order, so an order between two whole ones takes the larger.
    """
    return np.array([_at(multiplier, rate, float(order)) for order in orders])


def _at(multiplier: float, rate: float, order: float) -> float:
    def plain(alpha: float) -> float:
        return alpha / (2 * multiplier**2)

    alpha, without = max(2, math.ceil(order)), plain(order)
    if rate >= 1:
        return without
    pair = math.log(2) + plain(2)
    if plain(2) < 1:
        pair = min(pair, math.log(4 * math.expm1(plain(2))))
    logs = [0.0, 2 * math.log(rate) + _ways(alpha, 2) + pair]
    for j in range(3, alpha + 1):
        more = (j - 1) * plain(j)
        logs.append(math.log(2) + j * math.log(rate) + _ways(alpha, j) + more)
    return min(without, float(np.logaddexp.reduce(logs)) / (alpha - 1))


def _ways(n: int, k: int) -> float:
    """ln C(n, k)."""
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
