"""Who learns what, at which ε, for which bytes and seconds: the facts behind `privacy explain`.

A mode switches parts on. Each part is one line for each party that learns something from it; what
is switched off is told too, as what is then in the clear.

    clear                                      everything is shown to the server
    heat     heat                              counts are private, rounds are in the clear
    index    heat, index, updates              rows are asked for by two-stage answers over a union,
                                               updates go up in a secure sum
    full     heat, index, updates, model       the same, and the model is differentially private

Bytes are counted from the sizes given. Seconds are estimated from how fast this machine throws
coins and makes masks, and leave the network out.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fedrows.errors import PlanError
from fedrows.privacy.answers import TwoStage
from fedrows.privacy.counting import Counting
from fedrows.privacy.ledger import Entry, Event, Ledger
from fedrows.privacy.mechanism import Mechanism
from fedrows.privacy.named_mechanism import default_mechanism
from fedrows.privacy.oracle import Oracle
from fedrows.privacy.response import Response

MODES: dict[str, frozenset[str]] = {
    "clear": frozenset(),
    "heat": frozenset({"heat"}),
    "index": frozenset({"heat", "index", "updates"}),
    "full": frozenset({"heat", "index", "updates", "model"}),
}
WORD = 4  # bytes of a number in a secure sum of counts
WIDE = 8  # and of a value with its precision
KEYS = 300  # bytes of keys, sealed shares and signatures that go with each neighbour

LIAR = (
    "A lying client can send any vector within the range that the sum allows, count itself as a "
    "holder of rows it lacks, or claim a weight it does not have. Nobody sees its upload alone, so "
    "neither checks on single uploads nor robust rules can find it: its harm is bounded by the "
    "range of the sum alone, times the largest correction."
)


@dataclass(frozen=True)
class ExplainedRun:
    """A run, as far as privacy is concerned."""

    privacy: str
    clients: int  # N
    cohort: int  # K
    rows: Mapping[str, int]  # rows of each shared table
    widths: Mapping[str, int]
    dense: int = 0  # numbers in dense tensors
    set_size: int = 100  # rows that a client holds, all tables together
    rows_per_value: int = 1
    rounds: int = 1
    minimum: int = 2  # contributors before a row is opened
    counting: Counting = field(default_factory=Counting)
    stages: TwoStage | None = field(default_factory=lambda: TwoStage.of(1.0, 4.0))
    mechanism: Mechanism = field(default_factory=default_mechanism)
    heat_noise: float | None = None  # on heat, over its sensitivity, if the model is private
    delta: float = 1e-6
    union_bytes: float | None = None  # up, per client; a word per row unless a Bloom filter is used
    neighbours: int | None = None  # whom a client masks against; all others unless given

    def __post_init__(self) -> None:
        if self.privacy not in MODES:
            raise PlanError(f"privacy is {self.privacy!r}, but must be one of {', '.join(MODES)}.")
        if not 0 < self.cohort <= self.clients:
            raise PlanError(
                f"A cohort of {self.cohort} cannot be drawn from {self.clients} clients."
            )
        if self.minimum > self.cohort:
            raise PlanError(
                f"A row needs {self.minimum} contributors, but a cohort has {self.cohort} clients: "
                "no row would ever be opened."
            )
        if "heat" in self.parts and self.counting.heat == "exact":
            raise PlanError(
                f"privacy is {self.privacy!r}, but heat is 'exact', which shows every index set: "
                "choose secure, randomized-response or hashed."
            )

    @property
    def parts(self) -> frozenset[str]:
        """What is private."""
        return MODES[self.privacy]

    @property
    def union(self) -> int:
        """The most rows that the union of a cohort's index sets may have."""
        return min(sum(self.rows.values()), self.cohort * self.set_size)

    @property
    def width(self) -> float:
        """Numbers in a row, with every table's weight in proportion to its rows."""
        rows = sum(self.rows.values())
        return sum(self.rows[t] * self.widths[t] for t in self.rows) / rows if rows else 0.0


@dataclass(frozen=True)
class Disclosure:
    """What one party learns from one part of a run."""

    part: str
    who: str
    learns: str
    epsilon: str  # with its unit
    bytes_up: float = 0.0  # per client, each time
    bytes_down: float = 0.0
    seconds: float = 0.0  # of a client's work, each time


@dataclass(frozen=True)
class Speed:
    """How fast a machine is."""

    coins: float  # per second
    mask_bytes: float  # per second

    @classmethod
    def here(cls) -> Speed:
        """Measured on this machine, in a blink."""
        bits = np.zeros(1 << 19, dtype=bool)
        response = Response.symmetric(1.0)
        start = time.perf_counter()
        response.answer(bits)
        middle = time.perf_counter()
        os.urandom(1 << 22)  # of the speed of a stream cipher, or slower
        end = time.perf_counter()
        return cls(len(bits) / (middle - start), (1 << 22) / (end - middle))


def explain(setting: ExplainedRun, speed: Speed | None = None) -> list[Disclosure]:
    """Every line, part by part."""
    speed = speed or Speed.here()
    return [
        *_heat(setting, speed),
        *_index(setting, speed),
        *_updates(setting, speed),
        *_model(setting),
    ]


def text(setting: ExplainedRun, speed: Speed | None = None) -> str:
    """The lines for a person to read."""
    shown = [f"privacy {setting.privacy}: {setting.clients:,} clients, {setting.cohort:,} a round"]
    for line in explain(setting, speed):
        shown.append(f"\n{line.part}: {line.who} learns {line.learns}.")
        shown.append(f"  ε       {line.epsilon}")
        if line.bytes_up or line.bytes_down:
            cost = f"  costs   {line.bytes_up:,.0f} bytes up, {line.bytes_down:,.0f} down"
            shown.append(f"{cost}, about {line.seconds:.3g} s of a client's time")
    if "updates" in setting.parts:
        shown.append(f"\n{LIAR}")
    if "model" in setting.parts:
        shown.append(f"\n{setting.mechanism.explanation}")
    return "\n".join(shown)


def _heat(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    how, rows = setting.counting, sum(setting.rows.values())
    behind = 1 if how.heat_coins == "value" else setting.rows_per_value
    value = behind * how.heat_epsilon
    whole = setting.set_size / setting.rows_per_value * value
    epsilon = f"{value:.3g} for one value, {whole:,.4g} for a set of {setting.set_size:,} rows"
    if "heat" not in setting.parts:
        return [
            Disclosure("heat", "the server", "the index set of every client", "none",
                 WORD * setting.set_size)
        ]  # fmt: skip
    if how.heat == "secure":
        masks = (setting.neighbours or setting.clients - 1) + 1
        learns = (
            "how many clients hold each row, and nothing more of any one of them; the difference "
            f"of two counts is a count of the joiners, so heat changes with "
            f"{max(2, setting.minimum)} joiners or more"
        )
        up = float(WORD * rows + KEYS * (masks - 1))
        none = "none: a sum has no noise, and who knows all others' sets knows yours"
        seconds = masks * WORD * rows / speed.mask_bytes
        return [Disclosure("heat", "the server", learns, none, up, 0, seconds)]
    if how.heat == "hashed":
        up = float(Oracle(how.heat_epsilon, buckets=how.heat_buckets).bytes_up)
        learns, coins = "a noisy sketch of every client's rows", 4.0 * how.heat_buckets
    else:
        coins = rows / (setting.rows_per_value if how.heat_coins == "value" else 1)
        up, learns = coins / 8, f"a noisy bit of every client for each {how.heat_coins}"
        if how.heat_coins == "value" and setting.rows_per_value > 1:
            learns += ", and in the clear which variants a client has, such as its gender"
    return [Disclosure("heat", "the server", learns, epsilon, up, 0, coins / speed.coins)]


def _index(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    ids, stages = WORD * setting.set_size, setting.stages
    exactly = 4 * (setting.set_size * setting.width + setting.dense)
    shown = Disclosure(
        "index", "the server", "the index set of every client of a round", "none", ids, exactly
    )
    if "index" not in setting.parts:
        return [shown]
    rows, masks = sum(setting.rows.values()), setting.neighbours or setting.cohort - 1
    up = setting.union_bytes if setting.union_bytes is not None else WORD * rows
    learns = "which rows somebody in the cohort holds, but neither who nor how many"
    seconds = (masks + 1) * up / speed.mask_bytes
    none = "none: the union of a cohort has no noise"
    union = [
        Disclosure("union", "the server", learns, none, up + KEYS * masks, 0, seconds),
        Disclosure("union", "every client of the round", learns, none, 0, WORD * setting.union),
    ]
    if stages is None:  # clients ask for exactly their rows, by choice
        return [*union, shown]
    asked = setting.union * stages.decoy_probability + setting.set_size * (
        stages.keep_probability - stages.decoy_probability
    )
    answers = (
        f"{stages.epsilon_once:.3g} in one round, {stages.epsilon_after(setting.rounds):.3g} in "
        f"{setting.rounds:,}, {stages.epsilon_for_ever:.3g} for ever, for one value"
    )
    learns = (
        "which rows of the union a client asks for: a holder asks with probability "
        f"{stages.keep_probability:.3g}, any other with {stages.decoy_probability:.3g}"
    )
    down = 4 * (asked * setting.width + setting.dense)
    coins = 2 * setting.union / speed.coins
    return [
        *union,
        Disclosure("index", "the server", learns, answers, setting.union / 8, down, coins),
    ]


def _updates(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    if "updates" not in setting.parts:
        up = 4 * (setting.set_size * setting.width + setting.dense)
        learns = "the update of every client of a round, row by row"
        return [Disclosure("updates", "the server", learns, "none", up)]
    masks = setting.neighbours or setting.cohort - 1
    up = WIDE * (setting.union * (setting.width + 2) + setting.dense)  # with weight and holder
    learns = f"the sum over the cohort, of rows that {setting.minimum} clients or more hold"
    seconds = (masks + 1) * up / speed.mask_bytes
    none = "none: a sum has no noise of its own"
    return [Disclosure("updates", "the server", learns, none, up + KEYS * masks, 0, seconds)]


def _model(setting: ExplainedRun) -> list[Disclosure]:
    who = "whoever sees the model"
    if "model" not in setting.parts:
        return [
            Disclosure("model", who, "what training has put into it", "none: no bound is claimed")
        ]
    how, ledger = setting.mechanism, Ledger(setting.delta)
    if setting.heat_noise is not None:
        released = Entry(how.kind, "heat", 0, event=Event((setting.heat_noise,)))
        ledger.add_(*[released] * len(setting.rows))
    for number in range(1, setting.rounds + 1):
        ledger.add_(how.accounted(number, setting.cohort, setting.clients, bool(setting.rows)))
    spent = ledger.spent(how.kind)
    unit = "added or removed" if how.kind == "model/user" else "replaced"
    epsilon = (
        f"{spent:.3g} at δ {setting.delta:g} for one user {unit}, after {setting.rounds:,} rounds "
        f"whose cohorts stay secret, {'with' if setting.heat_noise else 'without'} heat's own part"
    )
    if not math.isfinite(spent):
        epsilon = "none: the noise is too small to be accounted for"
    learns = f"noisy sums of clipped updates, by the mechanism {how.name}"
    return [Disclosure("model", who, learns, epsilon)]
