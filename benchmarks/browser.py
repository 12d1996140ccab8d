"""What a round costs in a browser tab: computing time, loading, and the size of what is loaded.

    make browser && python benchmarks/browser.py

Trains `mf` with the presets of movielens-mf (20 steps of 32 examples, 16 factors) for a device with
100 examples, in the system's Chromium. Writes `results/browser.json`, and the table of
docs/browser.md.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.speed import machine
from docs.page_parts import filled
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.device.program import build
from fedrows.files.whole import write_whole
from fedrows.models import mf
from fedrows.plan import Plan

HERE = Path(__file__).parent
RESULT, PAGE = HERE / "results" / "browser.json", HERE.parent / "docs" / "browser.md"
DIST = HERE.parent / "clients" / "browser" / "dist"
PLAN = Plan(local_steps=20, batch_size=32, lr=8.0, device="cpu")
ITEMS, EXAMPLES, ROUNDS = 3_706, 100, 60

MEASURE = """async ([files, given, rounds]) => {
  const begun = performance.now();
  const {Program, indexOf, columnsOf} = await import("/device.js");
  const bytes = Object.fromEntries(Object.entries(files).map(
    ([name, text]) => [name, Uint8Array.from(atob(text), (x) => x.charCodeAt(0))]));
  const program = await Program.load("benchmark", bytes);
  const loaded = performance.now() - begun;
  const {manifest} = program;
  const index = indexOf(given, manifest), examples = columnsOf(given, manifest, index);
  const zeros = (count) => Float32Array.from({length: count}, () => Math.random() / 10);
  const rows = Object.fromEntries(Object.entries(manifest.tables).map(
    ([table, {width}]) => [table, zeros(index[table].length * width)]));
  const dense = Object.fromEntries(Object.entries(manifest.dense).map(
    ([name, shape]) => [name, zeros(shape.reduce((a, b) => a * b, 1))]));
  const found = [];
  for (let round = 1; round <= rounds; round++) {
    const result = await program.train(
      {examples, index, rows, dense, sent: null, kept: null, lr: 0.1, round, number: 0});
    found.push(result.milliseconds);
  }
  return {loaded, found};
}"""


def measure() -> dict[str, Any]:
    """The facts of rounds in a tab."""
    path = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if path is None or not (DIST / "device.js").is_file():
        sys.exit("This needs chromium, and the browser's client: run make browser.")
    draw, nobody = np.random.default_rng(0), np.zeros(EXAMPLES, dtype=bool)
    user, item = np.zeros(EXAMPLES, dtype=int), draw.choice(ITEMS, EXAMPLES, replace=False)
    label = draw.random(EXAMPLES) < 0.6
    data = FederatedData.build(
        client=user, ids={"user": user, "item": item}, label=label, test=nobody,
        tables={"user": 1, "item": ITEMS}, local=["user"], target=("item", None),
    )  # fmt: skip
    program = build(mf.build(data, 0), data, PLAN, FedSubAvg())
    columns = {"ids": {"user": user.tolist(), "item": item.tolist()}, "label": [*map(float, label)]}
    files = {
        **program.more,
        "step.onnx": program.step,
        "manifest.json": json.dumps(dict(program.manifest)).encode(),
    }
    encoded = {name: base64.b64encode(x).decode() for name, x in files.items()}
    with sync_playwright() as playwright, served() as address:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"{address}/device.css")
        times = page.evaluate(MEASURE, [encoded, columns, ROUNDS])
        version = browser.version
        browser.close()
    sizes = {path.name: path.stat().st_size for path in DIST.iterdir()}
    sent = [name for name in sizes if f"{name}.gz" in sizes and not name.startswith("demo")]
    return {
        "round_ms": {
            "best": min(times["found"]),  # what other programs disturbed least
            "median": statistics.median(times["found"]),
            "first": times["found"][0],
            "worst": max(times["found"][1:]),
        },
        "load_ms": times["loaded"],
        "step_bytes": len(program.step),
        "page_bytes": sum(sizes[name] for name in sent),
        "page_bytes_gzip": sum(sizes[f"{name}.gz"] for name in sent),
        "examples": EXAMPLES,
        "steps": PLAN.local_steps,
        "batch_size": PLAN.batch_size,
        "chromium": version,
        "machine": machine.facts(),
        "load": os.getloadavg()[0],  # of processes that wanted the cores meanwhile
        "date": time.strftime("%Y-%m-%d"),
    }


class _Quiet(SimpleHTTPRequestHandler):
    """Serves the built files, and says nothing."""

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served() -> Iterator[str]:
    """The built files on a free port of this machine."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(DIST)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def table(result: dict[str, Any]) -> str:
    """The facts as a table in Markdown."""
    rounds, packed, whole = (result[x] for x in ("round_ms", "page_bytes_gzip", "page_bytes"))
    rows = {
        "a round of `mf`, the best of 60": f"{rounds['best']:.0f} ms",
        "the median": f"{rounds['median']:.0f} ms",
        "the first round": f"{rounds['first']:.0f} ms",
        "the slowest of the others": f"{rounds['worst']:.0f} ms",
        "loading the runtime and the program": f"{result['load_ms']:.0f} ms",
        "`step.onnx`": f"{result['step_bytes'] / 1000:.1f} kB",
        "the page with its runtime, packed": f"{packed / 1e6:.1f} MB",
        "the same, unpacked": f"{whole / 1e6:.1f} MB",
    }
    lines = "".join(f"| {a} | {b} |\n" for a, b in rows.items())
    where, version = result["machine"], result["chromium"].split(".")[0]
    return (
        f"| in a tab of Chromium | |\n|---|---|\n{lines}\nMeasured on {where['cpu']}, "
        f"{where['cores']} cores, with Chromium {version}, {result['date']}.\n"
    )


def main() -> None:
    """Measures, and writes what was found."""
    result = measure()
    write_whole(RESULT, (json.dumps(result, indent=1) + "\n").encode())
    shown = table(result)
    print(shown)
    PAGE.write_text(filled(PAGE, PAGE.read_text("utf-8"), {"browser": f"\n{shown}\n"}), "utf-8")


if __name__ == "__main__":
    main()
