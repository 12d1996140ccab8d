"""A node's policy: what the node's operator lets a run ask of it.

The policy is a TOML file on the node (`fedrows deploy policy` writes one). Nothing of it comes from
a run's configuration or from a message. A run is compared with it before the node answers anything,
enrolment included. A run that asks for less privacy is declined: the server learns that the node
declines, and the node's own log and state folder say why.
"""

from __future__ import annotations

import hashlib
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError, PlanError
from fedrows.files.whole import reason
from fedrows.options import check, kind, option, options
from fedrows.privacy.options import MODES, Privacy

ORDER = tuple(MODES)  # from the least private mode to the most private one
WEIGHTINGS = ("uniform", "examples")  # the least telling one first
_MOST = 10**9


class PolicyError(FedrowsError):
    """A run or a message that a node's policy does not allow, or a policy that cannot be read."""


@dataclass(frozen=True)
class NodePolicy:
    """What a run must keep to. The defaults are those of a node that knows its peers' keys."""

    privacy: str = option("index", "The least private mode of a run.", choices=ORDER)
    index_epsilon: float | None = option(
        1.0, "Largest ε of a client's answers in one round; none: any, or no noise.", above=0
    )
    index_epsilon_for_ever: float | None = option(
        4.0, "Largest ε of all such answers together; none: any, or no noise.", above=0
    )
    heat_epsilon: float | None = option(
        2.0, "Largest ε of a coin where heat is counted with coins; none: any.", above=0
    )
    min_contributors: int = option(
        2, "Fewest nodes that must hold a row before it is opened.", least=1
    )
    noise: float = option(
        0.5, "Least noise inside a sum, and on heat, in units of its sensitivity.", above=0
    )
    user_epsilon: float | None = option(
        20.0,
        "Largest ε that a client spends in all runs' noisy sums, at δ = 1e-6; none: any.",
        above=0,
    )
    openers: int = option(2, "Fewest nodes that must all agree to open a row.", least=1)
    colluding: int = option(
        1,
        "A sum must stay secret even if this many nodes collude with the server, or more.",
        least=0,
    )
    threshold: float = option(
        2 / 3, "Smallest share of a sum's nodes that must stay to the end.", above=0, most=1
    )
    nodes_in_sum: int = option(3, "Fewest nodes that a sum may be opened with.", least=2)
    heat_counts: int = option(
        3, "How often heat may be counted while this node's data stay the same.", least=1
    )
    label_counts: bool = option(
        True, "Whether labels may be counted for a counted start, as often as heat may be."
    )
    rounds_per_day: int = option(5000, "Most rounds that the node begins in a day (UTC).", least=1)
    weighting: str = option(
        "uniform",
        "What a private run may weigh clients by; examples shows the server how many each has.",
        choices=WEIGHTINGS,
    )
    task: str | None = option(
        None, "Name of the task, as the node's own app has it; none: any task."
    )
    peers: str | None = option(
        None, "SHA-256 of the list of peers that the policy was written for; none: any list."
    )

    def __post_init__(self) -> None:
        check(self)

    @classmethod
    def open(cls) -> NodePolicy:
        """The policy of a node that takes part in anything, in the clear too."""
        return cls(
            "clear", None, None, None, min_contributors=1, noise=1e-300, user_epsilon=None,
            openers=1, colluding=0, threshold=1e-9, nodes_in_sum=2,
            heat_counts=_MOST, rounds_per_day=_MOST, weighting="examples",
        )  # fmt: skip

    def check(self, privacy: Privacy, task: str, peers: Path | None) -> None:
        """Raises a PolicyError if a run of this task may not ask what it does.

        peers: the node's own list of peers.
        """
        if self.task is not None and task != self.task:
            raise PolicyError(
                f"The policy is for the task {self.task!r}, but this node's app is of {task!r}: "
                "write a policy for it with `fedrows deploy policy`."
            )
        if self.peers is not None and (peers is None or digest_of(peers) != self.peers):
            raise PolicyError(
                f"The policy is for another federation, whose list of peers is not {peers}: write "
                "a policy for this one with `fedrows deploy policy`."
            )
        if ORDER.index(privacy.privacy) < ORDER.index(self.privacy):
            raise _less("privacy", privacy.privacy, f"at least {self.privacy}")
        if privacy.secret_sums:
            self._check_sums(privacy)
        if privacy.heat in ("randomized-response", "hashed"):
            _at_most("heat-epsilon", privacy.heat_epsilon, self.heat_epsilon)

    def check_weighting(self, privacy: Privacy, weighting: str) -> None:
        """Raises a PolicyError if a private run asks for numbers of examples that stay here.

        A run in the clear shows every example's rows, so there `privacy` decides alone.
        """
        if privacy.secret_sums and WEIGHTINGS.index(weighting) > WEIGHTINGS.index(self.weighting):
            raise _less("weighting", weighting, self.weighting)

    def check_start(self, start: str) -> None:
        """Raises a PolicyError if a run starts from counts of labels, and none may be made."""
        if start == "counted" and not self.label_counts:
            raise PolicyError(
                "The run's start is counted, but the policy's label-counts is false: the node "
                "takes no part in the run."
            )

    def _check_sums(self, privacy: Privacy) -> None:
        if privacy.secure_sum != "real":
            raise _less("secure-sum", privacy.secure_sum, "real")
        if privacy.coins != "value" and self.index_epsilon is not None:
            raise _less("coins", privacy.coins, "value")  # the ε of a value's rows would add up
        _at_most("index-epsilon", privacy.index_epsilon, self.index_epsilon)
        _at_most(
            "index-epsilon-for-ever", privacy.index_epsilon_for_ever, self.index_epsilon_for_ever
        )
        if privacy.mechanism is not None:
            counted = math.sqrt(privacy.mechanism.counted_share)
            model, heat = privacy.mechanism.client_noise or 0.0, privacy.dp_heat_noise
            for name, noise in (("dp-noise", model), ("dp-heat-noise", heat)):
                if noise * counted < self.noise:
                    raise _less(name, noise, f"at least {self.noise / counted:.4g}")
        for name in ("min_contributors", "openers", "colluding", "threshold"):
            if name == "min_contributors" and privacy.noise_in_sum:
                continue  # every row is opened, with the noise of all nodes on it
            asked, least = getattr(privacy, name), getattr(self, name)
            if asked < least - 1e-9:
                raise _less(name.replace("_", "-"), asked, f"at least {least:.4g}")

    def check_sum(self, threshold: int) -> None:
        """Raises a PolicyError if a sum could be opened with too few nodes."""
        if threshold < self.nodes_in_sum:
            raise PolicyError(
                f"A sum could be opened with {threshold} nodes, but the policy's nodes-in-sum is "
                f"{self.nodes_in_sum}: this node takes no part in it."
            )

    def text(self) -> str:
        """The file, with a line of comment above every entry."""
        lines = ["# The policy of a node: what a run may ask of it. fedrows deploy node --policy"]
        for item in options(type(self)):
            value = getattr(self, item.name)
            lines += ["", f"# {item.metadata['help']}"]
            if item.metadata["choices"]:
                lines[-1] += f" One of {', '.join(item.metadata['choices'])}."
            lines.append(f"{item.name.replace('_', '-')} = {_toml(value)}")
        return "\n".join(lines) + "\n"

    def lines(self) -> list[str]:
        """The entries in one line each, for people."""
        names = [item.name for item in options(type(self))]
        return [f"{name.replace('_', '-')}: {_shown(getattr(self, name))}" for name in names]


def read_policy(path: Path) -> NodePolicy:
    """The policy in a file; what the file does not say is as strict as by default."""
    try:
        entries = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise PolicyError(
            f"The policy {path} cannot be read ({reason(error)}): write one with `fedrows deploy "
            f"policy --out {path}`."
        ) from None
    except ValueError as error:
        raise PolicyError(f"The policy {path} is not valid TOML ({error}): mend it.") from None
    known = {item.name.replace("_", "-"): item for item in options(NodePolicy)}
    values: dict[str, Any] = {}
    for name, value in entries.items():
        if name not in known:
            raise PolicyError(
                f"The policy {path} has an entry {name!r}, which means nothing: leave it out, or "
                f"use one of {', '.join(known)}."
            )
        item = known[name]
        values[item.name] = None if value == "none" and kind(NodePolicy, item)[1] else value
    try:
        return NodePolicy(**values)
    except PlanError as error:
        raise PolicyError(f"In the policy {path} {error}") from None


def digest_of(peers: Path) -> str:
    """The SHA-256 of a list of peers, by which a policy knows the federation."""
    try:
        return hashlib.sha256(peers.read_bytes()).hexdigest()
    except OSError as error:
        raise PolicyError(f"The list of peers {peers} cannot be read ({reason(error)}).") from None


def _at_most(name: str, asked: float | None, most: float | None) -> None:
    if most is not None and (asked is None or asked > most):
        raise _less(name, "none" if asked is None else asked, f"at most {most:.4g}")


def _less(name: str, asked: object, wanted: str) -> PolicyError:
    return PolicyError(
        f"The run's {name} is {asked}, but the policy of this node asks for {wanted}: the node "
        "takes no part in the run."
    )


def _toml(value: Any) -> str:
    return json.dumps("none" if value is None else value, ensure_ascii=False)


def _shown(value: Any) -> str:
    return "none" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
