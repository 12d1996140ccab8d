"""How quick the live page is, and what it costs the run: `python benchmarks/live.py`.

Paint, lag and bytes are measured in the system's Chromium, on the folder of a run of 10,000 rounds
that has a line for every round, and on a study of 100 runs of 300 lines each. Their lines are made
up, in the shape of real ones. The cost is measured on a real run: blocks of rounds in a folder that
20 viewers follow take turns with blocks in two folders that nobody follows. The two say how much
the measurement itself scatters. Writes `results/live.json`.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from playwright.sync_api import sync_playwright

from benchmarks.speed import machine
from fedrows import catalogue
from fedrows.files.whole import as_json, write_whole
from fedrows.live.start import beside
from fedrows.runs.driver import InFolder, drive
from fedrows.runs.folder import RunFolder
from fedrows.runs.status_file import StatusFile
from fedrows.simulation import threads
from fedrows.study.setting import Setting

RESULT = Path(__file__).parent / "results" / "live.json"
CHROMIUM = "/usr/bin/chromium"
ROUNDS, RUNS, LINES, VIEWERS = 10_000, 100, 300, 20
UPDATES, TURNS, BLOCK = 12, 16, 150
CONFIG = {"task": {"name": "synthetic"}, "algorithm": {"name": "fedavg"}, "plan": {"rounds": 20000}}

Json = dict[str, Any]


def main() -> int:
    """Measures, and writes what came out."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        result = {
            "run_of_10000_rounds": on_a_run(path / "run"),
            "study_of_100_runs": on_a_study(path / "study"),
            "cost_with_20_viewers": cost(path),
        }
    write_whole(RESULT, as_json({**result, "machine": machine.facts()}, indent=1))
    print(json.dumps(result, indent=1))
    return 0


def line(at: int, seed: int = 0) -> Json:
    """A made-up line of metrics, as long as a real one."""
    loss = 0.5 + 0.2 * math.exp(-at / 500) + 0.01 * math.sin(at * (seed + 1))
    names = ("train_loss", "test_loss", "test_accuracy", "test_auc", "test_gauc")
    buckets = [
        {"low": 3**n, "high": 3 ** (n + 1) - 1, "examples": 99, "loss": loss, "auc": loss}
        for n in range(8)
    ]
    own = {"algorithm": "fedavg", "seed": seed, "round": at, "buckets": buckets}
    return {**own, **dict.fromkeys(names, loss), "bytes_down": 9.0, "bytes_up": 9.0, "seconds": at}


def on_a_run(path: Path) -> Json:
    folder = RunFolder.create(path, "run", CONFIG)
    folder.keep_lines(line(at) for at in range(1, ROUNDS + 1))
    StatusFile(path, 0, 20_000)

    def add(number: int) -> str:
        folder.append(line(ROUNDS + number))
        return f"{ROUNDS + number:,} of"

    return in_chromium(path, add)


def on_a_study(path: Path) -> Json:
    (path / "runs").mkdir(parents=True)

    def finish(number: int) -> None:
        names = list(catalogue.names("algorithm"))
        setting = {"algorithm": names[number % 10]}
        lines = [line(at, number) for at in range(1, LINES + 1)]
        content = {"seed": number // 10, "seconds": 9.0, "lines": lines, "setting": setting}
        write_whole(path / "runs" / f"{number}.json.gz", gzip.compress(as_json(content), 1))

    for number in range(RUNS):
        finish(number)

    def add(number: int) -> str:
        finish(RUNS + number - 1)
        return f"{RUNS + number} of"

    return in_chromium(path, add)


def in_chromium(path: Path, add: Callable[[int], str]) -> Json:
    """Paint, lag and bytes of a folder. add: adds a line or a run; returns what will be shown."""
    with beside([path]) as address, sync_playwright() as playwright:
        first = next(httpx_events(address))
        page_bytes = len(httpx.get(address, timeout=60).content)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page, asked = browser.new_page(), list[str]()
        page.on("request", lambda request: asked.append(request.url))
        paints, lags = [], []
        for _ in range(5):
            page.goto(address)
            page.locator("html[data-painted]").wait_for()
            paints.append(page.evaluate("Number(document.documentElement.dataset.painted)") / 1000)
        for number in range(1, UPDATES + 1):
            wanted = add(number)
            since = time.perf_counter()
            while wanted not in page.evaluate("document.getElementById('facts').textContent"):
                if time.perf_counter() - since > 30:
                    raise SystemExit(f"{wanted!r} is not shown after 30 s.")
                time.sleep(0.01)
            lags.append(time.perf_counter() - since)
        browser.close()
    host = address.partition("?")[0]
    return {
        "paint_seconds": spread(paints),
        "behind_seconds": spread(lags),
        "page_bytes": page_bytes,
        "snapshot_bytes": len(first),
        "requests_elsewhere": sum(not url.startswith((host, "data:")) for url in asked),
    }


def httpx_events(address: str) -> Any:
    """The events of the stream, as text."""
    events = address.replace("/?", "/events?")
    with httpx.stream("GET", events, timeout=60) as answer:
        yield from (text for text in answer.iter_lines() if text.startswith("data: "))


def cost(path: Path) -> Json:
    """Processor seconds of a real run, followed by many viewers against followed by none."""
    plan = {"rounds": BLOCK, "evaluate_every": 10}
    settings = Setting("synthetic", "fedsubavg", plan=plan).planned(0).settings
    data = settings.task.load(settings.options)
    watched, alone, other = path / "watched", path / "alone", path / "other"
    folders = [watched, alone, other]
    seconds: dict[Path, list[tuple[float, float]]] = {folder: [] for folder in folders}

    def block(folder_path: Path) -> None:
        simulation = settings.simulation(data)
        simulation.prepare()
        folder = RunFolder.create(folder_path, "run", settings.config(), overwrite=True)
        keeper = InFolder(folder, simulation, 1e9)
        cpu, wall = time.process_time(), time.perf_counter()
        drive(simulation, keeper)
        own = time.process_time() - cpu, time.perf_counter() - wall
        seconds[folder_path].append(own)

    with threads(1), beside([watched]) as address:
        server = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0]
        viewing = [sys.executable, "-m", "benchmarks.live", "--viewers", address]
        viewers = subprocess.Popen(viewing)
        try:
            time.sleep(5)
            for folder_path in seconds:
                block(folder_path)  # warm
            for one in seconds.values():
                one.clear()
            since, spent = time.perf_counter(), machine.processor_seconds(server)
            for turn in range(TURNS):
                for shift in range(3):
                    block(folders[(turn + shift) % 3])
            share = (machine.processor_seconds(server) - spent) / (time.perf_counter() - since)
        finally:
            viewers.kill()
            viewers.wait()

    def ratio(one: Path, to: Path, which: int) -> Json:
        pairs = zip(seconds[one], seconds[to], strict=True)
        return spread([a[which] / b[which] for a, b in pairs])

    def least(one: Path) -> float:
        return min(cpu for cpu, _ in seconds[one])

    status = StatusFile(alone, 0, BLOCK)
    since = time.process_time()
    for _ in range(200):
        status.write()
    return {
        "viewers": VIEWERS,
        "processor_seconds_ratio_of_the_best_blocks": round(least(watched) / least(alone), 4),
        "the_same_of_nobody_to_nobody": round(least(other) / least(alone), 4),
        "processor_seconds_ratio": ratio(watched, alone, 0),
        "processor_seconds_ratio_of_nobody_to_nobody": ratio(other, alone, 0),
        "wall_ratio": ratio(watched, alone, 1),
        "wall_ratio_of_nobody_to_nobody": ratio(other, alone, 1),
        "processor_seconds_of_a_block": round(statistics.median(x[0] for x in seconds[alone]), 3),
        "share_of_a_core_of_the_server": round(share, 4),
        "processor_seconds_of_a_status": round((time.process_time() - since) / 200, 6),
    }


def spread(values: list[float]) -> Json:
    """The middle one, the smallest and the largest."""
    least, most = min(values), max(values)
    return {
        "median": round(statistics.median(values), 4),
        "least": round(least, 4),
        "most": round(most, 4),
    }


def view(address: str) -> None:
    """Follows a page from many connections, until it is killed; it reads, and keeps nothing."""
    url = urlsplit(address)
    assert url.port is not None
    waiting = selectors.DefaultSelector()
    for _ in range(VIEWERS):
        viewer = socket.create_connection(("127.0.0.1", url.port))
        viewer.sendall(f"GET /events?{url.query} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        waiting.register(viewer, selectors.EVENT_READ, viewer)
    while waiting.get_map():
        for key, _ in waiting.select():
            if not key.data.recv(2**20):
                waiting.unregister(key.data)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--viewers"]:
        view(sys.argv[2])
    else:
        raise SystemExit(main())
