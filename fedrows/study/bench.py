"""Makes one run after another, in this process, and keeps the data it has loaded.

On a CPU a run computes on one thread and a cohort is not cut into chunks unless the plan says so.
Its numbers then do not depend on how many workers there are, or on how busy the machine is.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError, PlanError
from fedrows.simulation import Simulation, threads
from fedrows.study.kept import keep
from fedrows.study.setting import Settled
from fedrows.version import __version__

Heard = Callable[[int], None]  # is told the round


class Bench:
    """Where runs are made, with the data that were loaded so far."""

    def __init__(self) -> None:
        self._loaded: dict[str, FederatedData] = {}

    def load(self, task: str, **options: Any) -> FederatedData:
        """A task's data."""
        key = json.dumps([task, options], sort_keys=True)
        if key not in self._loaded:
            found = catalogue.task(task)
            self._loaded[key] = found.load(found.options(**options))
        return self._loaded[key]

    def make(self, folder: Path, run: str, settled: Settled, device: str, heard: Heard) -> None:
        """Makes a run and writes its file."""
        setting, plan = settled.setting, replace(settled.plan, device=device)
        on = plan.torch_device
        data = self.load(setting.task, **setting.data)
        if plan.clients_per_round > data.clients:
            raise PlanError(
                f"clients-per-round is {plan.clients_per_round}, but only {data.clients} clients "
                f"of {data.name} have training data: ask for at most {data.clients}."
            )
        if on.type == "cuda":  # what the last run had there goes before this one comes
            gc.collect()
            torch.cuda.empty_cache()
        since = time.perf_counter()
        with threads(1) if on.type == "cpu" else nullcontext():
            model = catalogue.model(settled.task.model)(data, plan.seed)
            if on.type == "cpu" and plan.chunk is None:  # not measured: that is not the same twice
                plan = replace(plan, chunk=plan.clients_per_round)
            simulation = Simulation(data, model, settled.algorithm, plan)
            lines = []
            for progress in simulation:
                if simulation.due:
                    lines.append(simulation.evaluate())
                heard(progress.round)
            facts = simulation.evaluator.facts()
        for table in facts["heat"]:
            del table["histogram"]
        seconds = time.perf_counter() - since
        content = {
            "id": run,
            "seed": plan.seed,
            "setting": setting.as_dict(),
            "config": settled.config(),
            "command": settled.command(on.type, plan.chunk),
            "device": torch.cuda.get_device_name(on) if on.type == "cuda" else "CPU",
            "torch": torch.__version__,
            "fedrows": __version__,
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(seconds, 3),
            "facts": facts,
            "lines": lines,
        }
        keep(folder, content)


def sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrowsError) else f"{type(error).__name__}: {text}"
