"""What operators and the runs of a SuperLink tell each other, as files of one private folder.

    RUN.json         how a run stands, written by its ServerApp after every round
    RUN.stop         the operator asks the run to end after its present round
    revoked.json     the ids of nodes whose keys were revoked
    watching.json    how the next run is to be watched

The gate reads and writes these files for operators who show the control token. The ServerApp is a
process beside the SuperLink, and finds the folder by the environment variable FEDROWS_OPERATOR.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.files.whole import as_json, make_private, write_private

FOLDER = "FEDROWS_OPERATOR"  # the environment variable with this folder
EVENTS = "FEDROWS_EVENTS"  # the one with the file that every event is added to
KEPT = 20  # runs whose progress is kept
WATCHING = ("metrics_port", "metrics_host")  # what an operator may set for the next run


@dataclass(frozen=True)
class OperatorFolder:
    """The folder; a path of None stands for a SuperLink that has none, and everything is empty."""

    path: Path | None

    @classmethod
    def named(cls, text: str | None) -> OperatorFolder:
        """The folder that an environment variable names, if it names one."""
        return cls(Path(text) if text else None)

    def write_progress(self, run: int, progress: Mapping[str, Any]) -> None:
        """Keeps how a run stands; the oldest of many runs are forgotten."""
        if self.path is None:
            return
        make_private(self.path)
        new = not (self.path / f"{run}.json").exists()
        write_private(self.path / f"{run}.json", as_json(dict(progress)))
        for old in self._runs()[KEPT:] if new else ():
            for file in (old, old.with_suffix(".stop")):
                file.unlink(missing_ok=True)

    def progress(self) -> list[dict[str, Any]]:
        """How the last runs stand, the newest first."""
        contents = (self._read(path, dict) for path in self._runs())
        return [one for one in contents if one]

    def ask_to_stop(self, run: int) -> None:
        """Asks a run to end after its present round."""
        if self.path is not None:
            make_private(self.path)
            write_private(self.path / f"{run}.stop", b"")

    def is_to_stop(self, run: int) -> bool:
        """Whether the operator asks the run to end."""
        return self.path is not None and (self.path / f"{run}.stop").exists()

    def revoke(self, node: int) -> None:
        """Notes that runs are to go on without a node."""
        if self.path is not None:
            make_private(self.path)
            nodes = sorted(self.revoked() | {node})
            write_private(self.path / "revoked.json", as_json([str(one) for one in nodes]))

    def revoked(self) -> set[int]:
        """The ids of the nodes whose keys were revoked."""
        listed = self._read(self.path / "revoked.json", list) if self.path else None
        return {int(one) for one in listed or ()}

    def set_watching(self, settings: Mapping[str, Any]) -> None:
        """Keeps how the next run is to be watched."""
        if self.path is not None:
            make_private(self.path)
            write_private(self.path / "watching.json", as_json(dict(settings)))

    def watching(self) -> dict[str, Any]:
        """How the next run is to be watched, beside what its own configuration says."""
        content = self._read(self.path / "watching.json", dict) if self.path else None
        return {name: value for name, value in (content or {}).items() if name in WATCHING}

    def _runs(self) -> list[Path]:
        """The files of runs, the newest first."""
        if self.path is None:
            return []
        files = [path for path in self.path.glob("*.json") if path.stem.isdigit()]
        return sorted(files, key=_changed, reverse=True)

    @staticmethod
    def _read(path: Path, kind: type) -> Any:
        with contextlib.suppress(OSError, ValueError):
            value = json.loads(path.read_bytes())
            return value if isinstance(value, kind) else None
        return None


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0
