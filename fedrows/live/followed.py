"""All that a live page follows: a snapshot for a browser that comes, and what is new afterwards."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from fedrows.files.whole import Json
from fedrows.live.followed_path import DAMAGE, FollowedPath
from fedrows.live.followed_run import FollowedRun
from fedrows.measure.metric_choice import about
from fedrows.report.line_styles import assign

POINTS = 30_000  # that a page is sent in all, so that it stays below a megabyte
LEAST, MOST = 8, 600  # points of one curve
DAMAGED = "Something else than a run writes has changed the files of its folder in"


class Followed:
    """Folders, their runs, and what viewers know of them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._folders = [FollowedPath(path) for path in paths]
        self._ids: dict[str, int] = {}  # path of a run → its number on the page
        self._runs: dict[int, FollowedRun] = {}
        self._told: dict[int, Json] = {}  # facts as viewers know them
        self._about: Json = {}  # folders, groups and titles, likewise
        self.version = 0  # grows with every change

    def look(self) -> Json | None:
        """Reads what is new; returns what viewers must be told, None if nothing has changed."""
        for folder in self._folders:
            folder.look()
        paths = {key: run for folder in self._folders for key, run in folder.runs.items()}
        now = {self._ids.setdefault(key, len(self._ids)): run for key, run in paths.items()}
        gone = [number for number in self._runs if number not in now]
        for number in gone:
            del self._told[number]
        runs = []
        most = self._most(now)
        for number, run in now.items():
            new = self._runs.get(number) is not run
            try:
                anew = run.look() or new
            except DAMAGE:  # one run's files may not take the page from the others
                anew, run.facts = new, {"state": "failed", "said": f"{DAMAGED} {run.home}."}
            changed = self._changed(number, run, anew, most)
            if changed is not None:
                runs.append(changed)
        self._runs = now
        update: Json = {key: x for key, x in self._said().items() if self._about.get(key) != x}
        self._about |= update
        if runs:
            update["runs"] = runs
        if gone:
            update["gone"] = gone
        if not update:
            return None
        self.version += 1
        return {"now": time.time(), **update}

    def snapshot(self) -> Json:
        """Everything, with curves of few points."""
        most = self._most(self._runs)
        runs = [
            {
                "id": number,
                **self._names(run),
                "facts": run.facts,
                "curves": {name: curve.points(most) for name, curve in run.curves.items()},
            }
            for number, run in self._runs.items()
        ]
        return {"now": time.time(), "most": most, **self._about, "runs": runs}

    def _changed(self, number: int, run: FollowedRun, anew: bool, most: int) -> Json | None:
        """What is new of a run, None if nothing is; facts that went are None."""
        sent = {} if anew else self._told.get(number, {})
        facts = {key: x for key, x in run.facts.items() if sent.get(key) != x}
        facts |= {key: None for key in sent if key not in run.facts}
        self._told[number] = run.facts
        new = {name: news for name, x in run.curves.items() if (news := x.news(most)) is not None}
        if anew:
            curves = {name: curve.points(most) for name, curve in run.curves.items()}
            return {"id": number, **self._names(run), "facts": facts, "curves": curves}
        if not facts and not new:
            return None
        return {
            "id": number,
            **({"facts": facts} if facts else {}),
            **({"add": new} if new else {}),
        }

    def _names(self, run: FollowedRun) -> Json:
        return {"label": self._name(run.label, run), "group": self._name(run.group, run)}

    def _name(self, text: str, run: FollowedRun) -> str:
        """A run's name, with that of its folder where there are several."""
        if len(self._folders) == 1 and self._folders[0].facts.get("kind") != "several":
            return text
        return f"{text} ({run.home})"

    def _said(self) -> Json:
        """The folders, the styles of groups of curves, and the titles of metrics."""
        names = list(dict.fromkeys(self._name(run.group, run) for run in self._runs.values()))
        metrics = dict.fromkeys(name for run in self._runs.values() for name in run.curves)
        return {
            "folders": [folder.facts for folder in self._folders],
            "groups": self._styles(names),
            "metrics": {name: list(about(name)) for name in metrics},
        }

    def _styles(self, names: list[str]) -> dict[str, str]:
        """The style of each group; looked up again only if there are other groups."""
        known: dict[str, str] = self._about.get("groups", {})
        return known if list(known) == names else assign(names)

    @staticmethod
    def _most(runs: dict[int, FollowedRun]) -> int:
        """How many points a curve may have, so that all of them together are not too many."""
        curves = sum(max(len(run.curves), 1) for run in runs.values())
        return min(MOST, max(LEAST, POINTS // max(curves, 1)))
