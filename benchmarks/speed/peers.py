"""Other simulators on the same federation, in the same minutes: Flower, pfl and FedJAX.

Logistic regression and the LSTM, with the contenders of `fedrows bench lr` and `lstm` beside the
peers. Each peer lives in an environment of its own, which is made at the first time, and works in a
process of its own, which sleeps while it is not its turn. One that cannot be had is left out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.speed.bars import contest
from benchmarks.speed.blocks import seconds_per_round, settings
from benchmarks.speed.environments import PeerError, python_of
from benchmarks.speed.models import BARS, SHAPES, contenders
from benchmarks.speed.shapes import Shape
from benchmarks.speed.worker import Worker
from fedrows.cli.flags import Parser, UsageError

HOME = Path(__file__).parents[1]  # where the peers' own files are
NAMES = {"flower": "Flower", "pfl": "pfl", "fedjax": "FedJAX"}
COUNTS = {  # rounds of a block
    "lr": {"flower": 2, "pfl": 3, "fedjax": 10},
    "lstm": {"flower": 1, "pfl": 1, "fedjax": 1},
}

Start = Callable[[str, Path], Worker]  # a peer's name, and the file of its federation


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s of everyone, and which peers were there."""
    parser = Parser("bench peers", (__doc__ or "").split("\n")[0])
    only, models = ",".join(NAMES), ",".join(COUNTS)
    parser.add_argument("--only", metavar="NAMES", default=only, help=f"Of {only} (default: all).")
    parser.add_argument(
        "--models", metavar="NAMES", default=models, help=f"Of {models} (default: both)."
    )
    options = settings(parser, argv, blocks=5)
    names = _chosen("--only", options.own["only"], list(NAMES))
    result: dict[str, Any] = {"peers": {}}
    for model in _chosen("--models", options.own["models"], list(COUNTS)):
        print(f"{model}:", flush=True)
        result[model] = measure(model, names, options.blocks, result["peers"])
    options.write(result)
    return result


def measure(
    model: str, names: Sequence[str], blocks: int, facts: dict[str, Any], start: Start | None = None
) -> dict[str, Any]:
    """What all contenders of a model came to; `facts` learns about the peers."""
    shape = SHAPES[model]("cpu")
    with ExitStack() as stack:
        runs = stack.enter_context(contenders(model, shape))
        file = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "federation.npz"
        hand_over(file, model, shape)
        working: dict[str, tuple[Worker, float]] = {}
        for name in names:
            try:
                worker = (start or started)(name, file)
                stack.callback(worker.close)
                working[name] = (worker, worker.loss())
            except PeerError as error:
                print(f"  {error}", flush=True)
                facts[name] = {"missing": str(error)}
                continue
            runs[NAMES[name]] = (worker, COUNTS[model][name])
        times = seconds_per_round(runs, blocks)
        for name, (worker, before) in working.items():
            about = facts.setdefault(name, {"versions": worker.facts["ready"]})
            about["how"] = worker.facts["how"]
            about.setdefault("loss", {})[model] = [before, worker.loss()]
    for name in working:
        before, after = facts[name]["loss"][model]
        doubt = "" if after < before else ": it does not fall, so see whether it trains at all"
        print(f"  {NAMES[name]}: loss {before:.4f} before, {after:.4f} after{doubt}", flush=True)
    return {"data": shape.data.name, **contest(times, BARS[model])}


def started(name: str, file: Path) -> Worker:
    """A peer in its own environment, ready for orders."""
    python = python_of(name, HOME / "peers" / f"{name}.txt")
    command = [str(python), "-m", "peers.worker", name, str(file)]
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")  # ours, not the peer's
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    env["OMP_NUM_THREADS"] = str(torch.get_num_threads())  # the same on both sides
    return Worker(NAMES[name], command, HOME, env)


def hand_over(file: Path, model: str, shape: Shape) -> None:
    """Writes a federation for the peers: the same examples, the same numbers."""
    ((name, ids),) = shape.data.train.ids.items()
    assert isinstance(ids, Tensor), "an example has as many ids as any other"
    np.savez(
        file,
        model=model,
        ids=ids.numpy(),
        label=shape.data.train.label.numpy().astype(np.float32),
        splits=shape.data.train.splits.numpy(),
        rows=shape.data.tables[shape.data.fields[name]],
        clients_per_round=shape.plan.clients_per_round,
        local_steps=shape.plan.local_steps,
        batch_size=shape.plan.batch_size,
        lr=shape.plan.lr,
    )


def _chosen(flag: str, typed: str, known: Sequence[str]) -> list[str]:
    names = typed.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"{flag} names {name!r}, but must name some of {', '.join(known)}.")
    return names
