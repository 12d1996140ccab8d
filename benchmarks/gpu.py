"""One GPU: every fast path against the slow one, and rounds/s against what one would do instead.

    FEDROWS_DATA=… python benchmarks/gpu.py [--blocks 5] [--only lr,lstm,din,own]
        [--out gpu.json]

equal    a round with the layers' kernels in a CUDA graph, the same round in plain operations, one
         launch after another, and that in float64: ‖difference‖ (bar: 1e-4)
         then every algorithm for three rounds on GPU and CPU in float64, the largest difference
repeat   ten rounds twice with `deterministic`: how many numbers differ (bar: none), and rounds/s
speed    FedSubAvg's rounds/s, whole rounds as `fedrows run` does them without evaluation, next to
         plain PyTorch on as many samples (`benchmarks/speed/baselines.py`); medians of alternating
         blocks, TF32 off on all sides

Needs torch and numpy only; logistic regression runs on MovieLens if its file is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.speed import baselines, models, shapes
from benchmarks.speed.bars import at_least, at_most
from benchmarks.speed.blocks import Rounds, medians, seconds_per_round
from benchmarks.speed.machine import facts
from fedrows import catalogue
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.nn import fused
from fedrows.simulation import Simulation
from fedrows.simulator.fast_paths import PLAIN

BARS = {  # what is asked for on one H200: rounds/s, and times a baseline
    "lr": {"rounds/s": 1500},
    "lstm": {"rounds/s": 75, "centralised": 2},
    "din": {"rounds/s": 250, "centralised": 5, "captured": 1},
    "own": {"one by one": 20},
}
EQUAL = 1e-4  # the most that the fast and the plain path may differ by, of the model


def shape_of(name: str) -> shapes.Shape:
    """The data, model and plan that a name stands for."""
    return models.SHAPES[name]("cuda")


def plain_module(name: str, shape: shapes.Shape) -> torch.nn.Module:
    """The model in plain PyTorch, its embeddings with dense gradients, as CUDA graphs need them."""
    return models.plain_module(name, shape, sparse=False)


def simulated(shape: shapes.Shape, count: int | None = None, fast: bool = True) -> Simulation:
    """A run of FedSubAvg."""
    plan = shape.plan if count is None else replace(shape.plan, rounds=count)
    paths = None if fast else PLAIN
    return Simulation(shape.data, shape.model(), FedSubAvg(), plan, paths=paths)


def after_a_round(shape: shapes.Shape, fast: bool, dtype: str = "float32") -> torch.Tensor:
    """All numbers of the model after a round, one after another."""
    fused.enabled = fast
    run = simulated(replace(shape, plan=replace(shape.plan, dtype=dtype)), count=1, fast=fast)
    for _ in run.rounds():
        pass
    for note in run.simulated.notes:
        print(note)
    fused.enabled = True
    here = run.progress.params
    return torch.cat([x.double().flatten() for x in (*here.tables.values(), *here.dense.values())])


def differences(shape: shapes.Shape) -> dict[str, float]:
    """The fast path against the plain one, over the model and over how far the round moved it."""
    fast, plain = after_a_round(shape, True), after_a_round(shape, False)
    exact = after_a_round(shape, False, "float64")
    start = shape.model().start().map(lambda x: x.cuda().double())
    numbers = (*start.tables.values(), *start.dense.values())
    moved = float((exact - torch.cat([x.flatten() for x in numbers])).norm())
    return {
        "of the model": float((fast - plain).norm() / plain.norm()),
        "of its update": float((fast - plain).norm()) / moved,
        "of its update, fast and float64": float((fast - exact).norm()) / moved,
        "of its update, plain and float64": float((plain - exact).norm()) / moved,
    }


def across_devices(shape: shapes.Shape, name: str, batches: str) -> float:
    """The largest difference between the GPU's and the CPU's model after three rounds, float64."""
    models_after = []
    for device in ("cuda", "cpu"):
        plan = replace(
            shape.plan, rounds=3, device=device, dtype="float64", batches=batches, clip=5.0,
            batch_size=16, lr_decay=0.9,
        )  # fmt: skip
        run = Simulation(shape.data, shape.model(), catalogue.algorithm(name)(), plan)
        for _ in run.rounds():
            pass
        for note in run.simulated.notes:
            print(note)
        params = run.progress.whole()
        models_after.append([x.cpu() for x in (*params.tables.values(), *params.dense.values())])
    return max(float((a - b).abs().max()) for a, b in zip(*models_after, strict=True))


def repeated(shape: shapes.Shape) -> dict[str, float]:
    """How many numbers differ between two runs with sums in a fixed order, and rounds/s."""
    ends = []
    for _ in range(2):
        plan = replace(shape.plan, rounds=20, deterministic=True)
        run = Simulation(shape.data, shape.model(), FedSubAvg(), plan)
        for progress in run:
            if progress.round == 10:
                torch.cuda.synchronize()
                since = time.perf_counter()
        torch.cuda.synchronize()
        speed = 10 / (time.perf_counter() - since)
        for note in run.simulated.notes:
            print(note)
        params = run.progress.params
        ends.append([*params.tables.values(), *params.dense.values()])
    differ = sum(int((a != b).sum()) for a, b in zip(*ends, strict=True))
    return {"numbers that differ": differ, "rounds/s": speed}


def running(run: Simulation) -> Rounds:
    """Whole rounds of a simulation."""
    loop = run.rounds()

    def some(count: int) -> None:
        for _ in itertools.islice(loop, count):
            pass
        torch.cuda.synchronize()

    return some


def contenders(name: str, shape: shapes.Shape) -> dict[str, tuple[Rounds, int]]:
    """Who is timed, and how many rounds a block of each has."""
    batches = baselines.pooled_batches(shape.data, shape.plan)
    lr = shape.plan.lr
    count = {"lr": 500, "lstm": 30, "din": 60, "own": 100}[name]

    def make() -> torch.nn.Module:
        return plain_module(name, shape).cuda()

    rivals = {
        "fedrows": (running(simulated(shape)), count),
        "centralised": (baselines.centralised(make(), batches, lr), 10),
        "one by one": (baselines.one_by_one(make(), shape.data, shape.plan), 1),
    }
    if name != "lstm":  # cuDNN's own kernels are few and large: it has little to gain
        rivals["captured"] = (baselines.captured(make(), batches, lr), 30)
    return rivals


def main() -> None:
    """Prints the differences and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--only", default="lr,lstm,din,own")
    parser.add_argument("--out", default=None)
    typed = parser.parse_args()
    names = typed.only.split(",")
    results: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), **facts()}
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for name in names:
        results[f"{name}, differences"] = apart = differences(shape_of(name))
        line = ", ".join(f"{value:.1e} {what}" for what, value in apart.items())
        print(f"{name:5} fast and plain differ by {line} (bar: 1e-4 of the model)", flush=True)
    for name in names:
        results[f"{name}, repeated"] = again = repeated(shape_of(name))
        line = ", ".join(f"{value:,.0f} {what}" for what, value in again.items())
        print(f"{name:5} repeated with sums in a fixed order: {line} (bar: none)", flush=True)
    for batches, name in itertools.product(("draw", "epoch"), catalogue.names("algorithm")):
        gaps = {shape: across_devices(shape_of(shape), name, batches) for shape in ("lr", "own")}
        results[f"{name}, {batches}, GPU and CPU"] = gaps
        line = ", ".join(f"{shape} {value:.1e}" for shape, value in gaps.items())
        print(f"{batches:5} {name:14} GPU and CPU in float64 differ by {line}", flush=True)
    for name in names:
        times = seconds_per_round(contenders(name, shape_of(name)), typed.blocks)
        speed = {who: 1 / seconds for who, seconds in medians(times).items()}
        results |= {f"{name}, TF32 off": speed, f"{name}, TF32 off, seconds a round": times}
        line = ", ".join(f"{who} {value:.1f}" for who, value in speed.items())
        ratios = ", ".join(
            f"{speed['fedrows'] / value:.2f} × {who}"
            for who, value in speed.items()
            if who != "fedrows"
        )
        print(f"{name:5} rounds/s: {line}; {ratios}; bars {BARS[name]}", flush=True)
    results["bars"] = bars(results)
    if typed.out:
        Path(typed.out).write_text(json.dumps(results, indent=1) + "\n")


def bars(results: dict[str, Any]) -> list[dict[str, Any]]:
    """What came of all that was asked for."""
    held = []
    for name, asked in BARS.items():
        if f"{name}, differences" in results:
            apart = results[f"{name}, differences"]["of the model"]
            held.append(at_most(f"{name}, fast and plain path apart", apart, EQUAL))
        if f"{name}, repeated" in results:
            again = results[f"{name}, repeated"]["numbers that differ"]
            held.append(at_most(f"{name}, numbers that differ in a second run", again, 0))
        speed = results.get(f"{name}, TF32 off", {})
        for what, bar in asked.items() if speed else ():
            value = speed["fedrows"] / speed.get(what, 1)
            shown = what if what == "rounds/s" else f"times {what}"
            held.append(at_least(f"{name}, {shown}", value, bar))
    return held


if __name__ == "__main__":
    main()
