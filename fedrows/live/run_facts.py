"""What the live page says of a run: its state, its speed, what it spent, who answered."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from fedrows.files.whole import Json
from fedrows.measure.metric_choice import number
from fedrows.runs.status_file import process_alive

WINDOW = 20.0  # seconds over which rounds per second are taken
SILENCE = 60.0  # seconds after which a run that cannot be asked counts as gone
NAMED = 5  # of those who were refused at once
LATEST = 30  # refusals that are listed


class RoundRate:
    """Rounds per second over the last seconds, from what status.json says."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()
        self._process: Any = None

    def __call__(self, status: Mapping[str, Any]) -> float | None:
        """Returns the present speed; None if nothing is known yet."""
        at, when = status.get("round"), number(status.get("time"))
        began, since = number(status.get("began")), status.get("from")
        if not isinstance(at, int) or when is None or began is None or not isinstance(since, int):
            return None
        process = (status.get("pid"), began)
        if process != self._process:
            self._process, self._seen = process, deque([(began, since)])
        if when > self._seen[-1][0]:
            self._seen.append((when, at))
        while len(self._seen) > 2 and self._seen[1][0] < when - WINDOW:
            self._seen.popleft()
        (first, low), (last, high) = self._seen[0], self._seen[-1]
        return (high - low) / (last - first) if last > first and high > low else None


def state_of(
    status: Mapping[str, Any], at: int, rounds: int, measured: int, changed: float
) -> tuple[str, str]:
    """A run's state and what there is to say of it.

    at: its last round. measured: the last round with a line. changed: when its files last did.
    """
    if status.get("failed"):
        return "failed", str(status["failed"])
    if status.get("stopped"):
        return "done", f"Ended early: {status['stopped']}."
    if rounds and at >= rounds and measured >= rounds:
        return "done", ""
    alive = process_alive(status) if status else None
    if alive is None:
        alive = time.time() - max(changed, number(status.get("time")) or 0.0) < SILENCE
    if not alive:
        return "dead", f"Its process has ended after round {at} of {rounds}."
    return ("waiting", str(status["notice"])) if status.get("notice") else ("running", "")


class Refusals:
    """Who was refused or left out in a deployment, from its rounds.jsonl."""

    def __init__(self) -> None:
        self.latest: deque[Json] = deque(maxlen=LATEST)
        self.left_out: Counter[str] = Counter()
        self.down = self.up = 0.0

    def take_in(self, line: Mapping[str, Any]) -> None:
        for why, who in (line.get("refused") or {}).items():
            names = list(dict.fromkeys(map(str, who)))
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            entry = {"round": line.get("round"), "why": why, "who": ", ".join(names[:NAMED]) + more}
            self.latest.append(entry)
        for why, who in (line.get("dropped") or {}).items():
            self.left_out[why] += len(who)
        self.down += number(line.get("bytes_down")) or 0.0
        self.up += number(line.get("bytes_up")) or 0.0


def nodes_of(status: Mapping[str, Any]) -> list[Json]:
    """The nodes of a deployment by name: when each last answered, and what it said."""
    nodes = status.get("nodes")
    if not isinstance(nodes, Mapping):
        return []
    wanted = ("clients", "round", "said", "asked", "answered", "heard")
    return [
        {"name": name, **{key: node.get(key) for key in wanted}}
        for name, node in sorted(nodes.items())
        if isinstance(node, Mapping)
    ]
