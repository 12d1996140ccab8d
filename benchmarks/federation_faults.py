"""What befalls the processes of a federation on this machine: they are killed, frozen, or return.

A process that is killed ends at once, as in a power cut.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from fedrows.flower.launch.federation import LaunchError, LocalFederation
from fedrows.flower.launch.processes import ProcessGroup
from fedrows.flower.launch.starting import EXECUTOR


def start_node(federation: LocalFederation, index: int) -> None:
    """Starts a node that is not running, and waits until the SuperLink knows it."""
    federation.begin_node(index)
    federation.wait_for_node(index)


def kill_node(federation: LocalFederation, index: int) -> None:
    """Ends a node."""
    federation.group(index).kill()
    del federation.groups[index]


def kill_clientapp(federation: LocalFederation, index: int) -> bool:
    """Ends the ClientApp of a node, and nothing else; False if none is running."""
    executor = federation.group(index).processes[f"{federation.nodes[index].name}-app"]
    return _kill_all(children(executor.pid))


def freeze_node(federation: LocalFederation, index: int) -> None:
    """Stops a node in its tracks; it keeps its connections, and answers nobody."""
    federation.group(index).signal(signal.SIGSTOP)


def thaw_node(federation: LocalFederation, index: int) -> None:
    """Lets a frozen node go on."""
    federation.group(index).signal(signal.SIGCONT)


def kill_superlink(federation: LocalFederation) -> None:
    """Ends the SuperLink and its ServerApp; `federation.start_superlink` brings it back."""
    _link(federation).kill()
    federation.link = None


def kill_serverapp(federation: LocalFederation) -> bool:
    """Ends the ServerApp; False if none is running."""
    return _kill_all(children(_link(federation).processes[EXECUTOR].pid))


def _link(federation: LocalFederation) -> ProcessGroup:
    if federation.link is None:
        raise LaunchError("The SuperLink is not running.")
    return federation.link


def _kill_all(pids: Sequence[int]) -> bool:
    """Ends processes; False if there are none."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(pids)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                pids.append(int(entry.name))
    return pids
