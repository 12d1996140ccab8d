"""What a mechanism of central differential privacy is: the noise of mode `full`.

    shares     s_i = min(w_i, cap) / cap, how much a client counts: at most 1
    clipped    ū_i = s_i · u_i · min(1, C / |u_i|)     u_i the corrected update of client i
    noised     the private mean, out of the secure sums Σ_i ū_i
    entry      what that release spends, for the ledger

A user added or removed moves Σ ū_i by C at most, in Euclidean norm; a user replaced by another
moves it by 2C. The denominator of the mean is fixed in advance: the planned cohort times
`mean_share`. `docs/privacy.md` derives all of it. A file in `mechanisms/` brings one mechanism;
others come as plug-ins (`docs/plug-ins.md`). The options are flags with `dp-` in front.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows import catalogue
from fedrows.errors import PlanError, UnknownNameError
from fedrows.options import check, option, options
from fedrows.privacy.ledger import Entry
from fedrows.privacy.noise import RandomBytes, binomials, choose
from fedrows.rows.params import Submodels

DEFAULT_MECHANISM = "gaussian"
PREFIX = "dp-"  # of a mechanism's options on the command line
DIAL = "dp_"  # the same, as a dial
SAMPLING = ("poisson", "fixed")


@dataclass(frozen=True, eq=False)
class Touched:
    """What a cohort's clipped updates come to in one table, on the rows that anybody touched."""

    ids: Tensor  # (U,), ascending
    counts: Tensor  # (U,), Σ_i 1 / √|S(i)| over a row's holders: a vector of norm 1 per client
    sums: Tensor  # (U, width), Σ_i ū_i

    def sums_at(self, ids: Tensor) -> Tensor:
        """The sums at some ids, ascending; 0 where nobody touched the row: (len(ids), width)."""
        sums = torch.zeros(len(ids), self.sums.shape[1], dtype=torch.float64)
        if len(ids) and len(self.ids):
            position = torch.searchsorted(ids, self.ids).clamp_(max=len(ids) - 1)
            inside = ids[position] == self.ids
            sums.index_add_(0, position[inside], self.sums[inside])
        return sums


Released = tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]  # table → ids, rows; dense


@dataclass(frozen=True)
class Mechanism(ABC):
    """User-level privacy against whoever sees the model; a subclass brings the noise."""

    clip: float = option(1.0, "Largest norm of a client's corrected update.", above=0)
    weight_cap: float | None = option(None, "Weights above X count as X; none: all are 1.", above=0)
    mean_share: float = option(1.0, "Mean of min(w, cap)/cap, fixed in advance.", above=0, most=1)
    sampling: str = field(default="fixed", kw_only=True)  # of cohorts; in runs they are fixed

    def __post_init__(self) -> None:
        check(self, PREFIX)
        if self.sampling not in SAMPLING:
            raise PlanError(
                f"sampling is {self.sampling!r}, but must be one of {', '.join(SAMPLING)}."
            )

    @property
    def name(self) -> str:
        """The name on the command line: the class's, in lower case."""
        return type(self).__name__.lower()

    @property
    def kind(self) -> str:
        """The kind of privacy that the sampling allows to account for."""
        return "model/user" if self.sampling == "poisson" else "model/user-replaced"

    @property
    @abstractmethod
    def explanation(self) -> str:
        """Who is protected from whom, and by which noise: a sentence for `privacy explain`."""

    @abstractmethod
    def entry(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        """What one round's release spends, of this mechanism's kind: an event, or an ε above 0.

        cohort: of how many of the clients. tables: whether there are any tables that clients share.
        """

    @property
    def client_noise(self) -> float | None:
        """The noise that a whole cohort adds before the sum, in units of its sensitivity.

        None: the server adds the noise, after it has seen exact sums.
        """
        return None

    @property
    def counted_share(self) -> float:
        """The share of those who add noise to a sum on which ε counts."""
        return 1.0

    def fewest(self, parties: int) -> int:
        """Of so many parties that add noise to a sum, on how many ε counts."""
        return math.ceil(self.counted_share * parties)

    @abstractmethod
    def noised(
        self,
        touched: Mapping[str, Touched],
        dense: Mapping[str, Tensor],
        sizes: Mapping[str, int],
        cohort: int,
        source: RandomBytes = os.urandom,
    ) -> Released:
        """The private mean from sums of clipped updates: rows of each table, and dense tensors.

        sizes: the rows of the whole tables. cohort: as planned. source: of all randomness. Which
        rows are released is seen too: it must not follow from `touched` without noise. If clients
        add the noise (`client_noise`), it is in these sums already.
        """

    def accounted(self, round_: int, cohort: int, clients: int, tables: bool = True) -> Entry:
        """The entry, which must account for the release: no mechanism spends nothing."""
        entry = self.entry(round_, cohort, clients, tables)
        if not isinstance(entry, Entry) or entry.kind != self.kind or entry.series:
            raise PlanError(
                f"The mechanism {self.name} gave {entry!r} for the ledger, but each round needs an "
                f"Entry of its own of the kind {self.kind}: mend its method `entry`."
            )
        if entry.event is None and not entry.epsilon > 0:
            raise PlanError(
                f"The mechanism {self.name} accounts for nothing: let its method `entry` give an "
                "event, or an ε above 0."
            )
        return entry

    def shares(self, weights: Tensor) -> Tensor:
        """s_i = min(w_i, cap) / cap, or 1: (K,) float64."""
        weights = weights.to(torch.float64)
        if self.weight_cap is None:
            return torch.ones_like(weights)
        return (weights / self.weight_cap).clamp(0, 1)

    def clipped(self, update: Submodels, weights: Tensor) -> Submodels:
        """ū_i of every client, in float64. An update that is not finite counts as zero."""
        exact = update.map(lambda x: x.to(torch.float64))
        if not len(weights):  # a Poisson sample may be empty, and is released all the same
            return exact
        sound = torch.isfinite(exact.norms())
        made = exact.map(lambda x: x.nan_to_num(0, 0, 0))
        scale = (self.clip / made.norms()).nan_to_num(1, 1).clamp(max=1)
        made.scale_(torch.where(sound, scale * self.shares(weights).to(scale), 0))
        return made


def draw_cohort(
    how: Mechanism, clients: int, cohort: int, source: RandomBytes = os.urandom
) -> Tensor:
    """The clients of a round, drawn in secret: a cohort that can be foretold amplifies nothing."""
    if not 0 < cohort <= clients:
        raise PlanError(f"A cohort of {cohort} cannot be drawn from {clients} clients.")
    if how.sampling == "poisson" and cohort < clients:
        cohort = int(binomials(np.array([clients]), cohort / clients, source)[0])
    return torch.from_numpy(choose(clients, cohort, source))


def default_mechanism() -> Mechanism:
    """The mechanism of mode full unless another is named."""
    mechanism: Mechanism = catalogue.own("mechanism", DEFAULT_MECHANISM)()
    return mechanism


def mechanism_of(
    named: str | Mechanism | None, dials: Mapping[str, Any], taken: Collection[str]
) -> Mechanism | None:
    """A mechanism with dials such as `dp_noise`; None if nothing is given.

    named: a mechanism, its name or its reference. taken: names of dials that no mechanism may have.
    """
    if named is None and not dials:
        return None
    if isinstance(named, Mechanism):
        if dials:
            raise PlanError(
                f"{next(iter(dials))} is given beside a mechanism: set that option of the "
                "mechanism."
            )
        return named
    name = named or DEFAULT_MECHANISM
    of: type[Mechanism] = catalogue.mechanism(name)
    known = [f"{DIAL}{item.name}" for item in options(of)]
    if clash := [dial for dial in known if dial in taken]:
        raise PlanError(
            f"The mechanism {name} has an option {clash[0].removeprefix(DIAL)}, whose flag "
            f"--{clash[0].replace('_', '-')} is that of every private run: rename it."
        )
    for dial in dials:
        if dial not in known:
            raise UnknownNameError(f"option of the mechanism {name}", dial, known)
    return of(**{dial.removeprefix(DIAL): value for dial, value in dials.items()})


def stored(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism as config.json has it."""
    return {**catalogue.stored_name("mechanism", mechanism.name), **asdict(mechanism)}


def restored(config: Mapping[str, Any]) -> Mechanism:
    """The mechanism that `stored` has written down."""
    own = dict(config)
    name = own.pop("name")
    mechanism: Mechanism = catalogue.mechanism(own.pop(catalogue.FROM, name))(**own)
    return mechanism
