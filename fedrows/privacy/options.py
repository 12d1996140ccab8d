"""What a run keeps private: a mode, which is a preset of dials, and the dials.

    clear   everything is shown to the server
    heat    rows' heat is counted in a private way; rounds are in the clear
    index   the same; rows are asked for over a private union, updates go up in secure sums
    full    the same; the model is differentially private for every user

A dial that is given wins over its mode's preset. What does not go together is refused: no mode ever
falls back to a clearer one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.errors import PlanError
from fedrows.options import check, option
from fedrows.privacy.answers import TwoStage
from fedrows.privacy.central import CentralDP
from fedrows.privacy.counting import WAYS, Counting
from fedrows.privacy.ledger import KINDS

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
_CENTRAL = {
    "dp_clip": "clip",
    "dp_noise": "noise",
    "dp_select_noise": "select_noise",
    "dp_select_threshold": "select_threshold",
    "dp_weight_cap": "weight_cap",
    "dp_mean_share": "mean_share",
}


@dataclass(frozen=True)
class Privacy:
    """The dials of a private run; `Privacy.of` presets them by mode."""

    privacy: str = option("clear", "Which parts of a run are private.", choices=tuple(MODES))
    heat: str = option("exact", "How heat is counted; secure in the private modes.", choices=WAYS)
    heat_epsilon: float = option(2.0, "ε of one coin of noisy heat.", above=0)
    heat_z: float = option(1.0, "Noisy counts are at least so many standard errors.", least=0)
    heat_coins: str = option("row", "What has a coin of its own.", choices=("row", "value"))
    heat_cap: float | None = option(
        None, "Noisy heat counts weights up to this; without it clients are counted.", above=0
    )
    heat_buckets: int = option(2**15, "Words that a client sends for hashed heat.", least=1)
    index_epsilon: float | None = option(
        None,
        "ε of one round's answer which rows a client wants; 1 in index and full. "
        "none: clients ask for exactly their rows, which the server then sees.",
        above=0,
    )
    index_epsilon_for_ever: float | None = option(
        None, "ε of all such answers there will ever be; 4 in index and full.", above=0
    )
    union: str = option(
        "auto",
        "How a cohort's rows are found: a word per row, or a Bloom filter; auto: the smaller.",
        choices=("auto", "direct", "bloom"),
    )
    min_contributors: int = option(
        1, "A row is opened with so many holders only; 2 in index.", least=1
    )
    openers: int = option(2, "Clients that must all let a row go.", least=1)
    threshold: float = option(
        0.5, "Share of a cohort that must stay, or nothing is opened.", above=0, most=1
    )
    colluding: int = option(1, "Clients in league with the server to be borne.", least=0)
    update_range: float = option(
        4.0, "Largest number of an update; what is above stays for the next one.", above=0
    )
    secure_sum: str = option(
        "real",
        "real: run the protocols; arithmetic: the same sums without masks, for research.",
        choices=("real", "arithmetic"),
    )
    dp_clip: float = option(1.0, "Largest norm of a client's corrected update.", above=0)
    dp_noise: float = option(1.0, "Noise on the sum, over its sensitivity.", above=0)
    dp_select_noise: float = option(1.0, "Noise on rows' counts, over their sensitivity.", above=0)
    dp_select_threshold: float = option(4.0, "Noisy count from which a row is released.")
    dp_weight_cap: float | None = option(
        None, "Weights count up to this; none: all alike.", above=0
    )
    dp_mean_share: float = option(
        1.0, "Mean of min(w, cap)/cap, fixed in advance.", above=0, most=1
    )
    dp_heat_noise: float = option(4.0, "Noise on heat, over its sensitivity.", above=0)
    dp_heat_rows: int = option(100, "Rows that a user counts for in heat, at most.", least=1)
    delta: float = option(1e-6, "δ at which ε of the model is told.", above=0, most=0.5)
    max_epsilon: float | None = option(
        None, "Stop before a round that would spend more than this.", above=0
    )
    max_epsilon_kind: str | None = option(
        None, "Which ε is limited; by mode if not given.", choices=KINDS
    )
    answers: str | None = option(
        None, "Folder of the clients' permanent answers; inside the run's if not given."
    )

    def __post_init__(self) -> None:
        check(self)
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
            self._only("privacy", "heat", "delta", "max_epsilon")
        if self.central is not None:
            self._check_full()
        self.counting  # noqa: B018 - it checks

    @classmethod
    def of(cls, privacy: str = "clear", **dials: Any) -> Privacy:
        """A mode with its presets, and the dials that are given."""
        if privacy not in MODES:
            raise PlanError(f"privacy is {privacy!r}, but must be one of {', '.join(MODES)}.")
        presets = dict(MODES[privacy])
        if "index_epsilon" in dials and dials["index_epsilon"] is None:
            presets["index_epsilon_for_ever"] = None
        return cls(**{"privacy": privacy, **presets, **dials})

    @property
    def private(self) -> bool:
        """Whether anything is."""
        return self.privacy != "clear"

    @property
    def secret_sums(self) -> bool:
        """Whether rows are found by a private union, and updates go up in secure sums."""
        return self.privacy in ("index", "full")

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
    def central(self) -> CentralDP | None:
        """Noise on the model, if there is any."""
        if self.privacy != "full":
            return None
        return CentralDP(**{own: getattr(self, name) for name, own in _CENTRAL.items()})

    @property
    def limited(self) -> str:
        """The kind of ε that `max_epsilon` is of."""
        if self.max_epsilon_kind is not None:
            return self.max_epsilon_kind
        return "server/value" if self.central is None else self.central.kind

    def least(self, cohort: int) -> int:
        """Of so many clients, how many must stay or nothing is opened."""
        return max(math.ceil(self.threshold * cohort), self.colluding + 2)

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
                f"{algorithm.name} needs to see single uploads, which privacy {self.privacy!r} "
                f"does not show: use one of {', '.join(catalogue.summable())}."
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

    def config(self) -> dict[str, Any]:
        """The dials as config.json has them."""
        return asdict(self)

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

    def _check_full(self) -> None:
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
        if self.max_epsilon_kind == "model/user":
            raise PlanError(
                "max-epsilon-kind is 'model/user', but cohorts are of fixed size, which is "
                "accounted for one user replaced: use model/user-replaced."
            )


def from_config(config: Mapping[str, Any] | None) -> Privacy:
    """The dials that a config.json has; a run from before there were any was in the clear."""
    return Privacy() if not config else Privacy(**config)
