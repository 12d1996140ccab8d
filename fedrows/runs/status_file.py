"""status.json: how a run stands while it goes, for whoever looks into its folder.

It is small, replaced as a whole at most twice a second, and never waited for: a disk without room
costs the run nothing but this file. `process_alive` says whether the writer is still there.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedrows.files.whole import Json, as_json, is_running
from fedrows.watch.observer import RoundReport

STATUS = "status.json"
EVERY = 0.5  # seconds between two writings
NODES = 500  # at most, those that were asked last


class StatusFile:
    """Writes where a run stands: its round, who answered, what was refused, and why it ended."""

    def __init__(self, folder: Path, at: int, rounds: int, private: bool = False) -> None:
        now = time.time()
        self._path, self._private, self._next = folder / STATUS, private, 0.0
        self._facts: Json = {
            **process_facts(),
            "began": now,
            "from": at,
            "round": at,
            "rounds": rounds,
            "asked": 0,
            "answered": 0,
            "dropped": 0,
            "rejected": {},  # reason → uploads
            "bytes_down": 0.0,  # of all clients, since this process began
            "bytes_up": 0.0,
            "stopped": "",  # why it ended before its last round
            "failed": "",
            "notice": "",  # what it waits for
        }
        self._nodes: dict[str, Json] = {}
        self.write()

    def round(self, report: RoundReport) -> None:
        facts, rejected = self._facts, self._facts["rejected"]
        facts["round"] = report.round
        facts["asked"] += report.asked
        facts["answered"] += report.answered
        facts["dropped"] += report.dropped
        facts["bytes_down"] += report.bytes_down or 0.0
        facts["bytes_up"] += report.bytes_up or 0.0
        for why, uploads in report.rejected.items():
            rejected[why] = rejected.get(why, 0) + uploads
        facts["notice"] = ""
        if report.buffer is not None:
            facts["buffer"] = asdict(report.buffer)
        if time.monotonic() >= self._next or report.round >= facts["rounds"]:
            self.write()

    def nodes(self, round_: int, answers: Mapping[str, str], clients: Mapping[str, int]) -> None:
        """Takes in how nodes answered in a round, "" for well; clients: how many each hosts."""
        for name, answer in answers.items():
            node = self._nodes.pop(name, {"asked": 0, "answered": 0, "heard": None})
            node |= {"round": round_, "said": answer, "asked": node["asked"] + 1}
            node["clients"] = clients.get(name, 0)
            if not answer:
                node |= {"answered": node["answered"] + 1, "heard": time.time()}
            self._nodes[name] = node  # the last that was asked comes last
        for name in list(self._nodes)[:-NODES]:
            del self._nodes[name]

    def notice(self, text: str) -> None:
        """Says what the run waits for, until the next round is done."""
        self._facts["notice"] = text
        self.write()

    def end(self, *, stopped: str = "", failed: str = "") -> None:
        self._facts |= {"stopped": stopped, "failed": " ".join(failed.split())}
        self.write()

    def write(self) -> None:
        self._next = time.monotonic() + EVERY
        facts = self._facts | {"time": time.time()}
        replace_quietly(self._path, facts | {"nodes": self._nodes}, self._private)


def process_facts() -> Json:
    """This process, so that a reader can tell whether it is still there."""
    pid = os.getpid()
    return {"pid": pid, "started": _start_of(pid), "host": socket.gethostname()}


def process_alive(facts: Mapping[str, Any]) -> bool | None:
    """Whether the process of some `process_facts` is there; None if it is on another machine."""
    pid = facts.get("pid")
    if not isinstance(pid, int) or facts.get("host") != socket.gethostname():
        return None
    if not is_running(pid):
        return False
    started = _start_of(pid)
    return started == facts.get("started") and started != ZOMBIE


ZOMBIE = "zombie"  # it has ended, but whoever started it has not noticed


def _start_of(pid: int) -> str:
    """When a process began, as Linux counts it; "" elsewhere. Numbers of processes come again."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return ZOMBIE if fields[0] == "Z" else fields[19]
    except (OSError, IndexError):
        return ""


def replace_quietly(path: Path, value: Json, private: bool = False) -> None:
    """Puts a small JSON file in its place in one step, without waiting for the disk.

    If it cannot be written, the old one stays.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        handle = os.open(part, flags, 0o600 if private else 0o666)
        try:
            os.write(handle, as_json(value))
        finally:
            os.close(handle)
        os.replace(part, path)


def read_status(folder: Path) -> Json:
    """What a status.json says; nothing if it is missing or not one."""
    try:
        facts = json.loads((folder / STATUS).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
