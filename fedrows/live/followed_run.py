"""One run that is followed: its folder while it goes, or its file once a study has finished it."""

from __future__ import annotations

import gzip
import json
import shlex
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedrows.errors import RunFolderError
from fedrows.files.whole import Json
from fedrows.live.curve import LiveCurve
from fedrows.live.growing_lines import GrowingLines
from fedrows.live.run_facts import Refusals, RoundRate, nodes_of, state_of
from fedrows.measure.metric_choice import measured, number
from fedrows.measure.summary import display
from fedrows.report.spent import covered, without_private
from fedrows.runs.folder import METRICS, read_config
from fedrows.runs.status_file import read_status

ROUNDS = "rounds.jsonl"  # of a deployment


class FollowedRun:
    """The curves and facts of one run; `facts` is what the page shows beside its curves."""

    def __init__(self, label: str, group: str) -> None:
        self.label, self.group = label, group
        self.home = ""  # the name of the folder that it was found in
        self.curves: dict[str, LiveCurve] = {}
        self.facts: Json = {}
        self._last: Json = {}

    def look(self) -> bool:
        """Reads what is new; returns whether its curves begin anew."""
        return False

    def add(self, lines: Iterable[Json]) -> None:
        for line in lines:
            at = line.get("round")
            if type(at) is not int:
                continue
            for name in measured([line]):
                value = number(line[name])
                assert value is not None
                self.curves.setdefault(name, LiveCurve()).append(at, value)
            self._last = line

    def numbers(self) -> Json:
        """The facts that the last line of metrics has."""
        line = self._last
        buckets = [
            [x.get("low"), x.get("high"), _short(x.get("loss")), _short(x.get("auc"))]
            for x in line.get("buckets") or ()
        ]
        spent = {k: _short(v) for k, v in (line.get("epsilon") or {}).items()}
        numbers = {
            "epsilon": spent,
            "bytes": [_short(line.get("bytes_down")), _short(line.get("bytes_up"))],
            "buckets": buckets,
        }
        return {name: value for name, value in numbers.items() if value and value != [None, None]}


class FollowedFolder(FollowedRun):
    """A run in its folder."""

    def __init__(self, path: Path, config: Json, label: str, group: str, again: str = "") -> None:
        super().__init__(label, group)
        self.path = path
        self._config, self._hidden = config, _is_covered(config)
        self._again = again or _again(path, config)
        self._metrics, self._rounds = GrowingLines(path / METRICS), GrowingLines(path / ROUNDS)
        self._speed, self._refusals = RoundRate(), Refusals()

    def look(self) -> bool:
        lines, anew = self._metrics.read()
        if anew:  # the run went back to its checkpoint, or was begun again
            self.curves, self._last = {}, {}
        if self._hidden:
            lines, _ = without_private(lines, {})
        self.add(lines)
        if "deploy" in self._config:
            rounds, again = self._rounds.read()
            if again:
                self._refusals = Refusals()
            for line in rounds:
                self._refusals.take_in(line)
        self.facts = self._facts(read_status(self.path))
        return anew

    def _facts(self, status: Json) -> Json:
        plan = self._config.get("plan") or {}
        rounds = status.get("rounds") or plan.get("rounds") or 0
        line_round = self._last.get("round", 0)
        at = max(status.get("round") or 0, line_round)
        seen = max(self._metrics.changed, number(status.get("time")) or 0.0)
        state, sentence = state_of(status, at, rounds, line_round, seen)
        speed = self._speed(status)
        if speed is None and (seconds := number(self._last.get("seconds"))):
            speed = line_round / seconds
        facts = {
            "state": state,
            "said": sentence,
            "again": self._again if state in ("dead", "failed") else "",
            "round": at,
            "rounds": rounds,
            "rate": _short(speed),
            "left": _short((rounds - at) / speed) if speed and state == "running" else None,
            "seen": round(seen, 2),
            "hidden": self._hidden,
            "nodes": nodes_of(status),
            "deployed": "deploy" in self._config,
            "refused": list(self._refusals.latest),
            "rejected": status.get("rejected") or {},
            "left_out": dict(self._refusals.left_out.most_common(12)),
        }
        if not self._hidden:
            facts["moved"] = self._moved(status)
        return {k: v for k, v in (facts | self.numbers()).items() if v not in (None, "", [], {})}

    def _moved(self, status: Json) -> list[float | None] | None:
        """Bytes in all, down and up; of a simulation since its process began."""
        own = self._refusals
        down, up = own.down or number(status.get("bytes_down")), own.up or status.get("bytes_up")
        return [_short(down), _short(up)] if down or up else None


class FinishedFile(FollowedRun):
    """A run of a study or a search: one file, which is there when the run is finished."""

    def __init__(self, path: Path) -> None:
        try:
            content = json.loads(gzip.decompress(path.read_bytes()))
            setting, lines = content.get("setting") or _tried(content), content["lines"]
            name, seed = display(setting["algorithm"]), content["seed"]
            seconds = number(content.get("seconds"))
            rounds = max((line["round"] for line in lines), default=0)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise RunFolderError(f"{path} is cut short or no run of a study.") from error
        group = f"{name} {setting.get('label') or ''}".strip()
        super().__init__(f"{group} seed {seed}", group)
        self.add(lines)
        self.facts = {
            "state": "done",
            "round": rounds,
            "rounds": rounds,
            "rate": _short(rounds / seconds) if seconds else None,
            "seen": round(path.stat().st_mtime, 2),
            **self.numbers(),
        }


def _tried(content: Json) -> Json:
    """The algorithm and the label of a trial of a search."""
    values = " ".join(f"{name} {value}" for name, value in content["values"].items())
    return {
        "algorithm": content["algorithm"],
        "label": f"{values}, {content['rounds']} rounds",
    }


def open_run(path: Path, again: str = "") -> FollowedFolder:
    """The run of a folder; again: the command that goes on with it, if it is not `fedrows run`."""
    config = read_config(path)
    chosen = config.get("algorithm")
    name = display(str(chosen.get("name", ""))) if isinstance(chosen, Mapping) else path.name
    plan = config.get("plan") or {}
    return FollowedFolder(path, config, f"{name} seed {plan.get('seed', 0)}", name, again)


def _is_covered(config: Json) -> bool:
    """Whether exact metrics are not to be shown, as in the report of a run under privacy full."""
    deploy = config.get("deploy")
    deployed = isinstance(deploy, Mapping) and deploy.get("privacy") == "full"
    return covered(config) or deployed


def _again(path: Path, config: Json) -> str:
    if "deploy" in config:
        return "fedrows deploy run PROJECT, with the same `out`"
    return f"fedrows run --resume {shlex.quote(str(path))}"


def _short(value: Any) -> float | None:
    known = number(value)
    return None if known is None else float(f"{known:.5g}")
