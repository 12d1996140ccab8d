"""A gateway in a private run: it learns sums of its devices, as a server learns sums of its nodes.

The gateway is one party of the sums among nodes. What it puts into one is itself a secure sum among
its devices (`device_sums`): how many hold each row, which rows any of them holds, and what they
made of the rows, of which those open that at least `min-contributors` devices hold.

It asks the server for every row of a round's union, and gives devices all of them. So neither the
server nor the gateway learns which rows a device wants, and no answer needs noise.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.gateway.device_sums import DeviceSums, SumDevice
from fedrows.flower.gateway.forms import CODING, RegistrationForm
from fedrows.flower.gateway.gateway_node import SHARE_OF_TIMEOUT, GatewayNode
from fedrows.flower.node.enrolled import EnrolledClients
from fedrows.flower.node.node_sums import Arrays, NodeSums
from fedrows.flower.node.private_node import NODE, PrivateNode
from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, unpack
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.flower.wire.sums import coding_of
from fedrows.privacy import openings, secure_sum
from fedrows.privacy.keys import MaskWords
from fedrows.privacy.layout import OpenedRows, SumLayout
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.union import Direct
from fedrows.privacy.weighted_mean import ClientUpdates, dense_of
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

log = logging.getLogger("fedrows.flower")
SUMS_AT_A_TIME = 2  # among devices, in the time of one message of the server
COUNTED = "counted"  # the name of a tag in what the gateway remembers of a device
MOST_DEVICES = 500  # of one sum: each exchanges keys with every other


class PrivateGatewayNode(GatewayNode, PrivateNode):
    """Answers the messages of a private run for the devices of a gateway."""

    @property
    def _form_of_registrations(self) -> RegistrationForm:
        """A device registers its key alone: neither rows nor how many examples it has."""
        return RegistrationForm({}, 1, private=True)

    @cached_property
    def _current(self) -> EnrolledClients:
        """The devices that have registered, of which no index set is known."""
        names: list[int | str] = [entry.name for entry, _ in self._registered]
        nothing = [torch.zeros(0, dtype=torch.int64)] * len(names)
        index = {table: Index.of(nothing) for table in self._space.tables}
        return EnrolledClients(names, [1] * len(names), index)

    def reply(self, message: Message) -> bytes:
        """The answer to phases of sums; for devices, too, a private run trains for nothing else."""
        return PrivateNode.reply(self, message)

    def _devices(self, names: Sequence[ClientName]) -> list[SumDevice]:
        """The devices of some names, as many as a sum among them needs and bears."""
        known = {entry.name: entry for entry, _ in self._registered}
        devices = []
        for name in names:
            entry = known[str(name)]
            key = unpack(entry.message).parts["key"]
            devices.append(SumDevice(entry.device, entry.version, key))
        privacy, count = self.contract.privacy, len(devices)
        fewest = max(privacy.colluding + 2, privacy.openers, privacy.min_contributors)
        if not max(fewest, privacy.least(count)) <= count <= MOST_DEVICES:
            raise ProtocolError(
                f"{count} devices of this gateway are asked, but a sum among devices has at least "
                f"{fewest} and at most {MOST_DEVICES}: it takes no part."
            )
        return devices

    def _sums(self, facts: Mapping[str, Any]) -> DeviceSums:
        enough = float(self._config.get("enough", 1.0))
        return DeviceSums(self.work, str(facts["run"]), self.program, enough)

    @property
    def _seconds(self) -> float:
        """How long one sum among devices may take."""
        return SHARE_OF_TIMEOUT * self.contract.options.timeout / SUMS_AT_A_TIME

    def _inputs(self, sums: NodeSums, facts: dict[str, Any], parts: dict[str, bytes]) -> Arrays:
        """What the gateway puts into a sum: a sum of its devices."""
        if facts["use"] == "heat":
            return {"words": self._counted(facts, self._current.names).astype(np.uint64)}
        names, _ = self._asked_clients(facts)
        if facts["use"] == "union":
            return {"places": np.flatnonzero(self._counted(facts, names))}
        asked = self._asked(sums, facts, names)
        self._check_range(facts)
        return self._sent(self._added_up(facts, parts, asked, names), asked)

    def _counted(self, facts: Mapping[str, Any], names: Sequence[ClientName]) -> MaskWords:
        """One word for each row: how many of some devices hold it, or whether any of them does."""
        devices, sums, plan = self._devices(names), self._sums(facts), Direct(self._space.rows)
        privacy, about = self.contract.privacy, self._facts(devices, facts)
        agreed = sums.terms(devices, about, {})
        terms = SumTerms(
            agreed.name,
            tuple(range(len(devices))),
            privacy.least(len(devices)),
            length=plan.length,
            word=plan.word,
            colluding=privacy.colluding,
            early_list=True,
        )
        half = secure_sum.server(terms, _registry(devices))

        own: list[dict[str, Any]] = [{}] * len(devices)
        total = sums.carry(half, agreed, devices, own, 4 * plan.length, self._seconds)
        _log_left_out(total, names)
        return total.values.clip(max=len(total.clients)) if about["use"] == "heat" else total.values

    def _facts(self, devices: Sequence[SumDevice], facts: Mapping[str, Any]) -> dict[str, Any]:
        """What all devices of a sum are told, whatever it is for."""
        privacy, schema = self.contract.privacy, self.model.schema
        tables = [
            {"name": table, "rows": rows, "width": schema.tables[table].width}
            for table, rows in self._space.sizes.items()
        ]
        return {
            "use": facts["use"],
            "round": facts.get("round", 0),
            "tables": tables,
            "threshold": privacy.least(len(devices)),
            "colluding": privacy.colluding,
        }

    def _added_up(
        self,
        facts: dict[str, Any],
        parts: dict[str, bytes],
        asked: Arrays,
        names: Sequence[ClientName],
    ) -> ClientUpdates:
        """What the devices made of the rows, as if one client with all of their weight had."""
        devices, sums = self._devices(names), self._sums(facts)
        privacy, count, united = self.contract.privacy, len(devices), asked["union"]
        rows = self._space.by_table(united)
        layout, sent = self._mean.layout(rows), self._rows_sent(facts, parts, asked)
        correction, least = coding_of(facts).correction, privacy.least(count)
        coding = self._mean.coding(np.ones(count), count, least, correction)
        turn = round_of(facts["tag"])
        about = self._facts(devices, facts) | {
            "lr": self.contract.plan.lr_at(turn),
            "range": self._mean.range,
            "losses": self._mean.losses,
            "minimum": privacy.min_contributors,
            "openers": privacy.openers,
            "coding": asdict(coding) | {"fraction": coding.fraction, "bits": coding.bits},
            "dense": [{"name": n, "shape": list(s)} for n, s in self._mean.dense.items()],
        }
        model = encode_submodels("model", sent, CODING)
        model |= {f"union/{t}": ids_to_bytes(torch.from_numpy(ids)) for t, ids in rows.items()}
        agreed = sums.terms(devices, about, model)
        plan = layout.plan(agreed.name, tuple(range(count)), privacy, coding, turn)
        terms = plan.terms(least, colluding=privacy.colluding, early_list=True)
        half = openings.server(plan, terms, _registry(devices))
        counted = self._counted_tags(facts, names)
        own = [
            {"number": number, "accepted": last, "tag": facts["tag"]}
            for number, last in zip(facts["numbers"], counted, strict=True)
        ]
        size = plan.length * coding.dtype.itemsize
        result = sums.carry(half, agreed, devices, own, size, self._seconds)
        _log_left_out(result.total, names)
        for party, (name, last) in enumerate(zip(names, counted, strict=True)):
            tag = facts["tag"] if party in result.total.clients else last
            self.state.of(name).put(facts["tag"], {COUNTED: torch.tensor(tag)})
        opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, coding)
        return self._as_one(opened, layout, len(result.total.clients))

    def _counted_tags(self, facts: dict[str, Any], names: Sequence[ClientName]) -> list[int]:
        """The tag of each device's last try that counted; the server knows the gateway's alone."""
        memories = self.state.memories(names, facts["accepted"])
        return [int(memory[COUNTED]) if COUNTED in memory else 0 for memory in memories]

    def _as_one(self, opened: OpenedRows, layout: SumLayout, most: int) -> ClientUpdates:
        """A sum of devices as the update of one client that weighs as much as those who trained."""
        weight = min(max(round(float(opened.extra[0])), 0), most)
        trained, behind = int(weight > 0), opened.extra[1 + self._mean.losses :]
        index, rows = {}, {}
        for table, (marks, sums) in opened.rows.items():
            ids = torch.from_numpy(layout.union[table][marks])
            index[table] = Index.of([ids] * trained)
            rows[table] = torch.from_numpy(sums[marks] / max(weight, 1))[: len(ids) * trained]
        dense = {
            name: x[None][:trained]
            for name, x in dense_of(behind / max(weight, 1), self._mean.dense).items()
        }
        loss = opened.extra[1] / max(weight, 1) if self._mean.losses else 0.0
        return ClientUpdates(
            Submodels(index, rows, dense),
            np.full(trained, float(weight)),
            np.zeros(trained, dtype=np.int64),
            NODE,
            np.full(trained, loss),
        )

    def _wanted(
        self, names: Sequence[ClientName], position: Tensor, united: np.ndarray
    ) -> list[np.ndarray]:
        """Every row of the union: who asks for all says nothing."""
        return [united]


def _log_left_out(total: secure_sum.SumResult, names: Sequence[ClientName]) -> None:
    """Keeps in the gateway's log which devices are not in a sum; nobody else is told."""
    for party, why in total.left_out.items():
        log.info("Device %s: %s", names[party], why)


def _registry(devices: Sequence[SumDevice]) -> dict[int, bytes]:
    return {party: device.key for party, device in enumerate(devices)}
