"""What runs have used of a node's policy so far: rounds of a day, counts of heat, and ε.

    STATE/policy-use.json    {"day": …, "rounds": …, "heat": {version of the data: counts},
                              "spent": {client: ρ}}

ρ is what a client has spent in noisy sums (`concentrated_epsilon`), whatever the server says of it.

A use is on the disk before the answer that it pays for leaves the node, so neither a killed process
nor another run begins anew. Two processes that answer at once wait for each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrows.files.whole import as_json, write_private
from fedrows.flower.node.policy import NodePolicy, PolicyError
from fedrows.flower.node.state import locked
from fedrows.privacy.discrete_gaussian import concentrated_epsilon

FILE = "policy-use.json"
_DAY = 86_400  # seconds
_DELTA = 1e-6  # at which user-epsilon is meant
_VERSIONS = 1000  # versions of the data that are remembered


class PolicyUse:
    """How much of a policy is used up, in a node's state folder."""

    def __init__(self, folder: Path, policy: NodePolicy) -> None:
        self._path, self._policy = folder / FILE, policy

    def begin_round_(self) -> None:
        """Takes a round of the day, or raises a PolicyError if none is left."""
        with self._changing() as use:
            today = int(time.time()) // _DAY
            if today > use["day"]:  # a clock that was set back gives no rounds back
                use["day"], use["rounds"] = today, 0
            if use["rounds"] >= self._policy.rounds_per_day:
                raise PolicyError(
                    f"The policy's rounds-per-day is {self._policy.rounds_per_day}, and so many "
                    "were begun today: this node takes part again tomorrow."
                )
            use["rounds"] += 1

    def count_heat_(self, version: str) -> None:
        """Takes a count of heat over a version of the data, or raises a PolicyError."""
        with self._changing() as use:
            counts = use["heat"].pop(version, 0)
            if counts >= self._policy.heat_counts:
                raise PolicyError(
                    f"The policy's heat-counts is {self._policy.heat_counts}, and heat was counted "
                    "so often over the data that this node has: raise heat-counts, or submit the "
                    "run with the `out` of an earlier one, for each new `out` is a new count."
                )
            use["heat"][version] = counts + 1
            for oldest in list(use["heat"])[:-_VERSIONS]:
                del use["heat"][oldest]

    def spend_(self, clients: Iterable[str], rho: float) -> None:
        """Takes ρ of each of some clients, or raises a PolicyError if one has not so much left."""
        most = self._policy.user_epsilon
        with self._changing() as use:
            for client in clients:
                spent = use["spent"].get(client, 0.0) + rho
                if most is not None and concentrated_epsilon(spent, _DELTA) > most:
                    raise PolicyError(
                        f"The policy's user-epsilon is {most:g}, and the client {client} would "
                        "spend more in this sum: the node takes no part in it."
                    )
                use["spent"][client] = spent

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """What is used, to be changed; it is on the disk when the block ends without an error."""
        with locked(self._path.with_suffix(".lock")):
            use = self._read()
            yield use
            write_private(self._path, as_json(use))

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"day": 0, "rounds": 0, "heat": {}, "spent": {}}
        try:
            use = json.loads(self._path.read_bytes())
            day, rounds = int(use["day"]), int(use["rounds"])
            heat = {str(version): int(count) for version, count in use["heat"].items()}
            spent = {str(client): float(rho) for client, rho in use["spent"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            raise PolicyError(
                f"{self._path}, which says how much of the policy is used, is damaged: restore it, "
                "or delete it to allow everything once more."
            ) from None
        return {"day": day, "rounds": rounds, "heat": heat, "spent": spent}
