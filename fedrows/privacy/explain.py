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
from dataclasses import dataclass, replace

import numpy as np

from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Event, Ledger
from fedrows.privacy.mechanism import Mechanism
from fedrows.privacy.options import Privacy
from fedrows.privacy.oracle import Oracle
from fedrows.privacy.response import Response
from fedrows.privacy.thresholds import least_parties

WORD = 4  # bytes of a number in a secure sum of counts
WIDE = 8  # and of a value with its precision
KEYS = 300  # bytes of keys, sealed shares and signatures that go with each peer

IN_SUM = "see `sums` below: the noise is inside the sum"
LIAR = (
    "A lying client can send any words of the sum's length, count itself as a holder of rows it "
    "lacks, or claim a weight it does not have. Nobody sees its upload alone, so neither checks on "
    "single uploads nor robust rules can find it; the range of the numbers binds honest clients "
    "only."
)

GROUPS = (
    "Without waiting (mode async, in deployments) a cohort is a group of clients whose nodes are "
    "idle at the same time. The server also sees how fast each node is, and a fast one is in more "
    "groups. Nodes that end together begin together again if few others are idle: choose a "
    "concurrency well below the number of nodes."
)


@dataclass(frozen=True)
class ExplainedRun:
    """A run, as far as privacy is concerned."""

    privacy: Privacy
    clients: int  # N
    cohort: int  # K
    rounds: int
    weighting: str
    rows: Mapping[str, int]  # rows of each shared table
    widths: Mapping[str, int]
    dense: int  # numbers in dense tensors
    set_size: int  # rows that a client holds, all tables together
    rows_per_value: int  # the most rows of a client that one raw value stands behind
    set_values: int  # raw values that a client holds
    value_rows: int  # rows behind these values, in whatever variant anybody holds
    values: int  # raw values of all tables
    union_bytes: float  # that a client sends for a union, if there is one
    counted: str | None = None  # the table of items whose labels a counted start counts
    grouped: bool = False  # whether a cohort is a group of an asynchronous run

    @property
    def union(self) -> int:
        """The most rows that clients answer for: a union of index sets, or all there are."""
        rows = sum(self.rows.values())
        return rows if self.privacy.noise_in_sum else min(rows, self.cohort * self.set_size)

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
        *_counters(setting, speed),
        *_index(setting, speed),
        *_updates(setting, speed),
        *_model(setting),
    ]


def text(setting: ExplainedRun, speed: Speed | None = None) -> str:
    """The lines for a person to read."""
    mode, clients = setting.privacy.privacy, f"{setting.clients:,} clients"
    each = "group" if setting.grouped else "round"
    shown = [f"privacy {mode}: {clients}, {setting.cohort:,} a {each}"]
    for line in explain(setting, speed):
        shown.append(f"\n{line.part}: {line.who} learns {line.learns}.")
        shown.append(f"  ε       {line.epsilon}")
        if line.bytes_up or line.bytes_down:
            cost = f"  costs   {line.bytes_up:,.0f} bytes up, {line.bytes_down:,.0f} down"
            shown.append(f"{cost}, about {line.seconds:.3g} s of a client's time")
    if setting.privacy.secret_sums:
        shown += [f"\n{LIAR}"] + [f"\n{GROUPS}"] * setting.grouped
    if setting.privacy.mechanism is not None:
        shown.append(f"\n{setting.privacy.mechanism.explanation}")
    return "\n".join(shown)


def _heat(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    how, rows = setting.privacy, sum(setting.rows.values())
    by_value = how.coins == "value" and how.heat != "hashed"
    value = how.heat_epsilon * (1 if by_value else setting.rows_per_value)
    whole = how.heat_epsilon * (setting.set_values if by_value else setting.set_size)
    epsilon = f"{value:,.4g} for one value, {whole:,.4g} for a set of {setting.set_size:,} rows"
    if not how.private:
        return [
            Disclosure("heat", "the server", "the index set of every client", "none",
                 WORD * setting.set_size)
        ]  # fmt: skip
    if how.heat == "secure":  # a mask against every other client, and one of its own
        up = float(WORD * rows + KEYS * (setting.clients - 1))
        seconds = setting.clients * WORD * rows / speed.mask_bytes
        if how.noise_in_sum:
            learns = "a noisy count of every row, whose noise clients add before the sum"
            return [Disclosure("heat", "the server", learns, IN_SUM, up, 0, seconds)]
        batch = least_parties(how.min_contributors, how.colluding)
        learns = (
            "how many clients hold each row, whatever their weights; a count of 1 shows that "
            "somebody holds a row, but not who. In a deployment heat is counted again only if "
            f"every combination of the counts is over {batch} nodes or more"
        )
        none = "none: a sum has no noise, and who knows all others' sets knows yours"
        return [Disclosure("heat", "the server", learns, none, up, 0, seconds)]
    if how.heat == "hashed":
        up = float(Oracle(how.heat_epsilon, buckets=how.heat_buckets).bytes_up)
        learns, coins = "a noisy sketch of every client's rows", 4.0 * how.heat_buckets
    else:
        coins = float(setting.values if by_value else rows)
        up, learns = coins / 8, f"a noisy bit of every client for each {how.coins}"
    return [Disclosure("heat", "the server", learns, epsilon, up, 0, coins / speed.coins)]


def _counters(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    """The two counters of a counted start: the clients that have an item, and those that like it.

    They are counted as heat is, each by itself.
    """
    table, how = setting.counted, setting.privacy
    if table is None:
        return []
    [heat] = _heat(replace(setting, rows={table: setting.rows[table]}), speed)
    epsilon = f"at most {heat.epsilon}, for each of the two counters and on top of heat"
    if not how.private:
        learns = (
            f"which clients have each item of table {table}, and which of them like it; in a "
            "deployment, how many clients of each node"
        )
        epsilon = "none"
    elif how.noise_in_sum:
        learns = (
            f"two noisy counts of every item of table {table}, whose noise clients add before the "
            "sum: who has it, and who likes it"
        )
        epsilon = IN_SUM
    elif how.heat == "secure":
        learns = (
            f"how many clients have each item of table {table}, and how many of them like it; a "
            "total of 1 shows that somebody likes an item, but not who"
        )
        epsilon = "none: a sum has no noise, and who knows all others' labels knows yours"
    elif how.heat == "hashed":
        learns = f"two noisy sketches of every client: the items of table {table} that it has, and "
        learns += "those that it likes"
    else:
        learns = (
            f"two noisy bits of every client for each {how.coins} of table {table}: whether it has "
            "it, and whether it likes it"
        )
    seen = epsilon if how.mechanism is None else "see `model` below: these counts have noise"
    shares = "the share of the clients that like each item, from its bias, and the share of all"
    return [
        Disclosure(
            "counters", "the server", learns, epsilon, 2 * heat.bytes_up, 0, 2 * heat.seconds
        ),
        Disclosure("counters", "whoever sees the first model", shares, seen),
    ]


def _index(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    ids, stages = WORD * setting.set_size, setting.privacy.stages
    exactly = 4 * (setting.set_size * setting.width + setting.dense)
    shown = Disclosure(
        "index", "the server", "the index set of every client of a round", "none", ids, exactly
    )
    if not setting.privacy.secret_sums:
        return [shown]
    up, masks = setting.union_bytes, setting.cohort - 1
    learns = "which rows somebody in the cohort holds, but neither who nor how many"
    named = "which rows of the union a client asks for"
    seconds = (masks + 1) * up / speed.mask_bytes
    none = "none: the union of a cohort has no noise"
    union = [
        Disclosure("union", "the server", learns, none, up + KEYS * masks, 0, seconds),
        Disclosure("union", "every client of the round", learns, none, 0, WORD * setting.union),
    ]
    if setting.privacy.noise_in_sum:  # clients answer for every row instead
        union, named = [], "which rows of all tables a client asks for"
    if stages is None:  # clients ask for exactly their rows, by choice
        return [*union, shown]
    by_value, keep, decoy = (
        setting.privacy.coins == "value",
        stages.keep_probability,
        stages.decoy_probability,
    )
    own = min(setting.union, setting.value_rows if by_value else setting.set_size)
    asked = setting.union * decoy + own * (keep - decoy)
    times = 1 if by_value else setting.rows_per_value
    after = [stages.epsilon_after(rounds) for rounds in (1, setting.rounds)]
    once, all_, ever = (f"{times * x:,.4g}" for x in (*after, stages.epsilon_for_ever))
    answers = f"{once} in one round, {all_} in {setting.rounds:,}, {ever} for ever, for one value"
    learns = (
        f"{named}: a value that it holds with probability "
        f"{keep:.3g}, any other with {decoy:.3g}, and with a value all of its rows in the union, "
        "whichever of them the client holds"
        if by_value
        else f"{named}: a row that it holds with probability "
        f"{keep:.3g}, any other with {decoy:.3g}; all rows of one value, such as a gender, add up"
    )
    down = 4 * (asked * setting.width + setting.dense)
    coins = 2 * setting.union / speed.coins
    return [
        *union,
        Disclosure("index", "the server", learns, answers, setting.union / 8, down, coins),
    ]


def _updates(setting: ExplainedRun, speed: Speed) -> list[Disclosure]:
    if not setting.privacy.secret_sums:
        up = 4 * (setting.set_size * setting.width + setting.dense)
        learns = "the update of every client of a round, row by row"
        return [Disclosure("updates", "the server", learns, "none", up)]
    masks, minimum = setting.cohort - 1, setting.privacy.min_contributors
    if setting.privacy.noise_in_sum:
        up = WORD * (sum(setting.rows.values()) * setting.width + setting.dense)
        seconds = (masks + 1) * up / speed.mask_bytes
        learns = "the sum over the cohort, of all rows, with noise that clients add before the sum"
        return [Disclosure("updates", "the server", learns, IN_SUM, up + KEYS * masks, 0, seconds)]
    up = WIDE * (setting.union * (setting.width + 2) + setting.dense)  # with weight and holder
    learns = (
        f"the sum over the cohort, of rows, weights and dense tensors to which {minimum} or more "
        "have added something; differences of rows of one value have as many contributors"
        if minimum > 1
        else "the sum over the cohort, of every row that anybody holds, and the sum of the weights"
    )
    if setting.weighting == "examples":
        learns += "; in a deployment also how many examples each client has: they are the weights"
    seconds = (masks + 1) * up / speed.mask_bytes
    none = "none: a sum has no noise of its own"
    return [Disclosure("updates", "the server", learns, none, up + KEYS * masks, 0, seconds)]


def _model(setting: ExplainedRun) -> list[Disclosure]:
    who, privacy = "whoever sees the model", setting.privacy
    if (how := privacy.mechanism) is None:
        return [
            Disclosure("model", who, "what training has put into it", "none: no bound is claimed")
        ]
    ledger = Ledger(privacy.delta)
    noise = privacy.dp_heat_noise * math.sqrt(how.counted_share)
    heat = [Event((noise,))] * (len(setting.rows) + 2 * (setting.counted is not None))
    ledger.add_(*(Entry(how.kind, "heat", 0, event=event) for event in heat))
    for number in range(1, setting.rounds + 1):
        ledger.add_(how.accounted(number, setting.cohort, setting.clients, bool(setting.rows)))
    spent = ledger.spent(how.kind)
    unit = "added or removed" if how.kind == "model/user" else "replaced"
    epsilon = (
        f"{spent:.3g} at δ {privacy.delta:g} for one user {unit}, after {setting.rounds:,} rounds "
        "whose cohorts stay secret, with heat's own part"
    )
    if not math.isfinite(spent):
        epsilon = "none: the noise is too small to be accounted for"
    learns = f"noisy sums of clipped updates, by the mechanism {how.name}"
    lines = [Disclosure("model", who, learns, epsilon)]
    if privacy.noise_in_sum:
        lines.append(_sums(setting, how, heat))
    return lines


def _sums(setting: ExplainedRun, how: Mechanism, heat: list[Event]) -> Disclosure:
    """What the server has, which knows the cohorts: a user spends in the rounds that it is in."""
    ledger = Ledger(setting.privacy.delta)
    rounds = math.ceil(setting.rounds * setting.cohort / setting.clients)
    event = how.accounted(1, setting.cohort, setting.clients, bool(setting.rows)).event
    assert event is not None, "noise in a sum is accounted for by an event"
    for each in [*heat, *[Event(event.noise, "all", discrete=True)] * rounds]:
        ledger.add_(Entry(AGAINST_SERVER, "sums", 0, event=each))
    spent = ledger.spent(AGAINST_SERVER)
    epsilon = (
        f"{spent:.3g} at δ {ledger.delta:g} for one user replaced, who is in {rounds:,} of the "
        f"{setting.rounds:,} rounds, with heat's own part"
    )
    return Disclosure("sums", "the server", "all of these sums, and who is in a cohort", epsilon)
