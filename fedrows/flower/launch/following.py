"""A run's rounds in words, as they are finished: what `fedrows deploy run` shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedrows.flower.launch.control import ControlClient, ControlError

NAMED = 6  # nodes that a line names


class RoundLines:
    """Says a line for every round that is new, and who is lost; returns how the run stands."""

    def __init__(self, control: ControlClient, say: Callable[[str], None]) -> None:
        self._control, self._say = control, say
        self._shown = 0

    def __call__(self, run: int) -> str:
        try:
            progresses = self._control.progress(run)
        except ControlError:  # who waits for the run says so
            return ""
        if not progresses:
            return ""
        (progress, *_) = progresses
        recent = [x for x in progress.get("recent", ()) if x["round"] > self._shown]
        for line in recent:
            last = line["round"] == progress.get("round")
            self._say(in_words(line, progress["rounds"], progress.get("left") if last else None))
            self._shown = line["round"]
        return str(progress.get("status", ""))


def in_words(line: Mapping[str, Any], rounds: int, left: float | None = None) -> str:
    """One round: who answered, who is away, the loss if it was evaluated, seconds, time left."""
    parts = [f"round {line['round']:>{len(str(rounds))}}/{rounds}"]
    parts.append(f"{line['answered']} of {line['asked']} clients")
    if line["nodes"]:
        parts.append(f"of {_names(line['nodes'])}")
    if line["away"]:
        parts.append(f"away: {_names([f'{n} for {span(s)}' for n, s in line['away'].items()])}")
    if line["rejected"]:
        parts.append(f"refused: {', '.join(f'{n} {why}' for why, n in line['rejected'].items())}")
    if buffer := line.get("buffer"):
        parts.append(f"{ages_in_words(buffer)}, {sum(buffer['under_way'].values())} under way")
    if line["loss"] is not None:
        parts.append(f"loss {line['loss']:.4f}")
    parts.append(f"{line['seconds']:.1f} s")
    if left:
        parts.append(f"about {span(left)} left")
    return "  ".join(parts)


def ages_in_words(buffer: Mapping[str, Any]) -> str:
    """How old the updates of an asynchronous step were."""
    low, high = min(buffer["ages"], default=0), max(buffer["ages"], default=0)
    return f"age {low}" if low == high else f"ages {low} to {high}"


def span(seconds: float) -> str:
    """A length of time in words: 45 s, 12 min, 3 h 20 min, 2 days."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes / 1440:.0f} days"


def _names(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")
