"""The heat of a private run, counted before its first round, and what the ledger says of it."""

from __future__ import annotations

import math
from dataclasses import replace

from fedrows.data.federation import FederatedData
from fedrows.privacy.central import private_heat
from fedrows.privacy.counting import heats
from fedrows.privacy.ledger import Entry
from fedrows.privacy.noise import Source
from fedrows.privacy.options import Privacy
from fedrows.rows.heat import Heat


def heat_of_mode(
    privacy: Privacy, data: FederatedData, weighting: str, source: Source
) -> tuple[dict[str, Heat], list[Entry]]:
    """The heat of every shared table, counted as a mode says, and its entries for the ledger."""
    heat: dict[str, Heat] = {}
    entries: list[Entry] = []
    if privacy.mechanism is None:
        for table, counted in heats(data, weighting, privacy.counting, source).items():
            heat[table] = counted.heat
            entries += counted.entries(table)
        return heat, entries
    weights = data.weights(weighting)
    for table, index in data.index.items():
        if table in data.local:
            continue
        dials = privacy.dp_heat_noise, privacy.dp_heat_rows, privacy.heat_z
        heat[table], entry = private_heat(index, weights, privacy.mechanism, *dials, source)
        name = f"heat of {table}"  # the server sees its exact total before the noise
        entries += [replace(entry, mechanism=name), Entry("totals/value", name, 0, math.inf)]
    return heat, entries
