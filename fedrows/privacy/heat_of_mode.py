"""What a private run counts before its first round, with its ledger entries: heat, and labels.

Both counters of a counted start are counts of index sets: of the items that clients have, and of
those that they like. So they go through the same protocol as heat, and cost as much again each.

In mode full the heat behind the correction is itself released with noise (`private_heat`):
otherwise one user would move everybody else's part of the sum.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, label_sets
from fedrows.errors import PlanError
from fedrows.privacy.counting import count, heats, values_of
from fedrows.privacy.discrete_gaussian import LEAST, discrete_gaussians
from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Event
from fedrows.privacy.mechanism import Mechanism
from fedrows.privacy.noise import GridNoise, RandomBytes, words
from fedrows.privacy.options import Privacy
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index


def heat_of_mode(
    privacy: Privacy, data: FederatedData, weighting: str, source: RandomBytes
) -> tuple[dict[str, Heat], list[Entry]]:
    """The heat of every shared table, counted as a mode says, and its entries for the ledger."""
    heat: dict[str, Heat] = {}
    entries: list[Entry] = []
    if privacy.mechanism is None:
        for table, counted in heats(data, weighting, privacy.counting, source).items():
            heat[table] = counted.heat
            entries += counted.entries(table)
        return heat, entries
    for table, index in data.index.items():
        if table in data.local:
            continue
        dials = privacy.dp_heat_noise, privacy.dp_heat_rows, privacy.heat_z
        rows = data.tables[table]
        heat[table], entry = private_heat(index, rows, privacy.mechanism, *dials, source)
        entries += noisy_entries(privacy, replace(entry, mechanism=f"heat of {table}"))
    return heat, entries


def noisy_entries(privacy: Privacy, entry: Entry) -> list[Entry]:
    """The entries of a count with noise: for whoever sees the model, and for the server."""
    if privacy.noise_in_sum:
        return [entry, replace(entry, kind=AGAINST_SERVER)]
    # The server sees the exact total before it adds noise.
    return [entry, Entry("totals/value", entry.mechanism, 0, math.inf)]


def counter_names(table: str) -> tuple[str, str]:
    """What the two counters of a counted start are called in a ledger."""
    return f"heat of {table}, clients", f"heat of {table}, positives"


def labels_of_mode(
    privacy: Privacy, data: FederatedData, source: RandomBytes
) -> tuple[LabelCounts, list[Entry]]:
    """The two counters of every item, counted as a mode counts heat, and their ledger entries."""
    assert data.target is not None
    table = data.fields[data.target[0]]
    alike, rows = torch.ones(data.clients, dtype=torch.float64), data.tables[table]
    if (how := privacy.mechanism) is not None:
        dials = privacy.dp_heat_noise, privacy.dp_heat_rows
        noisy = [private_counts(each, rows, how, *dials, source) for each in label_sets(data)]
        (have, _), (like, _) = noisy
        entries = [
            entry
            for name, (_, event) in zip(counter_names(table), noisy, strict=True)
            for entry in noisy_entries(privacy, Entry(how.kind, name, 0, event=event))
        ]
        return LabelCounts(table, torch.arange(rows), have, like), entries
    counted = [
        count(index, alike, rows, privacy.counting, values_of(data, table), source)
        for index in label_sets(data)
    ]
    have, like = (torch.from_numpy(each.estimates).double() for each in counted)
    entries = [
        entry
        for name, each in zip(("clients", "positives"), counted, strict=True)
        for entry in each.entries(f"{table}, {name}")
    ]
    return LabelCounts(table, counted[0].heat.ids, have, like), entries


def heat_tensors(heats: Mapping[str, Heat]) -> dict[str, Tensor]:
    """Heat as tensors by name, for a file."""
    tensors = {}
    for table, heat in heats.items():
        tensors[f"heat/{table}/id"] = heat.ids.cpu()
        tensors[f"heat/{table}/count"] = heat.counts.cpu()
        tensors[f"heat/{table}/total"] = torch.tensor(heat.total, dtype=torch.float64)
    return tensors


def heat_from_tensors(
    tensors: Mapping[str, Tensor], index: Mapping[str, Index], device: torch.device
) -> dict[str, Heat]:
    """The heat that `heat_tensors` has written, of the tables that it has."""
    heats = {}
    for table, sets in index.items():
        if f"heat/{table}/id" not in tensors:
            continue
        ids, counts = (tensors[f"heat/{table}/{x}"].to(device) for x in ("id", "count"))
        if sets.held is not None and torch.equal(sets.held, ids):
            ids = sets.held  # which makes looking up quick
        heats[table] = Heat(ids, counts, float(tensors[f"heat/{table}/total"]))
    return heats


def private_heat(
    index: Index,
    rows: int,
    how: Mechanism,
    noise: float,
    most: int,
    z: float = 1.0,
    source: RandomBytes = os.urandom,
) -> tuple[Heat, Entry]:
    """Heat with noise, and its entry: no user counts for more than `most` rows.

    Clients are counted, whatever weights the mean has. A user with more rows counts for `most` of
    them, drawn at random. A user added or removed moves the counts by √most, one replaced by
    √(2·most). The server adds Gaussian noise, or every client its share of it. Counts are floored
    at max(1, z deviations). Every row of the table has a noisy count: a list of the rows that
    somebody holds would be exact.
    """
    counts, event = private_counts(index, rows, how, noise, most, source)
    deviation = noise * math.sqrt(most * (2 if how.sampling == "fixed" else 1))
    counts = counts.clamp(min=max(1.0, z * deviation))
    device = index.ids.device
    heat = Heat(torch.arange(rows, device=device), counts.to(device), float(index.clients))
    return heat, Entry(how.kind, "heat", 0, event=event)


def private_counts(
    index: Index,
    rows: int,
    how: Mechanism,
    noise: float,
    most: int,
    source: RandomBytes = os.urandom,
) -> tuple[Tensor, Event]:
    """How many clients have each row of a table, with the noise of `private_heat`, and its event.

    Unbiased, so a count may be below 0.
    """
    if most < 1 or not noise > 0:
        raise PlanError(f"Private heat has noise {noise} and {most} rows a user: both must be > 0.")
    alike = torch.ones(index.clients, dtype=torch.float64)
    held, counts = capped_counts(index, alike, most, source)
    replaced = how.sampling == "fixed"
    deviation = noise * math.sqrt(most * (2 if replaced else 1))
    noisy = torch.zeros(rows, dtype=torch.float64)
    noisy[held] = counts
    event = Event((noise,), "all")
    if how.client_noise is None:
        noisy = GridNoise(deviation, rows, source)(noisy)
    else:
        coding = heat_coding(noise, index.clients, most)
        steps = noisy.numpy().astype(np.int64) * coding.steps
        steps += discrete_gaussians(math.sqrt(index.clients) * coding.deviation, rows, source)
        noisy = torch.from_numpy(steps / coding.steps)
        event = Event((noise * math.sqrt(how.counted_share),), "all", discrete=True)
    return noisy, event


@dataclass(frozen=True)
class HeatCoding:
    """How a party writes its counts, in whole steps, and its share of the noise."""

    steps: int  # that a row counts for
    deviation: float  # of one party's noise, in steps


def heat_coding(noise: float, parties: int, most: int) -> HeatCoding:
    """Steps so small that parties' noise adds up as Gaussian noise does (`discrete_gaussian`).

    Two clients' rows are √(2·most) apart, which `noise` is a multiple of.
    """
    deviation = noise * math.sqrt(2 * most / parties)
    steps = math.ceil(LEAST / deviation)
    return HeatCoding(steps, deviation * steps)


def capped_counts(
    index: Index, shares: Tensor, most: int, source: RandomBytes = os.urandom
) -> tuple[Tensor, Tensor]:
    """The rows that anybody holds, and Σ s_i over their holders, no user counting for over `most`.

    Shares are at most 1, so a user moves the counts by √most in Euclidean norm.
    """
    owner, lengths = index.owner.cpu().numpy(), index.lengths.numpy()
    order = np.lexsort((words(len(owner), source, np.uint64), owner))
    rank = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    counted = torch.from_numpy(order[rank < most])
    held, position = torch.unique(index.ids.cpu(), return_inverse=True)
    counts = torch.zeros(len(held), dtype=torch.float64)
    counts.index_add_(0, position[counted], shares.cpu()[index.owner.cpu()[counted]])
    return held, counts
