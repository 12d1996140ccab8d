"""What a private run has spent, as a table: the ε of each kind, against whom, for what."""

from __future__ import annotations

from typing import Any

from fedrows.measure.summary import Summary, display, show_epsilon

MEANING = {
    "server/value": ("the server, at one client's messages", "one raw value of a client"),
    "server/set": ("the server, at one client's messages", "everything that a client holds"),
    "server/user-replaced": ("the server, at noisy sums", "one user, replaced by another"),
    "totals/value": ("whoever sees exact totals of secure sums", "one raw value of a client"),
    "model/user": ("whoever sees the model", "one user, added or removed"),
    "model/user-replaced": ("whoever sees the model", "one user, replaced by another"),
}


def table(summary: Summary, config: dict[str, Any]) -> dict[str, Any] | None:
    """The table and the mode; None for a run in the clear."""
    rows = [
        [kind, *MEANING.get(kind, ("", "")), display(entry["name"]), show_epsilon(spent)]
        for entry in summary["algorithms"]
        for kind, spent in (entry.get("epsilon") or {}).items()
    ]
    if not rows:
        return None
    dials = config.get("privacy") or {}
    return {
        "mode": dials.get("privacy", ""),
        "delta": dials.get("delta"),
        "columns": ["kind", "against", "of", "algorithm", "ε"],
        "rows": rows,
    }


SHOWN = ("algorithm", "seed", "round", "epsilon")  # of a line of metrics that ε covers


def covered(config: dict[str, Any]) -> bool:
    """Whether a run's model is private, so that its exact metrics are not to be given away."""
    return (config.get("privacy") or {}).get("privacy") == "full"


def without_private(
    lines: list[dict[str, Any]], data: dict[str, Any]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Metrics and facts without what no ε covers: losses, histograms, bytes, times."""
    shown = [{key: line[key] for key in SHOWN if key in line} for line in lines]
    for line in shown:
        spent = (line.get("epsilon") or {}).items()
        line["epsilon"] = {kind: x for kind, x in spent if kind.startswith("model/")}
    return shown, {key: data[key] for key in ("clients", "bytes_full_model") if key in data}
