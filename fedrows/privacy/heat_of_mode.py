"""What a private run counts before its first round, with its ledger entries: heat, and labels.

Both counters of a counted start are counts of index sets: of the items that clients have, and of
those that they like. So they go through the same protocol as heat, and cost as much again each.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.label_counts import LabelCounts, label_sets
from fedrows.privacy.central import private_counts, private_heat
from fedrows.privacy.counting import count, heats, values_of
from fedrows.privacy.ledger import AGAINST_SERVER, Entry
from fedrows.privacy.noise import RandomBytes
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
