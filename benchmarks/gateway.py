"""How many check-ins a gateway answers a minute, and whether its memory stays flat.

    python benchmarks/gateway.py [--seconds 30] [--devices 200]

Starts the gateway's web process with TLS, enrols devices, and lets each check in at times that are
spread evenly, a little over 5,000 a minute in all; then as fast as they can. Every check-in is
signed, has its nonce stored, and is answered from the database. Memory is the resident set of the
web process after each third of the time. Writes `results/gateway.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "gateway.json"
sys.path[:0] = [str(ROOT), str(ROOT / "clients" / "python")]

from fedrows_device.session import DeviceSession  # noqa: E402
from fedrows_device.signed_http import SignedHttp  # noqa: E402
from fedrows_device.storage import DeviceStorage  # noqa: E402

from benchmarks.speed.machine import processor_seconds, resident  # noqa: E402
from fedrows.flower.gateway.service import PORT  # noqa: E402
from fedrows.flower.gateway.store import GatewayStore  # noqa: E402
from fedrows.flower.launch import certificates  # noqa: E402

PACE = 5200  # check-ins a minute
THREADS = 4


def main() -> int:
    """Measures, prints and writes the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--devices", type=int, default=200)
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), typed.devices, typed.seconds)
    print(json.dumps(result, indent=1))
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    return 0


def measure(folder: Path, devices: int, seconds: float) -> dict[str, Any]:
    """The numbers of one gateway."""
    keys, state = folder / "keys", folder / "state"
    certificates.make_authority(keys)
    certificates.make_server(keys, ["localhost"])
    store = GatewayStore(state)
    words = ["--state", str(state), "--certificate", str(keys / "server.pem")]
    words += ["--key", str(keys / "server.key"), "--ca", str(keys / "ca.pem")]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    web = subprocess.Popen(
        [sys.executable, "-m", "fedrows.flower.gateway.service", *words],
        env={**os.environ, "PYTHONPATH": path, "FEDROWS_PARENT": str(os.getpid())},
        stderr=subprocess.DEVNULL,
    )
    try:
        while not (state / PORT).exists():
            time.sleep(0.05)
        time.sleep(1)
        url = f"https://localhost:{(state / PORT).read_text().strip()}"
        sessions = [_device(url, store, keys / "ca.pem", folder, i) for i in range(devices)]
        paced = check_in(sessions, seconds, PACE / 60, web.pid)
        fast = check_in(sessions, seconds / 3, None, web.pid)
    finally:
        web.kill()
        web.wait()
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.0f}",
        "date": time.strftime("%Y-%m-%d"),
        "devices": devices,
        "paced": paced,
        "as fast as they can": fast,
    }


def _device(url: str, store: GatewayStore, ca: Path, folder: Path, i: int) -> DeviceSession:
    """An enrolled device."""
    storage = DeviceStorage(folder / f"device-{i}")
    session = DeviceSession(SignedHttp(url, ca), storage, folder / "none")
    session.enrol(store.make_token())
    return session


def _mebibytes(pid: int) -> float:
    return round(resident(pid) / 2**20, 1)


def check_in(
    sessions: list[DeviceSession], seconds: float, rate: float | None, pid: int
) -> dict[str, Any]:
    """Lets devices check in for some seconds; rate: in all, a second."""
    began, spent = time.perf_counter(), processor_seconds(pid)
    latencies: list[float] = []
    memory, failed = [_mebibytes(pid)], []

    def work(own: list[DeviceSession]) -> None:
        try:
            count = 0
            while (now := time.perf_counter()) - began < seconds:
                if rate is not None:
                    due = began + count * THREADS / rate
                    if due > now:
                        time.sleep(due - now)
                        now = time.perf_counter()
                own[count % len(own)].http.ask("POST", "/v1/check-in")
                latencies.append(time.perf_counter() - now)
                count += 1
        except Exception as error:
            failed.append(str(error))

    threads = [threading.Thread(target=work, args=[sessions[i::THREADS]]) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for third in (1, 2, 3):
        time.sleep(max(0.0, began + third * seconds / 3 - time.perf_counter()))
        memory.append(_mebibytes(pid))
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    return {
        "seconds": round(took, 1),
        "check-ins a minute": round(60 * len(latencies) / took),
        "refused or failed": failed,
        "milliseconds, median": round(1000 * float(np.median(latencies)), 1),
        "milliseconds, 99th percentile": round(1000 * float(np.quantile(latencies, 0.99)), 1),
        "processor seconds of the gateway": round(processor_seconds(pid) - spent, 1),
        "memory of the gateway, MiB, at the start and after each third": memory,
    }


if __name__ == "__main__":
    sys.exit(main())
