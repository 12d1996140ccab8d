"""What operators and the runs of a SuperLink tell each other, as files of one private folder.

    RUN.json         how a run stands, written by its ServerApp after every round
    RUN.stop         the operator asks the run to end after its present round
    revoked.json     the ids of nodes whose keys were revoked
    watching.json    how the next run is to be watched

The gate reads and writes these files for operators who show the control token:

    GET  /v1/fedrows/runs        how the last runs stand, with their nodes; runs/ID: one of them
    POST /v1/fedrows/stop        {"run": "17…"}: end the run after its present round
    POST /v1/fedrows/revoke      {"node": "95…"}: runs go on without the node
    POST /v1/fedrows/watching    {"metrics_port": 9109}: how the next run is watched

The key of a revoked node is refused by flwr, from its own list of nodes; the notice here is for the
runs that are going on. The ServerApp is a process beside the SuperLink, and finds the folder by the
environment variable FEDROWS_OPERATOR.
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
PREFIX = "/v1/fedrows/"
LONGEST = 4096  # bytes of a request
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
        new = self.path is not None and not (self.path / f"{run}.json").exists()
        self._write(f"{run}.json", as_json(dict(progress)))
        for old in self._runs()[KEPT:] if new else ():
            for file in (old, old.with_suffix(".stop")):
                file.unlink(missing_ok=True)

    def progress(self) -> list[dict[str, Any]]:
        """How the last runs stand, the newest first."""
        return [run for path in self._runs() if (run := self._read(path.name, dict))]

    def ask_to_stop(self, run: int) -> None:
        """Asks a run to end after its present round."""
        self._write(f"{run}.stop", b"")

    def is_to_stop(self, run: int) -> bool:
        """Whether the operator asks the run to end."""
        return self.path is not None and (self.path / f"{run}.stop").exists()

    def revoke(self, node: int) -> None:
        """Notes that runs are to go on without a node."""
        nodes = sorted(self.revoked() | {node})
        self._write("revoked.json", as_json([str(id_) for id_ in nodes]))

    def revoked(self) -> set[int]:
        """The ids of the nodes whose keys were revoked."""
        return {int(id_) for id_ in self._read("revoked.json", list)}

    def set_watching(self, settings: Mapping[str, Any]) -> None:
        """Keeps how the next run is to be watched."""
        self._write("watching.json", as_json(dict(settings)))

    def watching(self) -> dict[str, Any]:
        """How the next run is to be watched, beside what its own configuration says."""
        settings = self._read("watching.json", dict)
        return {name: value for name, value in settings.items() if name in WATCHING}

    def _runs(self) -> list[Path]:
        """The files of runs, the newest first."""
        if self.path is None:
            return []
        files = [path for path in self.path.glob("*.json") if path.stem.isdigit()]
        return sorted(files, key=_changed, reverse=True)

    def _write(self, name: str, content: bytes) -> None:
        if self.path is not None:
            make_private(self.path)
            write_private(self.path / name, content)

    def _read(self, name: str, kind: type) -> Any:
        """What a file holds; empty if it is missing, damaged or of another kind."""
        if self.path is not None:
            with contextlib.suppress(OSError, ValueError):
                if isinstance(value := json.loads((self.path / name).read_bytes()), kind):
                    return value
        return kind()


def _changed(path: Path) -> float:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return 0.0


def answer_operator(
    folder: OperatorFolder, method: str, path: str, body: bytes
) -> tuple[int, bytes]:
    """The status and the body of an answer, from the files of the folder."""
    request_name = path.removeprefix(PREFIX)
    if method == "GET" and request_name.split("/")[0] == "runs":
        runs, run = folder.progress(), request_name.removeprefix("runs").removeprefix("/")
        return 200, as_json({"runs": [x for x in runs if run in ("", x.get("run"))]})
    if method != "POST" or request_name not in ("stop", "revoke", "watching"):
        return 404, b"There is no such request."
    try:
        request = _read(body)
        if request_name == "stop":
            folder.ask_to_stop(_id(request, "run"))
        elif request_name == "revoke":
            folder.revoke(_id(request, "node"))
        else:
            folder.set_watching(_watching(request))
    except ValueError as error:
        return 400, str(error).encode()
    return 200, as_json({"done": request_name})


def _read(body: bytes) -> dict[str, Any]:
    if len(body) > LONGEST:
        raise ValueError(f"The request has more than {LONGEST} bytes.")
    try:
        request = json.loads(body)
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise ValueError("The request is not an object of JSON.")
    return request


def _id(request: dict[str, Any], name: str) -> int:
    text = str(request.get(name, ""))
    if not text.isascii() or not text.isdigit() or len(text) > 20:
        raise ValueError(f"The request has no {name}.")
    return int(text)


def _watching(request: dict[str, Any]) -> dict[str, Any]:
    if odd := sorted(request.keys() - set(WATCHING)):
        raise ValueError(f"{odd[0]} cannot be set for a run from outside.")
    port, host = request.get("metrics_port"), request.get("metrics_host", "127.0.0.1")
    if port is not None and (type(port) is not int or not 0 <= port <= 65535):
        raise ValueError("metrics_port must be a whole number from 0 to 65535.")
    if not isinstance(host, str) or len(host) > 255:
        raise ValueError("metrics_host must be the name of a host.")
    return request
