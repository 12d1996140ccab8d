"""Amazon Electronics with a model that has biases, which stay on the client where they are its own.

The examples are those of the task `amazon`, read as `fedrows.data.amazon_log` says. The table of
users is local. A search keeps a quarter of the training examples for validation, each client's
latest: they are then as far from the labels of training as the test examples are. Beside its ids an
example has what the client's own past labels say (`fedrows.data.recent_labels`): users become
stricter or milder as time goes on, and rate alike what is alike. What the client liked near an item
is read from the example's own history, as DIN reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedrows.data.amazon_log import SOURCE, AmazonOptions
from fedrows.data.amazon_log import load as load_log
from fedrows.data.federation import FederatedData
from fedrows.data.recent_labels import with_labels_beside, with_recent_labels
from fedrows.options import option
from fedrows.task import Task


@dataclass(frozen=True)
class AmazonWideOptions(AmazonOptions):
    """Those of the log, and what an example has beside its ids."""

    lately: bool = option(
        True, "Let the model see how a client has rated lately, and what is near in id."
    )


def load(options: AmazonWideOptions) -> FederatedData:
    """The examples of the clients, from the file in the data folder."""
    data = load_log(options)
    data = replace(data, name="amazon-wide", local=frozenset({"user"}))  # one user, one client
    if not options.lately:
        return data
    return with_labels_beside(
        with_recent_labels(data), liked="history" if options.history else None
    )


TASK = Task(
    name="amazon-wide",
    summary="Amazon Electronics: whether a user gives an item five stars, by DIN with biases.",
    options=AmazonWideOptions,
    load=load,
    model="din_wide",
    plan={
        "rounds": 200,
        "clients_per_round": 100,
        "local_steps": 5,
        "batch_size": 4,
        "lr": 0.0125,
        "lr_schedule": "cosine",
        "clip": 5.0,
        "weighting": "examples",
        "evaluate_every": 20,
        "start": "counted",
        "start_pseudo": 8.0,
        "start_near": 2,  # items with near ids are rated alike
    },
    algorithms={
        "fedprox": {"mu": 0.01},
        "fedsubavg": {"cap": "cohort"},
        "fedadam": {"lr": 0.1, "server_lr": 0.001, "beta1": 0.9, "beta2": 0.999},
    },
    source=SOURCE,
    held_out=0.25,
)
