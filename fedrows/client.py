"""What a client does in a round: I local SGD steps from the submodel it was sent.

The same function trains one client on a device (K = 1) and a simulated cohort of thousands.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedrows.algorithm import Algorithm, Round
from fedrows.batches import LocalData, batches, step_keys
from fedrows.model import Model
from fedrows.params import Submodels
from fedrows.plan import Plan


@dataclass
class Upload:
    """What K clients send back, and what they keep to themselves."""

    clients: Tensor  # (K,), the numbers of the clients that answered
    update: Submodels  # Δ_k = where the client ended − where it started
    steps: Tensor  # (K,), the local steps taken
    extra: dict[str, Submodels]
    kept: Submodels | None


def train(
    model: Model,
    algorithm: Algorithm,
    local: LocalData,
    start: Submodels,
    sent: Submodels | None,
    kept: Submodels | None,
    plan: Plan,
    round_: Round,
) -> Upload:
    """Trains K clients side by side, each on its own examples and its own copy of its rows."""
    with torch.inference_mode(model.closed_form):  # less to do for every operation
        here = start.map(torch.clone)
        own_start, shared = start.without(local.local), here.without(local.local)
        steps: Tensor | int = 0
        for step, batch in enumerate(batches(local, start.index, plan, round_.number)):
            if model.random:
                batch = replace(batch, key=step_keys(local, plan, round_.number, step))
            gradient = model.gradient(here, batch)
            if plan.clip is not None:
                # Before the algorithm's own terms: a clipped drift would no longer be known.
                gradient.scale_((plan.clip / gradient.norms().clamp(min=1e-12)).clamp(max=1))
            algorithm.adjust_(gradient.without(local.local), shared, own_start, sent, kept)
            if batch.active is None:
                steps += 1
            else:
                gradient.scale_(batch.active)  # the whole step, the algorithm's own terms included
                steps += batch.active
            here.add_(gradient, -round_.lr)
        here.add_(start, -1)
        taken = torch.zeros_like(local.clients, dtype=torch.float64) + steps
        extra, kept = algorithm.finish(shared, sent, kept, round_.lr, taken)
        return Upload(local.clients.cpu(), here, taken, extra, kept)
