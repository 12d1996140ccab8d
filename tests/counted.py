"""A small federation that starts from counts, its deployments without a network, and its twin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from deployed import CONFIG, shards_of, task_of
from loopback import Loopback, federation

from fedrows.data.federation import FederatedData
from fedrows.flower.deployment import Deployment
from fedrows.flower.wire.contract import make_contract
from fedrows.models import mf
from fedrows.simulation import Simulation

RUN = "0" * 16
COUNTED: dict[str, Any] = CONFIG | {"start": "counted", "rounds": 3}


def liked_items(clients: int = 12, items: int = 20, each: int = 8) -> FederatedData:
    """Users who keep a row of their own, and items of which some are liked by most."""
    draw = np.random.default_rng(0)
    client = np.repeat(np.arange(clients), each)
    item = draw.zipf(1.3, len(client)).clip(max=items - 1)
    return FederatedData.build(
        client=client,
        ids={"user": client, "item": item},
        label=draw.random(len(client)) < 0.2 + 0.03 * item,
        test=draw.random(len(client)) < 0.2,
        tables={"user": clients, "item": items},
        local=["user"],
        target=("item", None),
    )


def build(data: FederatedData, seed: int) -> Any:
    return mf.build(data, seed=seed)


def deployment(
    folder: Path,
    data: FederatedData,
    config: dict[str, Any],
    nodes: int = 3,
    log: Callable[[str], None] = lambda _: None,
) -> tuple[Deployment, Loopback]:
    """A deployed run whose nodes live in this process."""
    task = task_of(data, build)
    _, post = federation(task, config, shards_of(data, nodes), folder)
    config = config | {"peers": str(folder / "peers.json")}
    run = Deployment(make_contract(task, config), post, config, log)
    run.fleet.run = RUN  # a journal gives it one of its own
    return run, post


def finish(run: Deployment) -> Deployment:
    for _ in run:
        pass
    return run


def twin(run: Deployment, data: FederatedData) -> Simulation:
    """The same run, simulated: its heat counts clients where the deployment's does."""
    its = run.contract
    made = Simulation(data, build(data, its.plan.seed), its.algorithm, its.plan)
    if its.secret:
        made.fleet.heat = lambda: data.heat("uniform")  # type: ignore[method-assign]
    return made
