"""200 devices in Python and 8 tabs through one gateway: is the model that of the simulation?

    make browser && python benchmarks/mixed_devices.py [--devices 200] [--tabs 8] [--rounds 10]

MovieLens, logistic regression, FedSubAvg. Every device takes part in every round, and no round
ends without all of them. Meanwhile one tab is reloaded three times and one is closed and opened
again, with work under way. Four devices are processes, and each is killed three times (kill -9):
before its rows come, before its update goes, and before it hears that the update was taken. The
other devices are threads of this process that run the light client. The gateway's web side, its
node and the server are in this process, too. Writes `results/mixed_devices.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import sync_playwright

from benchmarks.speed import machine
from fedrows import catalogue
from fedrows.flower.demo import TASK
from fedrows.flower.wire.contract import DeployedTask

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from browser_federation import served  # noqa: E402
from deployed import difference, simulated  # noqa: E402
from mixed_devices import mixed_run  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "mixed_devices.json"
DIST = ROOT / "clients" / "browser" / "dist"
PROCESSES = 4


def measure(devices: int, tabs: int, rounds: int, folder: Path) -> dict[str, Any]:
    """The facts of one run."""
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if path is None or not (DIST / "device.js").is_file():
        sys.exit("This needs chromium, and the browser's client: run make browser.")
    movielens, every = catalogue.task("movielens"), devices + tabs
    data = movielens.load(movielens.options()).select(torch.arange(every))
    task = DeployedTask("movielens", lambda _: data, TASK.model, lambda _: data)
    config = {
        "rounds": rounds, "clients-per-round": every, "min-answers": every, "lr": 0.3, "seed": 3,
        "local-steps": 10, "batch-size": 5, "row-clip": "", "weight-quantile": "", "cap": "",
        "timeout": 1000.0,
    }  # fmt: skip
    begun = time.monotonic()
    with sync_playwright() as playwright, served(task, config, data, folder, DIST) as run:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        happened = mixed_run(run, browser, tabs, PROCESSES)
        version = browser.version
        browser.close()
        seconds = time.monotonic() - begun
        [trained], wanted, last = run.found, simulated(run.fleet, data), run.fleet.last
        start = run.fleet.contract.model(data).start()
        assert last is not None
    return {
        "rounds": last.round,
        "clients": every,
        **happened,
        "largest difference from the simulation": difference(trained.whole(), wanted),
        "how far the run moved a number": difference(wanted, start),
        "left out of the last round": last.dropped,
        "refused uploads": dict(run.fleet.rejected),
        "seconds": round(seconds, 1),
        "load": round(os.getloadavg()[0], 1),
        "chromium": version,
        "machine": machine.facts(),
    }


def main() -> None:
    """Measures, prints and writes the facts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--tabs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=10)
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(typed.devices, typed.tabs, typed.rounds, Path(folder))
    print(json.dumps(result, indent=1))
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
