"""What a measurement was made on, and what it takes of the memory."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrows.version import __version__


def facts() -> dict[str, Any]:
    """The machine, the versions and the date."""
    return {
        "cpu": _cpu(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "fedrows": __version__,
        "date": datetime.now().astimezone().isoformat(timespec="seconds"),
    }


def short_facts(device: str) -> dict[str, str]:
    """The device that a run named so took, PyTorch's version, and the day."""
    gpu = device != "cpu" and torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else platform.machine()
    return {"device": name, "torch": torch.__version__, "date": f"{datetime.now():%Y-%m-%d}"}


def resident(pid: int | str = "self") -> int:
    """Bytes of memory that a process holds now; where no one tells, the most this ever held."""
    return _of_linux("VmRSS", pid) or _most()


def peak() -> int:
    """The most bytes that this process has held since `forget_peak`, or ever."""
    return _of_linux("VmHWM") or _most()


def processor_seconds(pid: int | str, children: bool = False) -> float:
    """What a process has spent so far, or its children that have ended; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    user, system = fields[13:15] if children else fields[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def forget_peak() -> None:
    """Lets the peak begin anew, where the system can do so.

    Memory that is free, but still held, is given back first: what comes next would hide in it.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", "ascii")


def _of_linux(field: str, pid: int | str = "self") -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return None
    return next((1024 * int(x.split()[1]) for x in lines if x.startswith(f"{field}:")), None)


def _most() -> int:
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    named = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
