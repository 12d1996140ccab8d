"""A node in a private run: it shows no index set, and its updates leave in secure sums alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import train
from fedrows.data.narrow import Narrowed, narrow
from fedrows.errors import FedrowsError
from fedrows.flower.node.enrolled import StateLost
from fedrows.flower.node.losses import losses
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.state import TaggedTensors
from fedrows.flower.party import Inputs, Party, refuse
from fedrows.flower.signing import own_key, read_peers
from fedrows.flower.space import Space
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    decode_submodels,
)
from fedrows.flower.wire.tags import round_of
from fedrows.privacy.answers import Answers
from fedrows.privacy.counting import values_of
from fedrows.privacy.ring import Coding
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

FIGURES = 3  # opened with every update: Σ of the weights, of the steps, of the losses


@dataclass
class Asked:
    """What a node has learnt from a union: its rows, and which of them its clients ask for."""

    union: np.ndarray  # sorted rows of the space
    places: np.ndarray  # of the clients, as the server counts them
    wanted: np.ndarray  # (clients, union) bool


class PrivateNode(ClientNode):
    """Answers the letters of a private run."""

    def __init__(self, *args: Any, peers: Path, least: int = 2) -> None:
        super().__init__(*args)
        self._peers, self._least = read_peers(peers), least
        tables = tuple(t for t in self.model.schema.tables if t not in self.data.local)
        self.space = Space(self.model.schema, tables)

    def reply(self, letter: Message) -> bytes:
        if letter.kind != "sum":
            return super().reply(letter)
        folder = self.state.folder / "sums"
        party = Party(folder, own_key(self._home.folder), self._peers, self._least)
        try:
            return pack(party.answer(letter, self._inputs, self._ended))
        except FedrowsError as error:
            return pack(refuse(error))

    def _inputs(self, letter: Message) -> Inputs:
        if letter.facts["use"] == "heat":
            return Inputs(self._heat())
        if letter.facts["use"] == "union":
            _, position = self._asked(letter)
            index = {t: self.data.index[t].select(position) for t in self.space.tables}
            return Inputs(self.space.ids(index))
        return self._update(letter)

    def _ended(self, letter: Message, result: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
        if letter.facts["use"] == "union":
            return {}, {"asked": self._answers(letter, result)}
        if letter.facts["use"] == "update":
            self._keep_back(letter, result)
        return {}, {}

    def _heat(self) -> np.ndarray:
        """Σ of the weights of this node's clients that hold each row."""
        weights = self.data.weights(self.contract.plan.weighting)
        found = torch.zeros(self.space.rows, dtype=torch.float64)
        for table in self.space.tables:
            index = self.data.index[table]
            found.index_add_(0, index.ids + self.space.first[table], index.spread(weights))
        return found.round().to(torch.int64).numpy().astype(np.uint64)

    def _asked(self, letter: Message) -> tuple[list[Any], Tensor]:
        """The clients that a letter asks, by name and by their place in the shard."""
        told = self._enrolled(letter.facts["version"])
        places = letter.facts["places"]
        where = {name: i for i, name in enumerate(self._current.names)}
        names = [told.names[place] for place in places]
        if any(name not in where for name in names):
            raise StateLost
        return names, torch.tensor([where[name] for name in names], dtype=torch.int64)

    def _answers(self, letter: Message, union: np.ndarray) -> bytes:
        """Which rows of the union this node asks for; each client answers for itself."""
        names, position = self._asked(letter)
        stages = self.contract.privacy.stages
        wanted = np.zeros((len(names), len(union)), dtype=bool)
        for i, (name, at) in enumerate(zip(names, position.tolist(), strict=True)):
            for table in self.space.tables:
                first, rows = self.space.first[table], self.model.schema.tables[table].rows
                inside = (union >= first) & (union < first + rows)
                own = self.data.index[table].slice(at, at + 1).ids.numpy()
                if stages is None:
                    wanted[i, inside] = np.isin(union[inside] - first, own)
                    continue
                place = self._home.answers(name, table)
                said = Answers.open(place) if place.exists() else Answers(stages.permanent)
                wanted[i, inside] = said.answer_(
                    union[inside] - first, own, stages, values_of(self.data, table)
                )
                place.parent.mkdir(parents=True, exist_ok=True)
                said.save(place)  # before anything of it leaves
        np.savez(
            self._round(letter.facts["sum"]),
            union=union,
            places=np.array(letter.facts["places"]),
            wanted=wanted,
        )
        return ids_to_bytes(torch.from_numpy(np.flatnonzero(wanted.any(0))))

    def _round(self, name: str) -> Path:
        return self.state.folder / "sums" / name / "asked.npz"

    def _recalled(self, name: str) -> Asked:
        try:
            with np.load(self._round(name), allow_pickle=False) as file:
                return Asked(file["union"], file["places"], file["wanted"])
        except (OSError, ValueError, KeyError):
            raise StateLost from None

    def _update(self, letter: Message) -> Inputs:
        """Trains this node's clients, and adds up what they made."""
        facts = letter.facts
        asked = self._recalled(facts["union"])
        names, position = self._asked(letter)
        union = torch.from_numpy(asked.union)
        rows, dense, figures = self._trained(letter, asked, names, position)
        self._add_held(facts["held"], union, rows)
        limit, coding = facts["range"], Coding(**facts["coding"])
        np.savez(self._sent(facts["sum"]), rows=rows.numpy())
        rows = rows.clamp(-limit, limit)
        holds = rows.ne(0).any(1) | torch.from_numpy(self._held_rows(asked, position))
        flat = torch.cat([torch.tensor(figures, dtype=torch.float64), *dense]).clamp(-limit, limit)
        return Inputs(
            coding.encode(torch.where(holds[:, None], rows, 0).numpy()).reshape(len(rows), -1),
            holds.numpy(),
            coding.encode(flat.numpy()),
        )

    def _held_rows(self, asked: Asked, position: Tensor) -> np.ndarray:
        """Which rows of the union any client both holds and asked for."""
        found = np.zeros(len(asked.union), dtype=bool)
        for i, at in enumerate(position.tolist()):
            for table in self.space.tables:
                own = self.data.index[table].slice(at, at + 1).ids.numpy() + self.space.first[table]
                found |= asked.wanted[i] & np.isin(asked.union, own)
        return found

    def _trained(
        self, letter: Message, asked: Asked, names: list[Any], position: Tensor
    ) -> tuple[Tensor, list[Tensor], list[float]]:
        """Σ of w·Δ over the union's rows and the dense tensors, and Σ of w, w·steps, w·loss."""
        facts, plan, space = letter.facts, self.contract.plan, self.space
        union = torch.from_numpy(asked.union)
        got = union[torch.from_numpy(np.flatnonzero(asked.wanted.any(0)))]
        exact = "float64" if plan.dtype == "float64" else "float32"
        form = SubmodelLayout(space.index(got), self.model.schema, exact, plan.torch_dtype)
        model = decode_submodels("model", letter.parts, form)
        rows = {}
        for table in space.tables:
            held = self.data.index[table].select(position)
            there = self._there(table, held, asked)
            splits = torch.cat([torch.zeros(1, dtype=torch.int64), there.long().cumsum(0)])
            rows[table] = Index(held.ids[there], splits[held.splits])
        some = narrow(self.data, position, rows)
        sums = torch.zeros(len(union), space.width, dtype=torch.float64)
        dense = [torch.zeros(x[0].numel(), dtype=torch.float64) for x in model.dense.values()]
        if not len(some.clients):
            return sums, dense, [0.0] * FIGURES
        start = self._start(model, some.index, len(some.clients))
        numbers = torch.tensor(facts["numbers"], dtype=torch.int64)[some.clients]
        number = round_of(facts["tag"])
        about = Round(number, plan.lr_at(number), len(numbers), 0.0, numbers)
        local = replace(some.local, clients=numbers)
        upload = train(self.model, self.contract.algorithm, local, start, None, None, plan, about)
        weights = self.data.weights(plan.weighting)[position[some.clients]] / facts["heaviest"]
        keep = (
            1.0
            if self.contract.privacy.stages is None
            else (self.contract.privacy.stages.keep_probability)
        )
        for table in space.tables:
            its, values = some.index[table], upload.update.rows[table].double()
            place = torch.searchsorted(union, its.ids + space.first[table])
            scaled = values * (weights[its.owner] / keep)[:, None]
            sums[:, : values.shape[1]].index_add_(0, place, scaled)
        for into, x in zip(dense, upload.update.dense.values(), strict=True):
            into += weights @ x.double().reshape(len(x), -1)
        lost = self._loss(some, start)
        steps = float((weights * upload.steps).sum())
        return sums, dense, [float(weights.sum()), steps, float((weights * lost).sum())]

    def _there(self, table: str, held: Index, asked: Asked) -> Tensor:
        """Which rows that the clients hold they have asked for: (R,)."""
        ids = held.ids.numpy() + self.space.first[table]
        place = np.searchsorted(asked.union, ids).clip(max=max(len(asked.union) - 1, 0))
        if not len(asked.union):
            return torch.zeros(len(ids), dtype=torch.bool)
        right = asked.union[place] == ids
        return torch.from_numpy(right & asked.wanted[held.owner.numpy(), place])

    def _start(self, model: Submodels, index: Mapping[str, Index], clients: int) -> Submodels:
        rows = {}
        for table, its in index.items():
            if table not in model.index:
                begin = self.model.start().tables[table]
                rows[table] = begin[its.ids].to(self.contract.plan.torch_dtype)
                continue
            place = torch.searchsorted(model.index[table].ids, its.ids)
            rows[table] = model.rows[table].index_select(0, place)
        dense = {n: x.expand(clients, *x.shape[1:]).clone() for n, x in model.dense.items()}
        return Submodels(index, rows, dense)

    def _loss(self, some: Narrowed, start: Submodels) -> Tensor:
        """Each client's mean loss before it trained; 0 if losses are not reported."""
        count = len(some.clients)
        if not self.contract.options.report_loss:
            return torch.zeros(count, dtype=torch.float64)
        return losses(self.model, some.local, start).double()

    # -- what was not opened --

    @property
    def _held(self) -> TaggedTensors:
        return TaggedTensors(self.state.folder / "held")

    def _add_held(self, tag: int, union: Tensor, rows: Tensor) -> None:
        """Adds what was held back before to the rows that are sent now."""
        before = self._held.settle(tag)
        if before:
            place = torch.searchsorted(union, before["ids"]).clamp_(max=max(len(union) - 1, 0))
            here = union[place] == before["ids"] if len(union) else torch.zeros(0, dtype=torch.bool)
            rows.index_add_(0, place[here], before["rows"][here])

    def _sent(self, name: str) -> Path:
        """What went into a sum, until it is known what was opened."""
        return self.state.folder / "sums" / name / "sent.npz"

    def _keep_back(self, letter: Message, opened: np.ndarray) -> None:
        """Keeps for the next time what was not opened, or was beyond the range of a number."""
        facts, limit = letter.facts, letter.facts["range"]
        union = torch.from_numpy(self._recalled(facts["union"]).union)
        with np.load(self._sent(facts["sum"])) as file:
            sent = torch.from_numpy(file["rows"])
        rest = torch.where(
            torch.from_numpy(opened)[:, None], sent - sent.clamp(-limit, limit), sent
        )
        left = rest.ne(0).any(1)
        ids, rows = union[left], rest[left]
        before = self._held.get(facts["held"])
        if before:
            other = ~torch.isin(before["ids"], union)
            ids = torch.cat([ids, before["ids"][other]])
            rows = torch.cat([rows, before["rows"][other]])
            order = torch.argsort(ids)
            ids, rows = ids[order], rows[order]
        self._held.put(facts["tag"], {"ids": ids, "rows": rows})
