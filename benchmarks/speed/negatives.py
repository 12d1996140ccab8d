"""A round with fresh negatives against a round with fixed examples of the same shape.

Both train matrix factorisation on the same positives, with as many candidates for each and as many
rows for each client. In the one the negatives are drawn anew in every round, in the other they were
drawn once and are columns of the data. Rounds alternate, so that both meet the same machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fedrows import Plan, Simulation
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import FreshNegatives
from fedrows.models import mf

CLIENTS, ITEMS, EACH = 2_000, 4_000, 60
BAR = 1.3


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns milliseconds a round and their ratio."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--clients-per-round", type=int, default=100)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(argv)
    plan = Plan(
        rounds=10**6,
        clients_per_round=args.clients_per_round,
        local_steps=20,
        batch_size=32,
        lr=0.1,
        weighting="uniform",
        chunk=args.clients_per_round,
        device=args.device,
    )
    runs = {"fresh": _running(fresh(), plan), "fixed": _running(fixed(fresh(), plan), plan)}
    on_gpu = plan.torch_device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time  # a CPU may have other work
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(5 + args.rounds):
        for name, run in runs.items():
            since = clock()
            next(run)
            if on_gpu:
                torch.cuda.synchronize()
            if number >= 5:  # after recording and warming up
                seconds[name].append(clock() - since)
    taken = {name: 1000 * statistics.median(times) for name, times in seconds.items()}
    ratio = statistics.median(a / b for a, b in zip(*seconds.values(), strict=True))
    print(f"{plan.torch_device}, K = {args.clients_per_round}, I = 20, B = 32, 1 + 4 candidates:")
    print(f"  fresh {taken['fresh']:.2f} ms, fixed {taken['fixed']:.2f} ms, ratio {ratio:.2f}")
    print(f"  the bar is {BAR}: {'met' if ratio <= BAR else 'missed'}")
    return {"milliseconds": taken, "ratio": ratio, "bar": BAR}


def fresh() -> FederatedData:
    """Positives, whose negatives clients draw."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(CLIENTS), EACH)
    item = np.concatenate([rng.choice(ITEMS, EACH, replace=False) for _ in range(CLIENTS)])
    return FederatedData.build(
        client=user,
        ids={"user": user, "item": item},
        label=np.ones(len(user)),
        test=np.zeros(len(user)),
        tables={"user": CLIENTS, "item": ITEMS},
        local=["user"],
        target=("item", None),
        labels="ranking",
    )


def fixed(data: FederatedData, plan: Plan) -> FederatedData:
    """The same positives with negatives beside them, of a pool that each client has drawn once."""
    negatives, every = FreshNegatives(data, plan), torch.arange(CLIENTS)
    pool = negatives.draw(data.index["item"], every, 1).ids.view(CLIENTS, -1)  # (N, P)
    user = data.train.owner
    rng = np.random.default_rng(1)
    chosen = torch.from_numpy(rng.integers(0, pool.shape[1], (len(user), plan.negatives)))
    item = data.train.ids["item"]
    assert isinstance(item, torch.Tensor)
    candidates = torch.cat([item[:, None], pool[user[:, None], chosen]], 1)  # (n, 1 + r)
    return FederatedData.build(
        client=user.numpy(),
        ids={"user": user.numpy(), "item": candidates.numpy()},
        label=np.zeros(len(user)),  # the class of column 0
        test=np.zeros(len(user)),
        tables=data.tables,
        local=["user"],
        target=("item", 0),
        labels="classes",
    )


def _running(data: FederatedData, plan: Plan) -> Any:
    """The rounds of a run."""
    return Simulation(data, mf.build(data), FedSubAvg(), plan).rounds()


if __name__ == "__main__":
    main()
