"""What a round costs on a device: size of the program, milliseconds, bytes, memory, installation.

    python benchmarks/devices.py [--rounds 20] [--installation]

Each model has one client of 100 examples, which takes 10 steps of 5 examples in a round, by the
light client in ONNX Runtime on one thread. Bytes are the rows and dense tensors down, and their
update up, in float32, with two bytes for the id of a row. Memory is the peak of a process that
loads the program and trains. The light client is installed into throw-away folders, once by pip and
once by clients/python/install.py, which is the one that is measured. The table is also put into
docs/devices.md. With --installation only the sizes of the client are measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "clients" / "python"
sys.path[:0] = [str(ROOT), str(CLIENT)]

from install import size_of  # noqa: E402

from benchmarks.speed import machine  # noqa: E402
from docs.page_parts import filled  # noqa: E402
from fedrows.algorithms.fedsubavg import FedSubAvg  # noqa: E402
from fedrows.data.federation import FederatedData  # noqa: E402
from fedrows.device.program import build  # noqa: E402
from fedrows.model import Model  # noqa: E402
from fedrows.models import din, logistic, lstm, mf  # noqa: E402
from fedrows.plan import Plan  # noqa: E402
from fedrows.rows.params import take  # noqa: E402
from fedrows.rows.ragged import Ragged, ragged  # noqa: E402

RESULT, PAGE = ROOT / "benchmarks" / "results" / "devices.json", ROOT / "docs" / "devices.md"
EXAMPLES, ITEMS, WORDS, LONGEST = 100, 3_000, 5_000, 30


def federation(fields: str) -> FederatedData:
    """Two clients with 100 examples each."""
    rng = np.random.default_rng(0)
    n = 2 * EXAMPLES
    user = np.repeat(np.arange(2), EXAMPLES)
    lists = [rng.integers(1, ITEMS, rng.integers(5, LONGEST + 1)) for _ in range(n)]
    columns = {
        "user": user,
        "item": rng.integers(1, ITEMS, n),
        "history": ragged(lists, LONGEST),
        "text": ragged(lists, LONGEST),
    }
    tables = {"user": "user", "item": "item", "history": "item", "text": "word"}
    own = {name: columns[name] for name in fields.split()}
    sizes = {"user": 1_000, "item": ITEMS, "word": WORDS}
    return FederatedData.build(
        client=user,
        ids=own,
        label=rng.integers(0, 2, n).astype(float),
        test=np.zeros(n, dtype=bool),
        tables={tables[name]: sizes[tables[name]] for name in own},
        fields={name: tables[name] for name in own},
        local=["user"] if fields == "user item" else [],
    )


MODELS = {
    "logistic regression": (logistic.build, "item"),
    "mf, 16 factors": (mf.build, "user item"),
    "LSTM, lists of 30": (lstm.build, "text"),
    "DIN, histories of 30": (din.build, "user item history"),
}


def inputs_of(model: Model, data: FederatedData) -> dict[str, Any]:
    """Examples and start values of client 0, as a device has them."""
    some, columns = torch.arange(EXAMPLES), {}
    for name, column in data.train.ids.items():
        if isinstance(column, Ragged):
            ends = column.offsets.tolist()
            columns[name] = [column.values[ends[i] : ends[i + 1]].tolist() for i in range(EXAMPLES)]
        else:
            columns[name] = column[some].tolist()
    index = {table: sets.select(torch.tensor([0])) for table, sets in data.index.items()}
    start = take(model.start(), index, 1)
    return {
        "ids": columns,
        "label": data.train.label[some].tolist(),
        "rows": {t: x.tolist() for t, x in start.rows.items() if t not in data.local},
        "local": {t: x.tolist() for t, x in start.rows.items() if t in data.local},
        "dense": {n: x[0].tolist() for n, x in start.dense.items()},
    }


TRAIN = """
import json, sys, time
from pathlib import Path
import numpy as np
from fedrows_device import Examples, Program
folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
program, given = Program.load(folder), json.loads((folder / "inputs.json").read_text())
own = Examples.build(program.manifest, given["ids"], given["label"])
parts = [given[part].items() for part in ("rows", "dense", "local")]
arrays = [{name: np.array(x, np.float32) for name, x in part} for part in parts]
times = []
for number in range(rounds + 1):
    begin = time.perf_counter()
    program.train(own, *arrays, round=number + 1, number=0, lr=0.1)
    times.append(1000 * (time.perf_counter() - begin))
status = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({"milliseconds": float(np.median(times[1:])), "peak": int(status) * 1024}))
"""


def measured(name: str, rounds: int, folder: Path, site: Path) -> dict[str, Any]:
    """The numbers of one model."""
    make, fields = MODELS[name]
    data = federation(fields)
    model = make(data)  # type: ignore[operator]
    begin = time.perf_counter()
    program = build(model, data, Plan(device="cpu"), FedSubAvg())
    seconds = time.perf_counter() - begin
    program.save(folder)
    inputs = inputs_of(model, data)
    (folder / "inputs.json").write_text(json.dumps(inputs))
    environment = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    trained = subprocess.run(
        [sys.executable, "-S", "-c", TRAIN, str(folder), str(rounds)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shared = [np.array(x) for x in inputs["rows"].values()]
    rows = sum(len(x) for x in shared)
    numbers = sum(x.size for x in shared) + model.schema.dense_size
    facts = json.loads(trained.stdout)
    return {
        "model": name,
        "program_bytes": len(program.step),
        "export_seconds": seconds,
        "rows": rows,
        "bytes_down": 4 * numbers,
        "bytes_up": 4 * numbers + 2 * rows,
        **facts,
    }


def installed(site: Path) -> dict[str, Any]:
    """Installs the light client; its bytes, and those that pip alone makes of it."""
    work, whole = site.parent / "source", site.parent / "whole"
    subprocess.run(["cp", "-r", str(CLIENT), str(work)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", str(whole)]
    pins = ["-c", str(ROOT / "constraints.txt")]
    subprocess.run([*pip, *pins, str(work)], check=True, capture_output=True)
    own = [sys.executable, str(CLIENT / "install.py"), str(site)]
    subprocess.run(own, check=True, capture_output=True)
    return {"pip": size_of(whole), "install": size_of(site), "date": time.strftime("%Y-%m-%d")}


def shown(results: dict[str, Any]) -> str:
    """The measurements as the page shows them."""
    lines = [
        "| model | step.onnx | a round | rows | down | up | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {x['model']} | {x['program_bytes'] / 1e3:.0f} kB | {x['milliseconds']:.1f} ms "
        f"| {x['rows']:,} | {x['bytes_down'] / 1e3:,.1f} kB | {x['bytes_up'] / 1e3:,.1f} kB "
        f"| {x['peak'] / 1e6:.0f} MB |"
        for x in results["models"]
    ]
    sizes, where = results["client"], results["machine"]
    lines += [
        "",
        f"The light client takes {sizes['install'] / 1e6:.0f} MB as `install.py` installs it, and "
        f"{sizes['pip'] / 1e6:.0f} MB as pip does ({sizes['date']}). Rounds were measured on "
        f"{where['cpu']}, {where['cores']} cores, one thread, with a load of "
        f"{results['load']:.1f}, {where['date'][:10]}.",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--installation", action="store_true", help="measure that alone")
    typed = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        site = Path(work) / "client"
        client = installed(site)
        if typed.installation:
            results = {**json.loads(RESULT.read_text()), "client": client}
        else:
            models, load = [], os.getloadavg()[0]
            for number, name in enumerate(MODELS):
                models.append(measured(name, typed.rounds, Path(work) / str(number), site))
                print(json.dumps(models[-1]))
            results = {"machine": machine.facts(), "load": load, "client": client, "models": models}
    RESULT.write_text(json.dumps(results, indent=1) + "\n")
    text = filled(PAGE, PAGE.read_text("utf-8"), {"measured": f"{shown(results)}\n"})
    PAGE.write_text(text, "utf-8")


if __name__ == "__main__":
    main()
