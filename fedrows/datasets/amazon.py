"""Amazon Electronics (McAuley et al. 2015): whether a review gives five stars, a client per user.

The paper's task: DIN on the user, the item, and the items that the user gave five stars before. The
data are described in `fedrows.data.amazon_log`.
"""

from __future__ import annotations

from fedrows.data.amazon_log import SOURCE, AmazonOptions, load
from fedrows.task import Task

TASK = Task(
    name="amazon",
    summary="Amazon Electronics: whether a user gives an item five stars, as in the paper.",
    options=AmazonOptions,
    load=load,
    model="din",
    plan={
        "clients_per_round": 100,
        "local_steps": 10,
        "batch_size": 4,
        "lr": 0.1,
        "lr_decay": 0.999,  # not in the paper: what its authors' code does
        "clip": 5.0,  # likewise
        "weighting": "examples",
    },
    algorithms={
        "centralsgd": {"lr": 0.05},
        "fedprox": {"mu": 0.01},
        # Table 5 gives no τ. Its .001, .9 and .999 are Adam's defaults, and so is this.
        "fedadam": {"lr": 0.1, "server_lr": 0.001, "beta1": 0.9, "beta2": 0.999, "tau": 1e-8},
        "fedsubavg": {"lr": 0.05},
        "boundedsubavg": {"lr": 0.05},  # as FedSubAvg
        "holdersmean": {"lr": 0.05},
        "steppedmean": {"lr": 0.05},
    },
    source=SOURCE,
)
