"""A node: it hosts the clients of one organisation or device, and answers the server's messages.

    enrol → enrolled     who the node is, its clients, their index sets
    train → trained      updates of some clients, and how the clients have changed since enrolment
          → state-lost   the node no longer has what the server counts on: enrol it again
    any   → refused      the two sides do not have the same contract
          → declined     the node's policy does not allow it

Every answer follows from the message, the shard and the state folder alone. So one process may
answer all messages, or each message may have a process of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Assignment, train
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import check_room
from fedrows.data.personal import in_one_row
from fedrows.flower.node.client_memory import overlay, recall, store, store_local
from fedrows.flower.node.enrolled import (
    EnrolledClients,
    StateLost,
    changes_since,
    current_clients,
    fit_to_enrolled,
    version_of,
)
from fedrows.flower.node.losses import losses
from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.node.policy_use import PolicyUse
from fedrows.flower.node.state import Memory, NodeState
from fedrows.flower.wire.clients import describe_clients, no_ids
from fedrows.flower.wire.codings import ids_from_bytes, ids_to_bytes, integers_from_bytes
from fedrows.flower.wire.contract import Contract, difference, digest
from fedrows.flower.wire.label_counters import COUNT, labels_message, prior_in
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    decode_submodels,
    encode_marks,
    encode_submodels,
)
from fedrows.model import Model
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels, index_select
from fedrows.simulator.counted_start import count_labels, own_levels
from fedrows.simulator.fast_paths import traced


class ClientNode:
    """Answers messages for the clients of one shard."""

    def __init__(
        self,
        contract: Contract,
        data: FederatedData,
        state: NodeState,
        name: str | None = None,
        policy: NodePolicy | None = None,
    ) -> None:
        self.contract, self._home = contract, state
        self.policy = policy or NodePolicy.open()
        self.use = PolicyUse(state.folder, self.policy)
        self.state = state
        self.data = in_one_row(data).to(torch.device("cpu"), contract.plan.torch_dtype)
        self.name, self._secret = state.identity(name)
        self.model: Model = contract.model(self.data)
        self._draws = contract.draws(self.data)
        if self._draws is not None:
            check_room(self.data, self._draws)
        self._fingerprint = contract.fingerprint(self.model, self.data)

    @cached_property
    def training(self) -> Model:
        """What steps are taken with; most messages of a private round take none."""
        return traced(self.model, self.contract.plan, [])

    def answer(self, request: bytes) -> bytes:
        """The answer to one message."""
        message = unpack(request)
        fingerprint, run = message.facts.get("contract"), message.facts.get("run")
        if message.kind == "enrol":
            if fingerprint != self._fingerprint:
                return self._refused(difference(str(fingerprint), self._fingerprint))
            self.state = self._home.of_run(run)
            return self._enrol(message)
        try:
            if not self._home.has_run(run) or fingerprint != digest(self._fingerprint):
                raise StateLost
            self.state = self._home.of_run(run)
            return self.reply(message)
        except StateLost:
            return pack(Message("state-lost", {"node": self.name}))

    def reply(self, message: Message) -> bytes:
        """The answer to a message that is not the first."""
        if message.kind == COUNT and self.contract.plan.start == "counted":
            return self._count_labels(message)
        if message.kind != "train":
            raise WireError("A node in a run in the clear trains, and answers nothing else.")
        self.use.begin_round_()
        return self._train(message)

    def _refused(self, why: str) -> bytes:
        sentence = (
            f"Node {self.name!r} does not fit this run: {why}. "
            "Use the same fedrows, model and vocabulary on both sides."
        )
        self._home.refuse(sentence)
        return pack(Message("refused", {"node": self.name, "why": sentence}))

    def _enrol(self, message: Message) -> bytes:
        """Sends the node's clients as they are; their index sets stay here in a private run.

        Their numbers of examples stay here too, unless the mean is weighted by them.
        """
        current = self._current
        self._remember(current, message.facts["version"])
        index, examples = current.index, current.examples
        if self.contract.secret:
            index = {}
            if self.contract.plan.weighting != "examples":
                examples = [1] * len(examples)
        facts, parts = describe_clients(current.names, examples, index, self.model.schema)
        facts |= {"node": self.name, "secret": self._secret, **self._about()}
        return pack(self._signed(message, Message("enrolled", facts, parts)))

    def _about(self) -> dict[str, Any]:
        """What the server must know of a node of a special kind."""
        return {}

    def _signed(self, request: Message, enrolled: Message) -> Message:
        """The registration as it is sent; a private node signs it."""
        return enrolled

    @cached_property
    def _current(self) -> EnrolledClients:
        return current_clients(self.data)

    def _remember(self, enrolled: EnrolledClients, version: int) -> None:
        """Stores the clients as the server will know them from this version on."""
        tensors = {"examples": torch.tensor(enrolled.examples, dtype=torch.int64)}
        for table, index in enrolled.index.items():
            tensors[f"{table}/ids"], tensors[f"{table}/splits"] = index.ids, index.splits
        self.state.enrolled.put(version, tensors, names=enrolled.names)

    def _enrolled(self, version: int) -> EnrolledClients:
        """The clients as the server knows them by a version."""
        tensors = self.state.enrolled.settle(version)
        names = self.state.enrolled.facts(version, "names")
        if tensors is None or names is None:
            raise StateLost
        index = {
            table: Index(tensors[f"{table}/ids"], tensors[f"{table}/splits"])
            for table in self._current.index
        }
        return EnrolledClients(names, tensors["examples"].tolist(), index)

    def _count_labels(self, message: Message) -> bytes:
        """How many clients have and like each item; a count of heat, as far as the policy goes."""
        if changes_since(self._enrolled(message.facts["version"]), self._current) is not None:
            raise StateLost  # the server would refuse rows that it does not know of
        self.use.count_heat_(version_of(self._current.index))
        return pack(labels_message(count_labels(self.data)))

    def _train(self, message: Message) -> bytes:
        """Trains the clients that a message names, and stores what they remember."""
        contract, local = self.contract, self.data.local
        tag, version = message.facts["tag"], message.facts["version"]
        enrolled = self._enrolled(version)
        positions = ids_from_bytes(
            message.parts["positions"], len(enrolled.names), len(enrolled.names)
        )
        asked = enrolled.select(positions.tolist())
        numbers = torch.tensor(integers_from_bytes(message.parts["numbers"], len(positions)))
        accepted = integers_from_bytes(message.parts["accepted"], len(positions))
        examples, position = fit_to_enrolled(self.data, self._current, asked)
        examples, number, index = replace(examples, clients=numbers), round_of(tag), asked.index
        keys = None
        if self._draws is not None:
            pools = self._draws.pools(index[self._draws.table].lengths)
            keys = pools.keys(contract.plan.seed, number, numbers)
            examples = replace(examples, pools=pools)
            index = self._draws.index(index, numbers, number)
        download = self._download(message, index)
        memories = self.state.memories(asked.names, accepted)
        start = spread_rows(download["model"], index)
        prior = prior_in(message.facts, contract.plan)
        start = self._with_local(start, position, memories, prior)
        sent = spread_rows(download["sent"], index) if "sent" in download else None
        remembered = self._recall("kept", memories, index) if contract.algorithm.keeps else None
        facts = Round(number, contract.plan.lr_at(number), len(numbers), 0.0, numbers)
        parts = {}
        if contract.options.report_loss:
            reported = losses(self.model, examples, start, keys)
            parts["losses"] = reported.to(torch.float32).numpy().tobytes()
        assignment = Assignment(examples, start, sent, remembered, facts)
        upload = train(self.training, contract.algorithm, contract.plan, assignment)
        parts["steps"] = ids_to_bytes(upload.steps.to(torch.int64).add(1).cumsum(0))
        after: list[Memory] = [{} for _ in asked.names]
        for name, part in {"update": upload.update.without(local), **upload.extra}.items():
            parts |= self._encode(name, part, tag, memories, after)
        if upload.occurred is not None:
            parts |= encode_marks(upload.occurred)
        if upload.kept is not None:
            store("kept", upload.kept, after)
        store_local(local, start, upload.update, after)
        for client, memory in zip(asked.names, after, strict=True):
            if memory:
                self.state.of(client).put(tag, memory)
        changed_facts, changed_parts = self._changes(enrolled, version)
        return pack(Message("trained", {"tag": tag, **changed_facts}, parts | changed_parts))

    def _changes(
        self, enrolled: EnrolledClients, version: int
    ) -> tuple[dict[str, Any], dict[str, bytes]]:
        """How the clients have changed since enrolment, as facts and parts."""
        changes = changes_since(enrolled, self._current)
        if changes is None:
            return {}, {}
        self._remember(changes.after, version + 1)
        moved = changes.moved
        facts, parts = describe_clients(
            moved.names, moved.examples, moved.index, self.model.schema, "changed/"
        )
        return {**facts, "left": changes.left, "changes": True}, parts

    def _download(self, message: Message, index: Mapping[str, Index]) -> dict[str, Submodels]:
        """What the server sent, over the union of the clients' rows; known rows filled in."""
        union = {table: _union(rows) for table, rows in index.items()}
        layout = self._layout(union, self.contract.plan.dtype)
        download = {
            name: decode_submodels(name, message.parts, layout)
            for name in ("model", "sent")
            if any(part.startswith((f"{name}/", f"{name}.")) for part in message.parts)
        }
        if self.contract.options.row_cache:
            self._fill_(download["model"], message)
        return download

    def _fill_(self, model: Submodels, message: Message) -> None:
        """Takes the rows that were not sent again from the cache, and caches those that were."""
        base = message.facts["base"]
        cache = self.state.cache.settle(base) if base else {}
        if cache is None:
            raise StateLost
        for table, rows in model.rows.items():
            ids = model.index[table].ids
            same = ids_from_bytes(message.parts[f"same/{table}"], len(ids), len(ids))
            known, values = cache.get(f"{table}/ids", no_ids()), cache.get(table, rows[:0])
            at = torch.searchsorted(known, ids[same]).clamp_(max=max(len(known) - 1, 0))
            if len(same) and (not len(known) or not torch.equal(known[at], ids[same])):
                raise StateLost
            if len(same):
                rows[same] = values[at]
            every = torch.unique(torch.cat([known, ids]))
            now = rows.new_zeros(len(every), rows.shape[1])
            now[torch.searchsorted(every, known)] = values
            now[torch.searchsorted(every, ids)] = rows
            cache[f"{table}/ids"], cache[table] = every, now
        self.state.cache.put(message.facts["tag"], cache)

    def _encode(
        self,
        name: str,
        part: Submodels,
        tag: int,
        memories: list[Memory],
        after: list[Memory],
    ) -> dict[str, bytes]:
        """Submodels as parts; what a coarse coding rounds off is kept for the next time."""
        coding = self.contract.coding
        if coding not in ("float16", "int8"):
            return encode_submodels(name, part, coding)
        rest = self._recall(f"rest/{name}", memories, part.index)
        parts = encode_submodels(name, part.map(_with_rest, rest), coding, tag)
        arrived = decode_submodels(name, parts, self._layout(part.index, coding))
        left = part.map(lambda own, old, gone: own + old - gone, rest, arrived)
        store(f"rest/{name}", left, after)
        return parts

    def _layout(self, index: Mapping[str, Index], coding: str) -> SubmodelLayout:
        return SubmodelLayout(index, self.model.schema, coding, self.contract.plan.torch_dtype)

    def _recall(self, name: str, memories: list[Memory], index: Mapping[str, Index]) -> Submodels:
        return recall(name, memories, index, self.model.schema, self.contract.plan.torch_dtype)

    def _with_local(
        self, start: Submodels, position: Tensor, memories: list[Memory], prior: float | None
    ) -> Submodels:
        """The submodels with the rows that never leave: as they started, or as they were left.

        prior: of a counted start, by which a client works out where its own biases begin.
        """
        if not self.data.local:
            return start
        biases, levels = self.model.biases, dict[str, Tensor]()
        if prior is not None and biases is not None:
            levels = own_levels(biases, self.data, prior, self.contract.plan)
        rows, index, begin = dict(start.rows), dict(start.index), self.model.start().tables
        for table in self.data.local:
            index[table] = held = self.data.index[table].select(position)
            own = index_select(begin[table], held.ids).to(self.contract.plan.torch_dtype)
            if biases is not None and table in levels:
                own[:, biases.columns[table]] = levels[table][position].to(own)
            for i, memory in enumerate(memories):
                if f"local/{table}" in memory:
                    low, high = int(held.splits[i]), int(held.splits[i + 1])
                    overlay(own[low:high], held.ids[low:high], f"local/{table}", memory)
            rows[table] = own
        return Submodels(index, rows, start.dense)


def _with_rest(update: Tensor, rest: Tensor) -> Tensor:
    """An update with what was rounded off before, in rows that move anyway.

    A rest alone is no reason to send a row, or every row that a client ever moved would travel.
    """
    moved = update.unsqueeze(-1).flatten(1).ne(0).any(1)
    return update + rest * moved.view(-1, *[1] * (update.dim() - 1))


def _union(index: Index) -> Index:
    ids = torch.unique(index.ids)
    return Index(ids, torch.tensor([0, len(ids)]))


def spread_rows(union: Submodels, index: Mapping[str, Index]) -> Submodels:
    """Every client's own copy of its rows, from those of the union."""
    rows = {}
    for table, own_index in index.items():
        at = torch.searchsorted(union.index[table].ids, own_index.ids)
        rows[table] = index_select(union.rows[table], at)
    clients = next(iter(index.values())).clients
    dense = {n: x.expand(clients, *x.shape[1:]).clone() for n, x in union.dense.items()}
    return Submodels(index, rows, dense)
