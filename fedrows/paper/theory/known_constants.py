"""A federation on which all constants of Theorem 3 are known.

Every example reads one row, so that f falls apart into rows, and in closed form

    f*   Σ_m q_m · H(p_m): q_m is the row's part in f, p_m its mean label, H the binary entropy
    G²   1: the gradient of one example is p − y, at one row
    σ²   1/B: no more than G², and a batch is the mean of B examples
    L    the largest share that a row has of a client's examples, over 4, as p·(1−p) ≤ 1/4

The heats are chosen; row m's holders are drawn among the clients, and row 0 is held by all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedrows.data.federation import FederatedData

EACH = 8  # a client's examples of a row it holds
SPREAD = 1.0  # of a row's own logit, and of a client's


@dataclass(frozen=True)
class Constants:
    """What the bound is made of."""

    smoothness: float  # L
    gradient: float  # G²
    variance: float  # σ²
    gap: float  # f(X¹) − f*, from X¹ = 0


def federation(clients: int, heats: tuple[int, ...], seed: int = 0) -> FederatedData:
    """Clients that hold row 0 and some of the others, as many as their heats say."""
    rng = np.random.default_rng(seed)
    holders = [np.arange(clients), *(rng.permutation(clients)[:heat] for heat in heats)]
    client = np.repeat(np.concatenate(holders), EACH)
    row = np.repeat(np.arange(len(holders)), [len(clients_of) * EACH for clients_of in holders])
    row_logit = SPREAD * rng.standard_normal(len(holders)) + 1.0
    logit = row_logit[row] + SPREAD * rng.standard_normal(clients)[client]
    return FederatedData.build(
        name="known",
        client=client,
        ids={"w": row},
        label=rng.random(len(row)) < 1 / (1 + np.exp(-logit)),
        test=np.zeros(len(row), dtype=bool),
        tables={"w": len(holders)},
    )


def constants(data: FederatedData, batch: int) -> Constants:
    """The constants of such a federation, for batches of so many examples."""
    owner, label = data.train.owner.numpy(), data.train.label.numpy().astype(np.float64)
    row = np.asarray(data.train.ids["w"])
    rows, sizes = data.tables["w"], data.sizes.numpy()
    part = 1 / (data.clients * sizes[owner])  # (n,), an example's part in f
    whole = np.bincount(row, part, rows)
    mean = np.bincount(row, part * label, rows) / whole
    inner = np.clip(mean, 1e-300, None), np.clip(1 - mean, 1e-300, None)
    entropy = -(mean * np.log(inner[0]) + (1 - mean) * np.log(inner[1]))
    counts = np.bincount(owner * rows + row, minlength=data.clients * rows)
    share = counts.reshape(-1, rows) / sizes[:, None]
    return Constants(float(share.max()) / 4, 1.0, 1.0 / batch, float(np.log(2) - whole @ entropy))
