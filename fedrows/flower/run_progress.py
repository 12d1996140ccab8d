"""How a deployed run stands, for operators: its round, its rate, its nodes, its last event."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fedrows.flower.deployment import Deployment
from fedrows.flower.launch.operator_folder import OperatorFolder
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.measure.metric_choice import measured
from fedrows.watch.observer import BufferReport, RoundReport, RunInfo

SHOWN = 30  # rounds that are told of, so that who asks every few seconds misses none


class ProgressWriter:
    """An observer that keeps the progress of a deployment in the operator's folder."""

    def __init__(self, folder: OperatorFolder, run: int, deployment: Deployment) -> None:
        self._folder, self._run, self._deployment = folder, run, deployment
        self._recent: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self._ends: deque[tuple[float, int]] = deque(maxlen=SHOWN)  # when a round ended
        self._loss: dict[int, float] = {}
        self._about: dict[str, Any] = {"run": str(run), "status": "starting"}

    def begin(self, run: RunInfo) -> None:
        names = {
            kind: str((run.config.get(kind) or {}).get("name", ""))
            for kind in ("task", "algorithm")
        }
        self._ends.append((time.time(), run.at))
        self._about |= {
            **names,
            "folder": str(run.folder) if run.folder else None,
            "status": "running",
            "began": time.time(),
            "round": run.at,
            "rounds": run.rounds,
            "metrics": {},
            "waiting": "",
        }
        self._event("begin", {})

    def round(self, report: RoundReport) -> None:
        self._ends.append((time.time(), report.round))
        away = {n: round(x.away, 1) for n, x in report.nodes.items() if x.away is not None}
        self._recent.append(
            {
                "round": report.round,
                "asked": report.asked,
                "answered": report.answered,
                "dropped": report.dropped,
                "rejected": dict(report.rejected),
                "nodes": [name for name in report.nodes if name not in away],
                "away": away,
                "loss": self._loss.pop(report.round, None),
                "seconds": round(self._ends[-1][0] - self._ends[-2][0], 3),
                **_buffer_facts(report.buffer),
            }
        )
        self._about |= {"round": report.round, "waiting": ""}
        self._event("round", {"round": report.round})

    def measured(self, line: Mapping[str, Any]) -> None:
        self._about["metrics"] = {name: line.get(name) for name in measured([line])}
        loss = line.get("test_loss", line.get("train_loss"))
        if loss is not None:
            self._loss = {line["round"]: loss}

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._event(name, fields)

    def end(self, done: bool) -> None:
        self._about["status"] = "finished" if done else "stopped"
        self._event("end" if done else "stopped", {})

    def close(self) -> None:
        """Nothing is left open."""

    def failed(self, why: str) -> None:
        """The run has ended with an error."""
        self._about["status"] = "failed"
        self._event("failed", {"why": why})

    def waits(self, sentence: str) -> None:
        """The run waits for something."""
        self._about["waiting"] = sentence
        self._write()

    def _event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._about["last_event"] = {"event": name, "time": time.time(), **fields}
        self._write()

    def _write(self) -> None:
        rate = self._rate()
        left = self._about.get("rounds", 0) - self._about.get("round", 0)
        fleet, schedule = self._deployment.fleet, self._deployment.schedule
        self._about |= {
            "updated": time.time(),
            "rate": rate,
            "left": left / rate if rate else None,
            "nodes": _nodes_now(fleet),
            "turned_away": {str(node): why for node, why in fleet.turned_away.items()},
            "recent": list(self._recent),
            **_buffer_facts(None if schedule is None else schedule.now()),
        }
        self._folder.write_progress(self._run, self._about)

    def _rate(self) -> float | None:
        """Rounds per second, of the last rounds."""
        (since, first), (until, last) = self._ends[0], self._ends[-1]
        return (last - first) / (until - since) if last > first and until > since else None


def _buffer_facts(buffer: BufferReport | None) -> dict[str, Any]:
    """A buffer as an operator is told of it; nothing in a run that has none."""
    return {} if buffer is None else {"buffer": asdict(buffer)}


def _nodes_now(fleet: FlowerFleet) -> dict[str, Any]:
    """How the nodes of a fleet stand, as an operator is told."""
    addresses = fleet.registry.addresses()
    return {
        name: {"address": str(addresses.get(name, 0)), **asdict(report)}
        for name, report in fleet.records.reports().items()
    }
