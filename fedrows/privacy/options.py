"""What a run keeps private: a mode, which is a preset of dials, and the dials.

    clear   everything is shown to the server
    heat    rows' heat is counted in a private way; rounds are in the clear
    index   the same; rows are asked for over a private union, updates go up in secure sums
    full    the same; the model is differentially private for every user

An option that the user gives overrides its mode's preset. Options that contradict each other are
refused: no mode ever falls back to a clearer one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.errors import PlanError
from fedrows.options import check, option
from fedrows.privacy.answers import TwoStage
from fedrows.privacy.counting import COINS, WAYS, Counting
from fedrows.privacy.ledger import AGAINST_SERVER, KINDS, accounting_package
from fedrows.privacy.mechanism import (
    DIAL,
    Mechanism,
    default_mechanism,
    mechanism_of,
    restored,
    stored,
)
from fedrows.privacy.thresholds import lowest_threshold

MODES: dict[str, dict[str, Any]] = {
    "clear": {},
    "heat": {"heat": "secure"},
    "index": {
        "heat": "secure",
        "index_epsilon": 1.0,
        "index_epsilon_for_ever": 4.0,
        "min_contributors": 2,
    },
    "full": {"heat": "secure", "index_epsilon": 1.0, "index_epsilon_for_ever": 4.0},
}
OF_THE_MODEL = tuple(kind for kind in KINDS if kind.startswith("model/"))


@dataclass(frozen=True)
class Privacy:
    """The dials of a private run; `Privacy.of` presets them by mode."""

    privacy: str = option("clear", "Which parts of a run are private.", choices=tuple(MODES))
    heat: str = option("exact", "How heat is counted; secure in the private modes.", choices=WAYS)
    heat_epsilon: float = option(2.0, "ε of one coin of noisy heat.", above=0)
    heat_z: float = option(1.0, "Noisy counts are raised to at least X standard errors.", least=0)
    coins: str = option("value", COINS, choices=("value", "row"))
    heat_cap: float | None = option(
        None, "Noisy heat adds up weights of at most X; without a cap it counts clients.", above=0
    )
    heat_buckets: int = option(2**15, "Words that a client sends for hashed heat.", least=1)
    index_epsilon: float | None = option(
        None,
        "ε of a client's answers in one round, on which rows it wants; 1 in index and full. "
        "none: clients ask for exactly their rows, which the server then sees.",
        above=0,
    )
    index_epsilon_for_ever: float | None = option(
        None,
        "ε of all such answers together, in any number of rounds; 4 in index and full.",
        above=0,
    )
    union: str = option(
        "auto",
        "How a cohort's rows are found: a word per row, or a Bloom filter; auto: the smaller.",
        choices=("auto", "direct", "bloom"),
    )
    min_contributors: int = option(
        1, "A row is opened only if N parties hold it; 2 in index.", least=1
    )
    openers: int = option(2, "Clients that must all agree to open a row.", least=1)
    threshold: float = option(
        0.67,
        "Share of a cohort that must stay to the end, or nothing is opened; raised to what the "
        "colluding clients make necessary.",
        above=0,
        most=1,
    )
    colluding: int = option(1, "How many clients may collude with the server.", least=0)
    update_range: float = option(
        4.0, "Largest number of an update; what exceeds it is kept for the next one.", above=0
    )
    secure_sum: str = option(
        "real",
        "real: run the protocols; arithmetic: the same sums without masks, for research.",
        choices=("real", "arithmetic"),
    )
    dp_heat_noise: float = option(4.0, "Noise on heat, in units of its sensitivity.", above=0)
    dp_heat_rows: int = option(100, "Rows that a user counts for in heat, at most.", least=1)
    delta: float = option(1e-6, "δ at which the ε of the model is reported.", above=0, most=0.5)
    max_epsilon: float | None = option(
        None, "Stop before a round that would spend more than this.", above=0
    )
    max_epsilon_kind: str | None = option(
        None, "Which kind of ε max-epsilon limits; by mode if not given.", choices=KINDS
    )
    ledger: str | None = option(
        None, "File of what all runs over these data have spent; max-epsilon then limits the sum."
    )
    answers: str | None = option(
        None, "Folder of the clients' permanent answers; in the run's folder if not given."
    )
    mechanism: Mechanism | None = field(default=None)  # the noise on the model; in full alone

    def __post_init__(self) -> None:
        check(self)
        if self.privacy == "full" and self.mechanism is None:
            object.__setattr__(self, "mechanism", default_mechanism())
        elif self.privacy != "full" and self.mechanism is not None:
            raise PlanError(
                f"mechanism is {self.mechanism.name!r}, which does nothing under privacy "
                f"{self.privacy!r}: leave it out, or choose privacy full."
            )
        if self.privacy == "clear":
            self._only("privacy")
        elif self.heat == "exact":
            raise PlanError(
                f"privacy is {self.privacy!r}, but heat is 'exact', which shows every index set: "
                "choose secure, randomized-response or hashed."
            )
        if self.secret_sums:
            self._check_index()
        elif self.privacy == "heat":
            self._only("privacy", "heat", "coins", "delta", "max_epsilon", "ledger")
        if self.mechanism is not None:
            self._check_full(self.mechanism)
        self.counting  # noqa: B018 - it checks

    @classmethod
    def of(cls, privacy: str = "clear", **dials: Any) -> Privacy:
        """A mode with its presets, and the dials that are given.

        mechanism: one, or its name or reference; its own options are dials with `dp_` in front.
        """
        if privacy not in MODES:
            raise PlanError(f"privacy is {privacy!r}, but must be one of {', '.join(MODES)}.")
        presets = dict(MODES[privacy])
        if "index_epsilon" in dials and dials["index_epsilon"] is None:
            presets["index_epsilon_for_ever"] = None
        known = {item.name for item in fields(cls)}
        noise = {x: dials.pop(x) for x in [*dials] if x.startswith(DIAL) and x not in known}
        if noise and privacy != "full":
            raise PlanError(
                f"{next(iter(noise)).replace('_', '-')} does nothing under privacy {privacy!r}: "
                "leave it out, or choose privacy full."
            )
        mechanism = mechanism_of(dials.pop("mechanism", None), noise, known)
        return cls(**{"privacy": privacy, **presets, **dials, "mechanism": mechanism})

    @property
    def private(self) -> bool:
        """Whether anything is."""
        return self.privacy != "clear"

    @property
    def secret_sums(self) -> bool:
        """Whether rows are found by a private union, and updates go up in secure sums."""
        return self.privacy in ("index", "full")

    @property
    def noise_in_sum(self) -> bool:
        """Whether clients add the noise of the model, so that the server sees noisy sums alone."""
        return self.mechanism is not None and self.mechanism.client_noise is not None

    @property
    def counting(self) -> Counting:
        """How heat is counted."""
        return Counting(**{item.name: getattr(self, item.name) for item in fields(Counting)})

    @property
    def stages(self) -> TwoStage | None:
        """How clients answer which rows they want; None: with the truth."""
        if self.index_epsilon is None or self.index_epsilon_for_ever is None:
            return None
        return TwoStage.of(self.index_epsilon, self.index_epsilon_for_ever)

    @property
    def keep_probability(self) -> float:
        """How likely a client asks for a row that it holds, by which its update is divided."""
        return 1.0 if self.stages is None else self.stages.keep_probability

    @property
    def limited(self) -> str:
        """The kind of ε that `max_epsilon` is of."""
        if self.max_epsilon_kind is not None:
            return self.max_epsilon_kind
        if self.noise_in_sum:
            return AGAINST_SERVER
        return "server/value" if self.mechanism is None else self.mechanism.kind

    @property
    def fewest(self) -> int:
        """How many parties a secure sum must have."""
        return max(self.colluding + 2, self.openers, self.min_contributors)

    def least(self, cohort: int) -> int:
        """Of so many clients, how many must stay or nothing is opened."""
        least = max(math.ceil(self.threshold * cohort), lowest_threshold(cohort, self.colluding))
        if self.mechanism is None or not self.noise_in_sum:
            return least
        return max(least, self.mechanism.fewest(cohort) + self.colluding)

    def check(self, algorithm: Algorithm, cohort: int) -> None:
        """Raises a PlanError if the mode would not hold for an algorithm, or for such cohorts."""
        if not self.private:
            return
        if algorithm.pooled:
            raise PlanError(
                f"{algorithm.name} puts all data in one place, so privacy cannot be "
                f"{self.privacy!r}: leave that algorithm out."
            )
        if not self.secret_sums:
            return
        if not algorithm.summable:
            raise PlanError(
                f"{algorithm.name} does not declare that sums of uploads are enough (summable), "
                f"and privacy {self.privacy!r} shows no single ones: use "
                f"{catalogue.instead_in_sums(algorithm)}."
            )
        if self.min_contributors > cohort:
            raise PlanError(
                f"min-contributors is {self.min_contributors}, but a round has {cohort} clients: "
                "no row would ever be opened."
            )
        needed = max(self.least(cohort), self.openers)
        if needed > cohort:
            raise PlanError(
                f"clients-per-round is {cohort}, but secure sums with {self.openers} openers that "
                f"bear {self.colluding} colluding clients need {needed}: ask for more."
            )

    def check_packages(self) -> None:
        """Raises a FedrowsError if a package is missing that a run in this mode would import."""
        if self.secret_sums:
            from fedrows.privacy import keys  # noqa: F401 - it says what is missing
        if self.mechanism is not None:
            accounting_package()

    def config(self) -> dict[str, Any]:
        """The dials as config.json has them."""
        config = asdict(self)
        del config["mechanism"]
        if self.mechanism is not None:
            config["mechanism"] = stored(self.mechanism)
        return config

    def _only(self, *fitting: str) -> None:
        """Raises a PlanError if a dial was turned that does nothing in this mode."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default and not item.name.startswith(fitting):
                raise PlanError(
                    f"{item.name.replace('_', '-')} is {value!r}, which does nothing under privacy "
                    f"{self.privacy!r}: leave it out, or choose another mode."
                )

    def _check_index(self) -> None:
        if (self.index_epsilon is None) != (self.index_epsilon_for_ever is None):
            raise PlanError(
                "index-epsilon and index-epsilon-for-ever must both be given, or both be none."
            )
        self.stages  # noqa: B018 - it checks
        if self.openers <= self.colluding:
            raise PlanError(
                f"openers is {self.openers}, but must be above the {self.colluding} colluding "
                "clients, so that one opener is honest."
            )

    def _check_full(self, mechanism: Mechanism) -> None:
        if self.heat != "secure":
            raise PlanError(
                f"heat is {self.heat!r}, but under privacy 'full' it is a secure sum with noise on "
                "it: leave --heat out, and set --dp-heat-noise."
            )
        if self.min_contributors > 1:
            raise PlanError(
                f"min-contributors is {self.min_contributors}, but under privacy 'full' it must be "
                "1: a user who decides whether a row opens decides over others' part in it, which "
                "no ε of the model would cover."
            )
        if mechanism.sampling != "fixed" or mechanism.kind not in OF_THE_MODEL:
            raise PlanError(
                f"The mechanism {mechanism.name} is for cohorts by {mechanism.sampling!r} sampling "
                f"and ε of the kind {mechanism.kind}, but a run's cohorts have a fixed size, and "
                f"its ε is one of {', '.join(OF_THE_MODEL)}: choose another mechanism."
            )
        if self.max_epsilon_kind in OF_THE_MODEL and self.max_epsilon_kind != mechanism.kind:
            raise PlanError(
                f"max-epsilon-kind is {self.max_epsilon_kind!r}, but the mechanism "
                f"{mechanism.name} accounts for another kind: use {mechanism.kind}."
            )


def from_config(config: Mapping[str, Any] | None) -> Privacy:
    """The dials that a config.json has; a run from before there were any was in the clear."""
    if not config:
        return Privacy()
    if "mechanism" in config:
        config = {**config, "mechanism": restored(config["mechanism"])}
    return Privacy(**config)
