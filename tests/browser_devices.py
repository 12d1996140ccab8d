"""Devices of a private run whose side is the browser's client, run by node."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from node_script import NodeScript
from private_devices import ONE, PrivateDevice

from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.privacy.weighted_mean import ClientUpdates
from fedrows.rows.params import Submodels


class BrowserRounds(NodeScript):
    """The script that plays devices."""

    def __init__(self) -> None:
        super().__init__("rounds.js")


@dataclass
class NodeDevice(PrivateDevice):
    """A device whose halves and whose vectors are the browser's."""

    script: Any = None
    manifest: dict[str, Any] = field(default_factory=dict)
    lines: list[Any] = field(default_factory=list)
    news: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        train = self.data.train
        low, high = int(train.splits[self.client]), int(train.splits[self.client + 1])
        ids = {name: column[low:high].tolist() for name, column in train.ids.items()}
        given = {"ids": ids, "label": train.label[low:high].tolist()}
        least = {"contributors": self.contract.privacy.min_contributors}
        made = self.script.ask(device=self.name, manifest=self.manifest, given=given, policy=least)
        self.registration = bytes.fromhex(made["body"])

    def answer(self, message: Message) -> bytes:
        made = self.script.ask(device=self.name, message=pack(message).hex())
        self.news = made["news"]
        if made["line"]:
            self.lines.append(made["line"])
        return bytes.fromhex(made["body"])

    def held_back(self, run: str) -> Any:
        """What the device holds back of a run."""
        return self.script.ask(device=self.name, ask=f"held/{run}")["held"]


class PlainDevice(PrivateDevice):
    """The same in Python: its step is that of the script's program."""

    def trained(self, sent: Submodels, own: Any, lr: float) -> ClientUpdates:
        mine = {t: x.slice(self.client, self.client + 1) for t, x in self.data.index.items()}
        rows = {}
        for table, its in mine.items():
            start = sent.rows[table][torch.searchsorted(sent.index[table].ids, its.ids)].double()
            after = (start - 0.1 * start + lr / (1 + its.ids.double()[:, None])).float()
            rows[table] = (after - start.float()).double()
        dense = {name: torch.full_like(x, lr).double() for name, x in sent.dense.items()}
        return ClientUpdates(Submodels(mine, rows, dense), np.ones(1), ONE, ONE, np.full(1, 0.5))


def silent(body: bytes) -> bool:
    """Whether an answer says nothing."""
    return unpack(body).kind == "silent"
