"""The optimisers of a device's step: state goes in and comes out, and is zero before a round.

They compute what `fedrows.optimizers` computes for one client.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrows.plan import Plan

STATES: Mapping[str, tuple[str, ...]] = {  # tensors shaped like the model, by optimiser
    "sgd": (),
    "momentum": ("velocity",),
    "adagrad": ("squares",),
    "adam": ("first", "second"),
    "adamw": ("first", "second"),
}
COUNTED = ("adam", "adamw")  # which read the number of the step, counted from 1


def moved(
    plan: Plan,
    here: dict[str, Tensor],
    gradient: dict[str, Tensor],
    state: Mapping[str, dict[str, Tensor]],
    lr: Tensor,
    count: Tensor | None,
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Where a step ends, and the state after it."""
    decay, apart = plan.weight_decay, plan.optimizer == "adamw"
    if decay and not apart:
        gradient = {name: g + decay * here[name] for name, g in gradient.items()}
    if plan.optimizer == "sgd":
        direction, after = gradient, {}
    elif plan.optimizer == "momentum":
        old, mu = state["velocity"], plan.local_momentum
        direction = {name: mu * old[name] + g for name, g in gradient.items()}
        after = {"velocity": direction}
    elif plan.optimizer == "adagrad":
        squares = {name: state["squares"][name] + g * g for name, g in gradient.items()}
        direction = {n: _divided(g, squares[n].sqrt(), 1e10) for n, g in gradient.items()}
        after = {"squares": squares}
    else:
        assert count is not None
        direction, after = _adam(plan, gradient, state, count)
    if decay and apart:
        direction = {name: d + decay * here[name] for name, d in direction.items()}
    return {name: x - lr * direction[name] for name, x in here.items()}, after


def _adam(
    plan: Plan, gradient: dict[str, Tensor], state: Mapping[str, dict[str, Tensor]], count: Tensor
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    b1, b2 = plan.local_momentum, plan.local_beta2
    first = {n: b1 * state["first"][n] + (1 - b1) * g for n, g in gradient.items()}
    second = {n: b2 * state["second"][n] + (1 - b2) * g * g for n, g in gradient.items()}
    exact = count.double()  # 1 − 0.999 has four digits in float32
    a, b = ((1 - torch.pow(torch.full_like(exact, beta), exact)).float() for beta in (b1, b2))
    direction = {n: _divided(first[n] / a, (second[n] / b).sqrt(), 1e8) for n in gradient}
    return direction, {"first": first, "second": second}


def _divided(x: Tensor, by: Tensor, inverse: float) -> Tensor:
    """x / (by + 1 / inverse); a sum with so small a constant would be exported without it."""
    return x * inverse / (by * inverse + 1)
