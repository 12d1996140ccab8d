"""A folder that is followed: a run, a comparison, a study, a search, or a folder of these."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from fedrows.errors import RunFolderError
from fedrows.files.whole import Json
from fedrows.live.followed_run import FinishedFile, FollowedRun, open_run
from fedrows.runs.folder import CONFIG, RUNS, read_config
from fedrows.runs.status_file import process_alive, read_status

FILE_END = ".json.gz"  # of a finished run of a study
# What values of another kind than a run writes lead to.
DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
WAITING = "waiting"  # a folder that is not there yet, or has nothing in it


class FollowedPath:
    """What a folder has so far. `runs` are its runs by path, `facts` what is said of the whole."""

    def __init__(self, path: Path, nested: bool = False) -> None:
        self.path, self._nested = path, nested
        self.runs: dict[str, FollowedRun] = {}
        self.facts: Json = {}
        self._config: Json = {}
        self._written: dict[str, int] = {}  # path of a run → when its config was written
        self._inside: dict[str, FollowedPath] = {}  # of a folder of run folders
        self._damaged: dict[str, int] = {}  # files that could not be read → their size

    def look(self) -> None:
        """Finds runs that are new, and forgets those that are gone; does not read the runs."""
        kind = self._kind()
        facts: Json = {"path": str(self.path), "kind": kind, "said": "", "task": self._task(kind)}
        if kind == "run":
            self._keep_folder(self.path)
            self.runs = {key: run for key, run in self.runs.items() if key == str(self.path)}
            if not self.runs:
                facts["said"] = f"{self.path / CONFIG} is not what a run has written: restore it."
        elif kind == "compare":
            facts |= self._look_at_comparison()
        elif kind == "study":
            facts |= self._look_at_study()
        elif kind == "several":
            self._look_inside()
        elif kind == WAITING:
            self.runs = {}
            facts["said"] = "The folder is not there yet, or is empty: waiting for a run."
        else:
            self.runs = {}
            facts["said"] = no_run(self.path)
        self.facts = facts

    def _kind(self) -> str:
        """What the folder is by now; "" for a folder that no run has written."""
        if not self.path.is_dir():
            return "" if self.path.exists() else WAITING
        if (self.path / CONFIG).exists():
            try:
                self._config = read_config(self.path)
            except RunFolderError:
                return ""
            kind = str(self._config["kind"])
            return {"compare": kind, "tune": "study"}.get(kind, "run")
        names = os.listdir(self.path)
        if not [name for name in names if not name.startswith(".")]:
            return WAITING
        if RUNS in names and _has_files(self.path / RUNS):
            return "study"
        if "of" in read_status(self.path) or _is_new_study(self.path, names):
            return "study"
        if not self._nested and any((self.path / name / CONFIG).exists() for name in names):
            return "several"
        return ""

    def _task(self, kind: str) -> str:
        """The name of the task of a run or a comparison."""
        task = self._config.get("task") if kind in ("run", "compare") else None
        return str(task.get("name", "")) if isinstance(task, Mapping) else ""

    def _keep_folder(self, path: Path, again: str = "") -> None:
        """Opens a run folder that is new, or whose config was written anew."""
        key = str(path)
        try:
            written = (path / CONFIG).stat().st_mtime_ns
            if self._written.get(key) != written:
                self.runs[key] = open_run(path, again)
                self.runs[key].home = self.path.resolve().name
                self._written[key] = written
        except (OSError, RunFolderError, *DAMAGE):
            self.runs.pop(key, None)
            self._written.pop(key, None)

    def _look_at_comparison(self) -> Json:
        again = f"fedrows compare --resume {shlex.quote(str(self.path))}"
        folders = _folders(self.path / RUNS)
        for path in folders:
            self._keep_folder(path, again=again)
        self._keep_only(folders)
        wanted = [self._config.get(key) for key in ("algorithms", "seeds")]
        counts = [len(x) for x in wanted if isinstance(x, list)]
        return {"of": counts[0] * counts[1] if len(counts) == 2 else len(self.runs)}

    def _look_at_study(self) -> Json:
        folder = self.path / RUNS
        names = sorted(os.listdir(folder)) if folder.is_dir() else []
        for path in (folder / name for name in names if name.endswith(FILE_END)):
            key = str(path)
            if key in self.runs:
                continue
            try:
                size = path.stat().st_size
                if self._damaged.get(key) != size:
                    self._damaged[key] = size
                    self.runs[key] = FinishedFile(path)
                    self.runs[key].home = self.path.resolve().name
            except (OSError, RunFolderError, *DAMAGE):
                continue
        self._keep_only([folder / name for name in names])
        status = read_status(self.path)
        facts: Json = {"of": status.get("of") or len(self.runs)}
        if damaged := [key for key in self._damaged if key not in self.runs]:
            facts["said"] = f"{len(damaged)} files are cut short or no runs, such as {damaged[0]}."
        if status and process_alive(status) is False and status.get("done") != status.get("of"):
            done = f"{status.get('done')} of {status.get('of')}"
            facts["said"] = f"Its process has ended with {done} runs made: start it again to go on."
        elif isinstance(status.get("running"), Mapping):
            facts["running"] = status["running"]
        return facts

    def _look_inside(self) -> None:
        folders = _folders(self.path)
        for path in folders:
            inside = self._inside.setdefault(str(path), FollowedPath(path, nested=True))
            inside.look()
        self._inside = {str(path): self._inside[str(path)] for path in folders}
        self.runs = {
            key: run for followed in self._inside.values() for key, run in followed.runs.items()
        }

    def _keep_only(self, paths: list[Path]) -> None:
        present = set(map(str, paths))
        self.runs = {key: run for key, run in self.runs.items() if key in present}


def check(path: Path) -> None:
    """Raises a RunFolderError for what can be seen already to be no run."""
    followed = FollowedPath(path)
    followed.look()
    if followed.facts["kind"] == "":
        raise RunFolderError(no_run(path))


def no_run(path: Path) -> str:
    """The sentence for a folder that no run has written."""
    return (
        f"{path} is not the folder of a run, a comparison or a study, and has none in it: name one "
        "that fedrows writes."
    )


def _folders(path: Path) -> list[Path]:
    try:
        return sorted(file.parent for file in path.glob(f"*/{CONFIG}"))
    except OSError:
        return []


def _has_files(path: Path) -> bool:
    try:
        return any(name.endswith(FILE_END) for name in os.listdir(path))
    except OSError:
        return False


def _is_new_study(path: Path, names: list[str]) -> bool:
    """Whether a study has made its folder for runs, and no run yet."""
    return RUNS in names and not os.listdir(path / RUNS)
