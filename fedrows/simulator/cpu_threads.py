"""How many CPU threads a run has when nobody says: as many as PyTorch takes, while they are free.

The threads of a step wait for each other. Where other programs keep the cores busy, each step waits
until the last of its threads gets a turn, and a small run takes ten times as long as on one thread.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import torch

LOOKS, APART = 5, 0.004  # how often the machine is looked at, and the seconds in between
GIVEN = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # who sets one has chosen


def usual_threads() -> int:
    """PyTorch's threads, or as many of them as have a core to themselves now; at least one."""
    most = torch.get_num_threads()
    if most == 1 or any(os.environ.get(name) for name in GIVEN):
        return most
    busy = busy_elsewhere()
    free = most if busy is None else (os.cpu_count() or most) - busy
    return max(1, min(most, free))


def busy_elsewhere() -> int | None:
    """How many threads of all programs but this want a core now; None if nobody knows."""
    counts = []
    for look in range(LOOKS):
        if look:
            time.sleep(APART)
        try:
            running = Path("/proc/loadavg").read_text().split()[3].partition("/")[0]
            counts.append(int(running) - 1)  # this thread is running
        except (OSError, IndexError, ValueError):
            return None
    return max(0, round(statistics.median(counts)))
