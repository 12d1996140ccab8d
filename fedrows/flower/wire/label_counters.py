"""The two counters of a counted start on their way: how a node sends its own, and what is believed.

    count-labels → labels    of each item: how many of the node's clients have it, and like it

A node adds up its clients before it sends anything. The server knows which of them hold a row, so
no item can be had by more of them than that, nor liked by more than have it: a client that lies is
one client, as it is in the heat.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, items_of
from fedrows.errors import PlanError
from fedrows.flower.wire.codings import ids_from_bytes, ids_to_bytes, integers_from_bytes
from fedrows.flower.wire.codings import integers_to_bytes as as_bytes
from fedrows.flower.wire.message import Message, WireError, unpack
from fedrows.model import Model
from fedrows.plan import Plan
from fedrows.simulator.counted_start import check_counted

COUNT = "count-labels"  # what asks for them
PRIOR = "prior"  # the fact by which clients begin the biases that they keep
_PARTS = frozenset({"ids", "examples", "positives"})


def check_countable(model: Model, data: FederatedData, plan: Plan) -> None:
    """Raises an error if a deployment of this model cannot start from counts."""
    check_counted(model, plan)
    if (table := items_of(data)) in data.local:
        raise PlanError(
            f"start is {plan.start!r}, but the examples are about rows of {table}, which stay on "
            "their clients: choose start zero."
        )


def counted_facts(model: Model, data: FederatedData) -> dict[str, Any]:
    """What both sides must have in common for a counted start, beside the plan."""
    assert model.biases is not None, "it was checked"
    assert data.target is not None, "it was checked"
    return {
        "target": list(data.target),
        "biases": [model.biases.general, sorted(model.biases.columns.items())],
    }


def labels_message(counts: LabelCounts) -> Message:
    """A node's counters as a message; items that nobody has an example about are left out."""
    some = counts.examples > 0
    parts = {
        "ids": ids_to_bytes(counts.ids[some]),
        "examples": as_bytes(counts.examples[some].to(torch.int64).tolist()),
        "positives": as_bytes(counts.positives[some].to(torch.int64).tolist()),
    }
    return Message("labels", {}, parts)


def read_labels(answer: bytes, table: str, held: Tensor, holders: Tensor) -> LabelCounts:
    """A node's counters, or a WireError that says what is wrong with them.

    held: the rows that any client of the node holds (H,). holders: how many of them do (H,).
    """
    most = 32 * len(held) + 4096  # nine bytes of an id, and two numbers of eight
    if len(answer) > most:
        raise WireError(f"It has {len(answer)} bytes, but at most {most} can be right.")
    message = unpack(answer, most)
    if message.kind != "labels" or message.parts.keys() != _PARTS:
        raise WireError("It answers something else than how many clients have and like an item.")
    rows = int(held[-1]) + 1 if len(held) else 0
    ids = ids_from_bytes(message.parts["ids"], rows, len(held))
    have, like = (
        torch.tensor(integers_from_bytes(message.parts[name], len(ids)), dtype=torch.int64)
        for name in ("examples", "positives")
    )
    position = torch.searchsorted(held, ids)
    if not torch.equal(held[position], ids):
        raise WireError("It counts an item that none of its clients has enrolled with.")
    if bool(((have < 1) | (have > holders[position])).any()):
        raise WireError("It counts an item for no client, or for more than have enrolled with it.")
    if bool(((like < 0) | (like > have)).any()):
        raise WireError("It counts clients that like an item below 0, or above those that have it.")
    return LabelCounts(table, ids, have.double(), like.double())


def prior_in(facts: Mapping[str, Any], plan: Plan) -> float | None:
    """The share of positives that a server names; None in a run that does not start from counts."""
    if plan.start != "counted":
        return None
    prior = facts.get(PRIOR)
    if not isinstance(prior, float) or not math.isfinite(prior) or not 0 < prior < 1:
        raise WireError("The message names no share of positives between 0 and 1.")
    return prior
