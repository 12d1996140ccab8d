"""Runs many command lines at the same time, which share one GPU, and ends them when time is up.

    python benchmarks/side_by_side.py LINES.txt --seconds 540 --at-once 24 --logs DIR

LINES.txt has a shell command a line; empty lines and those that begin with # are left out. The
lines start in their order, and as many run as --at-once says. What a line prints goes to a file of
its own in DIR. When the time is up, what still runs is interrupted, then killed. Every command has
one thread for each of its libraries.

Many small programs share a GPU badly by taking turns. NVIDIA's multi-process service lets them run
at once, so it is started if it is there and works (--no-service leaves it alone).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

POLL = 0.2  # seconds
GRACE = 8.0  # seconds between the interrupt and the end
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
SERVICE = "nvidia-cuda-mps-control"
TRY = "import torch; print(float(torch.ones(3).cuda().sum()))"


def main(words: list[str]) -> int:
    """Runs the lines; the exit code says whether all of them ended well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--logs", type=Path, default=Path("logs"))
    parser.add_argument("--no-service", action="store_true")
    given = parser.parse_args(words)
    begun = time.monotonic()
    text = given.lines.read_text(encoding="utf-8").splitlines()
    waiting = [line.strip() for line in text if line.strip() and not line.startswith("#")]
    given.logs.mkdir(parents=True, exist_ok=True)
    service = not given.no_service and start_service()
    print("multi-process service:", "on" if service else "off", flush=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **dict.fromkeys(THREADS, "1")}
    running: dict[int, tuple[str, subprocess.Popen[bytes], float]] = {}
    failed, number = 0, 0
    while waiting or running:
        left = given.seconds - (time.monotonic() - begun)
        if left <= 0:
            break
        while waiting and len(running) < given.at_once:
            line, number = waiting.pop(0), number + 1
            log = (given.logs / f"{number:03}.log").open("wb")
            log.write(f"$ {line}\n".encode())
            log.flush()
            process = subprocess.Popen(
                line, shell=True, stdout=log, stderr=log, env=environment, start_new_session=True
            )
            running[number] = line, process, time.monotonic()
        for which, (line, process, since) in list(running.items()):
            if process.poll() is not None:
                del running[which]
                failed += process.returncode != 0
                seconds = time.monotonic() - since
                print(f"{which:03} rc {process.returncode} {seconds:5.0f} s  {line}", flush=True)
        time.sleep(POLL)
    for which, (line, _process, since) in running.items():
        print(f"{which:03} cut off {time.monotonic() - since:5.0f} s  {line}", flush=True)
    for line in waiting:
        print(f"    never started  {line}", flush=True)
    end([process for _, process, _ in running.values()])
    return 0 if not (failed or running or waiting) else 1


def end(processes: list[subprocess.Popen[bytes]]) -> None:
    """Ends processes and what they have started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, number)
        until = time.monotonic() + GRACE
        while time.monotonic() < until and any(one.poll() is None for one in processes):
            time.sleep(POLL)


def start_service() -> bool:
    """Starts the service for programs that this one starts; whether they can use a GPU so."""
    if shutil.which(SERVICE) is None:
        return False
    for name in ("PIPE", "LOG"):
        folder = Path(f"/tmp/fedrows-mps-{name.lower()}")
        folder.mkdir(exist_ok=True)
        os.environ[f"CUDA_MPS_{name}_DIRECTORY"] = str(folder)
    subprocess.run([SERVICE, "-d"], check=False)  # one that runs already is told so, and stays
    try:
        works = subprocess.run([sys.executable, "-c", TRY], timeout=60, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        works = False
    if not works:
        subprocess.run([SERVICE], input=b"quit -t 1\n", timeout=20, check=False)
        for name in ("PIPE", "LOG"):
            del os.environ[f"CUDA_MPS_{name}_DIRECTORY"]
    return works


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
