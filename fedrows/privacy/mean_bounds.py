"""Where the mean of honest parties lies, if nobody sees a single party's update.

    weight   at most that of all clients that were asked, and at least that of one
    row      no further than ± range once it is corrected, as far as one party may move it

A sum that a liar has been in may lie anywhere in the ring. A weight sum outside of its bounds ends
the round, for every number is divided by it; rows and dense numbers are clamped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from fedrows.algorithm import Algorithm
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.server_side import SumMechanism
from fedrows.privacy.weighted_mean import Mean, WeightedMean
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index

SLACK = 1e-3  # of a weight sum: its words are rounded


def bounded(
    mean: Mean | None,
    summing: SumMechanism,
    weights: torch.Tensor,
    algorithm: Algorithm,
    heat: Mapping[str, Heat],
) -> Mean | None:
    """The mean within the bounds of honest ones, or a ProtocolError if its weight cannot be right.

    weights: of the clients whose parties are in the sum (K,). A mean with noise has its own bounds.
    """
    if mean is None or not isinstance(summing, WeightedMean):
        return mean
    range_ = summing.range
    least, most = float(weights.min()) * (1 - SLACK), float(weights.sum()) * (1 + SLACK)
    if not least <= mean.weight <= most:
        raise ProtocolError(
            f"The weights of the sum add up to {mean.weight:g}, but only {least:g} to {most:g} can "
            "be right: a node lies about its clients' examples."
        )
    index = {t: Index(ids, torch.tensor([0, len(ids)])) for t, (ids, _) in mean.rows.items()}
    factors = algorithm.correction(index, heat, torch.float64) or {}
    rows = {}
    for table, (ids, values) in mean.rows.items():
        factor = factors.get(table, torch.ones(len(ids), dtype=torch.float64)).clamp(min=1)
        far = (range_ / factor)[:, None].to(values.dtype)
        rows[table] = ids, values.clamp(-far, far)
    most = max(1.0, range_)  # as far as a number of the sum is coded
    dense = {name: x.clamp(-most, most) for name, x in mean.dense.items()}
    return replace(mean, rows=rows, dense=dense)
