"""A node: the clients of one organisation or device, answering the server's letters.

    hello → here      who the node is, its clients, their index sets
    train → done      what some clients made of their rows, what has changed since they were told of
          → lost      the node no longer has what the server thinks it has: say hello again
    any   → refused   the two do not speak of the same model

Every answer is worked out from the letter, the shard and the state folder alone, so it does not
matter whether one process answers all letters or each letter has a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import train
from fedrows.data.federation import FederatedData
from fedrows.flower import parcel
from fedrows.flower.job import Contract, difference, digest
from fedrows.flower.memory import Memory, overlay, recall, store
from fedrows.flower.parcel import Form
from fedrows.flower.registry import describe
from fedrows.flower.shard import Lost, Told, changes, losses, matching, present
from fedrows.flower.state import NodeState, empty, round_of
from fedrows.flower.wire import Letter, WireError, ids_from_bytes, ids_to_bytes, pack, unpack
from fedrows.model import Model
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels, index_select


class ClientNode:
    """Answers letters for the clients of one shard."""

    def __init__(
        self, contract: Contract, data: FederatedData, state: NodeState, name: str | None = None
    ) -> None:
        self.contract, self._home = contract, state
        self.state = state
        self.data = data.to(torch.device("cpu"), contract.plan.torch_dtype)
        self.name, self._secret = state.identity(name)
        self.model: Model = contract.model(self.data)
        self._fingerprint = contract.fingerprint(self.model, self.data)

    def answer(self, message: bytes) -> bytes:
        """The answer to one letter."""
        letter = unpack(message)
        theirs = letter.facts.get("job")
        self.state = self._home.of_run(letter.facts.get("run"))
        if letter.kind == "hello" and theirs != self._fingerprint:
            return self._refused(difference(str(theirs), self._fingerprint))
        if letter.kind == "hello":
            return self._here(letter)
        if theirs != digest(self._fingerprint):
            return pack(Letter("lost", {"node": self.name}, {}))
        try:
            return self.reply(letter)
        except Lost:
            return pack(Letter("lost", {"node": self.name}, {}))

    def reply(self, letter: Letter) -> bytes:
        """The answer to a letter that is not the first."""
        return self._train(letter)

    def _refused(self, why: str) -> bytes:
        sentence = (
            f"Node {self.name!r} does not fit this run: {why}. "
            "Use the same fedrows, model and vocabulary on both sides."
        )
        self._home.refuse(sentence)
        return pack(Letter("refused", {"node": self.name, "why": sentence}, {}))

    def _here(self, letter: Letter) -> bytes:
        now = self._now
        self._tell(now, letter.facts["version"])
        told = {} if self.contract.secret else now.index
        facts, parts = describe(now.names, now.examples, told, self.model.schema)
        facts |= {"node": self.name, "secret": self._secret}
        return pack(Letter("here", facts, parts))

    @cached_property
    def _now(self) -> Told:
        return present(self.data)

    def _tell(self, told: Told, version: int) -> None:
        tensors = {"examples": torch.tensor(told.examples, dtype=torch.int64)}
        for table, its in told.index.items():
            tensors[f"{table}/ids"], tensors[f"{table}/splits"] = its.ids, its.splits
        self.state.told.put(version, tensors, names=told.names)

    def _told(self, version: int) -> Told:
        """What the server has been told as of a version."""
        found = self.state.told.settle(version)
        names = self.state.told.facts(version, "names")
        if found is None or names is None:
            raise Lost
        index = {
            table: Index(found[f"{table}/ids"], found[f"{table}/splits"])
            for table in self._now.index
        }
        return Told(names, found["examples"].tolist(), index)

    def _train(self, letter: Letter) -> bytes:
        contract, local = self.contract, self.data.local
        tag, version = letter.facts["tag"], letter.facts["version"]
        told = self._told(version)
        places = ids_from_bytes(letter.parts["places"], len(told.names), len(told.names))
        asked = told.select(places.tolist())
        numbers = torch.tensor(_plain(letter.parts["numbers"], len(places)))
        accepted = _plain(letter.parts["accepted"], len(places))
        here, position = matching(self.data, self._now, asked)
        download = self._download(letter, asked.index)
        memories = [
            self.state.of(name).settle(its) or {}
            for name, its in zip(asked.names, accepted, strict=True)
        ]
        start = _spread(download["model"], asked.index)
        start = self._with_local(start, position, memories)
        sent = _spread(download["sent"], asked.index) if "sent" in download else None
        kept = self._recall("kept", memories, asked.index) if contract.algorithm.keeps else None
        number = round_of(tag)
        facts = Round(number, contract.plan.lr_at(number), len(numbers), 0.0, numbers)
        parts = {}
        if contract.terms.report_loss:
            found = losses(self.model, here, start)
            parts["losses"] = found.to(torch.float32).numpy().tobytes()
        here = replace(here, clients=numbers)
        upload = train(
            self.model, contract.algorithm, here, start, sent, kept, contract.plan, facts
        )
        parts["steps"] = ids_to_bytes(upload.steps.to(torch.int64).add(1).cumsum(0))
        after: list[Memory] = [{} for _ in asked.names]
        for name, made in {"update": upload.update.without(local), **upload.extra}.items():
            parts |= self._upload(name, made, tag, memories, after)
        if upload.kept is not None:
            store("kept", upload.kept, after)
        stays = {table: start.rows[table] + upload.update.rows[table] for table in local}
        store("local", Submodels({t: start.index[t] for t in local}, stays, {}), after)
        for client, memory in zip(asked.names, after, strict=True):
            if memory:
                self.state.of(client).put(tag, memory)
        said, more = self._changes(told, version)
        return pack(Letter("done", {"tag": tag, **said}, parts | more))

    def _changes(self, told: Told, version: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What the server should be told of since it last was, as facts and parts."""
        found = changes(told, self._now)
        if found is None:
            return {}, {}
        self._tell(found.after, version + 1)
        moved = found.moved
        facts, parts = describe(
            moved.names, moved.examples, moved.index, self.model.schema, "changed/"
        )
        return {**facts, "left": found.left, "changes": True}, parts

    def _download(self, letter: Letter, index: Mapping[str, Index]) -> dict[str, Submodels]:
        """What the server sent, over the union of the clients' rows; known rows filled in."""
        union = {table: _union(its) for table, its in index.items()}
        exact = "float64" if self.contract.plan.dtype == "float64" else "float32"
        form = Form(union, self.model.schema, exact, self.contract.plan.torch_dtype)
        found = {
            name: parcel.read(name, letter.parts, form)
            for name in ("model", "sent")
            if any(part.startswith((f"{name}/", f"{name}.")) for part in letter.parts)
        }
        if self.contract.terms.row_cache:
            self._fill(found["model"], letter)
        return found

    def _fill(self, model: Submodels, letter: Letter) -> None:
        """Takes the rows that were not sent again from the cache, and caches those that were."""
        base = letter.facts["base"]
        cache = self.state.cache.settle(base) if base else {}
        if cache is None:
            raise Lost
        for table, rows in model.rows.items():
            ids = model.index[table].ids
            same = ids_from_bytes(letter.parts[f"same/{table}"], len(ids), len(ids))
            had, values = cache.get(f"{table}/ids", empty()), cache.get(table, rows[:0])
            place = torch.searchsorted(had, ids[same]).clamp_(max=max(len(had) - 1, 0))
            if len(same) and (not len(had) or not torch.equal(had[place], ids[same])):
                raise Lost
            if len(same):
                rows[same] = values[place]
            every = torch.unique(torch.cat([had, ids]))
            now = rows.new_zeros(len(every), rows.shape[1])
            now[torch.searchsorted(every, had)] = values
            now[torch.searchsorted(every, ids)] = rows
            cache[f"{table}/ids"], cache[table] = every, now
        self.state.cache.put(letter.facts["tag"], cache)

    def _upload(
        self,
        name: str,
        found: Submodels,
        tag: int,
        memories: list[Memory],
        after: list[Memory],
    ) -> dict[str, bytes]:
        """Submodels as parts; what a coarse coding rounds off is kept for the next time."""
        coding = self.contract.coding
        if coding not in ("float16", "int8"):
            return parcel.write(name, found, coding)
        rest = self._recall(f"rest/{name}", memories, found.index)
        parts = parcel.write(name, found.map(_with_rest, rest), coding, tag)
        form = Form(found.index, self.model.schema, coding, self.contract.plan.torch_dtype)
        arrived = parcel.read(name, parts, form)
        left = found.map(lambda own, old, gone: own + old - gone, rest, arrived)
        store(f"rest/{name}", left, after)
        return parts

    def _recall(self, name: str, memories: list[Memory], index: Mapping[str, Index]) -> Submodels:
        return recall(name, memories, index, self.model.schema, self.contract.plan.torch_dtype)

    def _with_local(
        self, start: Submodels, position: Tensor, memories: list[Memory]
    ) -> Submodels:  # fmt: skip
        """The submodels with the rows that never leave: as they started, or as they were left."""
        if not self.data.local:
            return start
        rows, index, begin = dict(start.rows), dict(start.index), self.model.start().tables
        for table in self.data.local:
            index[table] = its = self.data.index[table].select(position)
            mine = index_select(begin[table], its.ids).to(self.contract.plan.torch_dtype)
            for i, memory in enumerate(memories):
                if f"local/{table}" in memory:
                    low, high = int(its.splits[i]), int(its.splits[i + 1])
                    overlay(mine[low:high], its.ids[low:high], f"local/{table}", memory)
            rows[table] = mine
        return Submodels(index, rows, start.dense)


def _with_rest(update: Tensor, rest: Tensor) -> Tensor:
    """An update with what was rounded off before, in rows that move anyway.

    A rest alone is no reason to send a row, or every row that a client ever moved would travel.
    """
    moved = update.unsqueeze(-1).flatten(1).ne(0).any(1)
    return update + rest * moved.view(-1, *[1] * (update.dim() - 1))


def _plain(data: bytes, count: int) -> list[int]:
    """Whole numbers that need not be sorted, eight bytes each."""
    if len(data) != 8 * count:
        raise WireError("A list of numbers in the letter has the wrong length.")
    return [int(x) for x in np.frombuffer(data, dtype="<i8")]


def _union(index: Index) -> Index:
    ids = torch.unique(index.ids)
    return Index(ids, torch.tensor([0, len(ids)]))


def _spread(union: Submodels, index: Mapping[str, Index]) -> Submodels:
    """Every client's own copy of its rows, from those of the union."""
    rows = {}
    for table, its in index.items():
        place = torch.searchsorted(union.index[table].ids, its.ids)
        rows[table] = index_select(union.rows[table], place)
    clients = next(iter(index.values())).clients
    dense = {n: x.expand(clients, *x.shape[1:]).clone() for n, x in union.dense.items()}
    return Submodels(index, rows, dense)
