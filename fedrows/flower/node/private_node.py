"""A node in a private run: it shows no index set, and its updates leave in secure sums alone.

What happens in a round is `privacy.client_side`; here are the messages, the disk and the checks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload, train
from fedrows.data.batches import LocalData
from fedrows.errors import FedrowsError
from fedrows.flower.node.client_memory import Memory, store
from fedrows.flower.node.enrolled import StateLost
from fedrows.flower.node.losses import losses
from fedrows.flower.node.node import ClientNode, spread_rows
from fedrows.flower.node.node_sums import Arrays, NodeSums
from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack
from fedrows.flower.wire.signing import own_key, read_peers
from fedrows.flower.wire.submodels import SubmodelLayout, decode_submodels
from fedrows.flower.wire.sums import (
    coding_of,
    heat_terms,
    row_space,
    threshold,
    union_terms,
    update_terms,
    weighted_mean,
)
from fedrows.flower.wire.tags import round_of
from fedrows.privacy import openings, secure_sum, union
from fedrows.privacy.asking import Asking
from fedrows.privacy.client_side import (
    AskedTraining,
    heat_vector,
    shared_update,
    train_on_asked,
)
from fedrows.privacy.counting import values_of
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.layout import Contribution, PartyVectors
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.randomness import fresh
from fedrows.privacy.replay import Done
from fedrows.privacy.weighted_mean import ClientUpdates
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

_NODE = np.zeros(1, dtype=np.int64)  # the name by which a node holds rows back: it is one party
_YES = np.ones(1, dtype=bool)


class PrivateNode(ClientNode):
    """Answers the messages of a private run.

    least: the fewest nodes that this one takes part in a sum with.
    """

    def __init__(self, *args: Any, peers: Path, least: int = 2) -> None:
        super().__init__(*args)
        self._peers, self._least = read_peers(peers), least
        tables = tuple(t for t in self.model.schema.tables if t not in self.data.local)
        self._space = row_space(self.model.schema, tables)
        self._mean = weighted_mean(self.contract, self.model.schema, tables)
        values = {table: values_of(self.data, table) for table in tables}
        stages, path = self.contract.privacy.stages, self._home.answers
        self._asking = Asking(self._space, stages, values, path, fresh)

    def reply(self, message: Message) -> bytes:
        """The answer to one phase of a sum; a private node answers nothing else."""
        sums = NodeSums(self.state.folder / "sums")
        try:
            if message.kind != "sum":
                raise ProtocolError(
                    "This node takes part in secure sums, and trains for nothing else."
                )
            return pack(self._phase(sums, message))
        except FedrowsError as error:
            facts = {"why": str(error)[:300], "newest": sums.newest}
            return pack(Message("silent", facts, {}))

    def _phase(self, sums: NodeSums, message: Message) -> Message:
        name = message.facts.get("sum")
        if message.facts.get("phase") == 0:
            facts = {key: value for key, value in message.facts.items() if key != "phase"}
            sums.begin(facts)
            sums.put_inputs(facts["sum"], self._inputs(sums, facts, message.parts))
        request = message.parts.get("request", b"")
        facts, reply = sums.advance(name, lambda *args: self._half(sums, *args), request)
        if not isinstance(reply, Done):
            return Message("sum", {"sum": name}, {"reply": reply})
        parts = self._end(sums, facts, reply.result)
        sums.end(facts["sum"])
        return Message("sum", {"sum": name}, parts)

    def _inputs(self, sums: NodeSums, facts: dict[str, Any], parts: dict[str, bytes]) -> Arrays:
        """What the node puts into a sum."""
        if facts["use"] == "heat":
            weights = self.data.weights(self.contract.plan.weighting)
            return {"words": heat_vector(self._space, self.data, weights)}
        names, position = self._asked_clients(facts)
        if facts["use"] == "union":
            index = {t: self.data.index[t].select(position) for t in self._space.tables}
            return {"places": self._space.places(index)}
        asked = sums.asked(facts["union"])
        training = self._trained(facts, parts, asked, names, position)
        return self._contribution(facts, asked, training, position)

    def _half(self, sums: NodeSums, facts: dict[str, Any], inputs: Arrays) -> ClientHalf[Any]:
        """The node's half of a protocol."""
        registry, key, me = self._registry(facts), own_key(self._home.folder), int(facts["party"])
        if facts["use"] == "heat":
            terms = heat_terms(self.contract, facts, self._space)
            return secure_sum.client(terms, me, key, registry, inputs["words"])
        if facts["use"] == "union":
            plan, terms = union_terms(self.contract, facts, self._space)
            return union.client(terms, plan, me, key, registry, inputs["places"])
        layout = self._mean.layout(self._space.by_table(sums.asked(facts["union"])["union"]))
        opening, terms = update_terms(self.contract, facts, layout)
        vectors = PartyVectors(layout, self._read_contribution(inputs), coding_of(facts))
        return openings.client(opening, terms, me, key, registry, *vectors.words(0))

    def _registry(self, facts: dict[str, Any]) -> dict[int, bytes]:
        """The keys of a sum's parties, which must be known and enough."""
        parties = {int(number): str(node) for number, node in facts["parties"].items()}
        missing = [node for node in parties.values() if node not in self._peers]
        if missing:
            raise ProtocolError(
                f"Node {missing[0]!r} is not among the peers that this node knows: it takes no "
                "part in a sum with it."
            )
        if (needed := threshold(self.contract, facts)) < self._least:
            raise ProtocolError(
                f"The sum asks for {needed} nodes at least, fewer than the {self._least} that this "
                "node insists on."
            )
        return {number: self._peers[node] for number, node in parties.items()}

    def _end(self, sums: NodeSums, facts: dict[str, Any], result: Any) -> dict[str, bytes]:
        """What the node says, and what it keeps, when a sum is over."""
        if facts["use"] == "union":
            return {"asked": self._answers(sums, facts, result)}
        if facts["use"] == "update":
            layout = self._mean.layout(self._space.by_table(sums.asked(facts["union"])["union"]))
            sent, held = self._read_contribution(sums.inputs(facts["sum"])), self._held(facts)
            self._mean.keep_(held, sent, _NODE, layout, layout.marks(result), _YES, _YES)
            self.state.held.put(facts["tag"], held.tensors())
            sums.forget_asked()
        return {}

    def _asked_clients(self, facts: dict[str, Any]) -> tuple[list[ClientName], Tensor]:
        """The clients that a message asks, by name and by their place in the shard."""
        enrolled = self._enrolled(facts["version"])
        where = {name: i for i, name in enumerate(self._current.names)}
        names = [enrolled.names[place] for place in facts["places"]]
        if any(name not in where for name in names):
            raise StateLost
        return names, torch.tensor([where[name] for name in names], dtype=torch.int64)

    def _answers(self, sums: NodeSums, facts: dict[str, Any], united: np.ndarray) -> bytes:
        """Which rows of the union this node asks for; each client answers for itself."""
        names, position = self._asked_clients(facts)
        wanted = []
        for name, at in zip(names, position.tolist(), strict=True):
            held = {t: self.data.index[t].slice(at, at + 1) for t in self._space.tables}
            wanted.append(self._asking.wanted(name, united, self._space.places(held)))
        splits = np.cumsum([0, *map(len, wanted)])
        sums.put_asked(
            facts["sum"], {"union": united, "wanted": np.concatenate(wanted), "splits": splits}
        )
        together = np.unique(np.concatenate(wanted))
        return ids_to_bytes(torch.from_numpy(np.searchsorted(united, together)))

    def _trained(
        self,
        facts: dict[str, Any],
        parts: dict[str, bytes],
        asked: Arrays,
        names: list[ClientName],
        position: Tensor,
    ) -> AskedTraining:
        """Trains the clients on the rows they asked for; local rows are kept under the tag."""
        plan, tag, numbers = self.contract.plan, facts["tag"], torch.tensor(facts["numbers"])
        index = self._space.index(np.split(asked["wanted"], asked["splits"][1:-1]))
        memories = [
            self.state.of(name).settle(accepted) or {}
            for name, accepted in zip(names, facts["accepted"], strict=True)
        ]
        start = spread_rows(self._rows_sent(parts, np.unique(asked["wanted"])), index)
        start = self._with_local(start, position, memories)
        number = round_of(tag)
        about = Round(number, plan.lr_at(number), len(numbers), 0.0, numbers)
        of = dict(zip(position.tolist(), numbers.tolist(), strict=True))

        def train_here(local: LocalData, own: Submodels, sent: Submodels | None) -> Upload:
            known = torch.tensor([of[client] for client in local.clients.tolist()])
            local, algorithm = replace(local, clients=known), self.contract.algorithm
            return train(self.training, algorithm, local, own, sent, None, plan, about)

        there = torch.ones(len(position), dtype=torch.bool)
        training = train_on_asked(self.data, position, index, there, start, None, train_here)
        self._keep_local(training, names, memories, tag)
        return training

    def _rows_sent(self, parts: dict[str, bytes], places: np.ndarray) -> Submodels:
        """The rows that the node asked for."""
        exact = self.contract.plan.dtype
        index, dtype = self._space.index([places]), self.contract.plan.torch_dtype
        layout = SubmodelLayout(index, self.model.schema, exact, dtype)
        return decode_submodels("model", parts, layout)

    def _keep_local(
        self, training: AskedTraining, names: list[ClientName], memories: list[Memory], tag: int
    ) -> None:
        """Keeps the rows of local tables; who did not train keeps what it had."""
        local, start, update = self.data.local, training.start, training.update
        if not local:
            return
        stays = {table: start.rows[table] + update.rows[table] for table in local}
        trained: list[Memory] = [{} for _ in training.clients]
        store("local", Submodels({t: start.index[t] for t in local}, stays, {}), trained)
        after = [dict(memory) for memory in memories]
        for place, memory in zip(training.clients.tolist(), trained, strict=True):
            after[place] |= memory
        for name, memory in zip(names, after, strict=True):
            self.state.of(name).put(tag, memory)

    def _contribution(
        self, facts: dict[str, Any], asked: Arrays, training: AskedTraining, position: Tensor
    ) -> Arrays:
        """What the node puts into the sum of updates."""
        count = len(training.clients)
        before = np.zeros(count)
        if self.contract.options.report_loss and training.local is not None:
            before = losses(self.model, training.local, training.start).double().numpy()
        updates = ClientUpdates(
            shared_update(training, self._space.tables, self.contract.privacy.keep_probability),
            self.data.weights(self.contract.plan.weighting)[position[training.clients]].numpy(),
            np.zeros(count, dtype=np.int64),
            _NODE,
            before,
        )
        united = self._space.by_table(asked["union"])
        self.state.held.settle(facts["held"])
        held, layout = self._held(facts), self._mean.layout(united)
        sent = self._mean.contribute(updates, united, held)
        # Should the node never hear what was opened, it must send nothing twice.
        nothing = {table: np.zeros(len(ids), dtype=bool) for table, ids in united.items()}
        self._mean.keep_(held, sent, _NODE, layout, nothing, _YES, ~_YES)
        self.state.held.put(facts["tag"], held.tensors())
        arrays = {"extra": sent.extra}
        for table, index in sent.rows.index.items():
            arrays[f"{table}/ids"] = index.ids.numpy()
            arrays[f"{table}/rows"] = sent.rows.rows[table].numpy()
            arrays[f"{table}/rest"] = sent.rest[table]
        return arrays

    def _read_contribution(self, arrays: Arrays) -> Contribution:
        index, rows = {}, {}
        for table in self._space.tables:
            ids = torch.from_numpy(arrays[f"{table}/ids"])
            index[table] = Index(ids, torch.tensor([0, len(ids)]))
            rows[table] = torch.from_numpy(arrays[f"{table}/rows"])
        rest = {table: arrays[f"{table}/rest"] for table in index}
        return Contribution(Submodels(index, rows, {}), arrays["extra"], rest)

    def _held(self, facts: dict[str, Any]) -> HeldBack:
        """What the node holds back, as of the last sum that counted."""
        held, before = HeldBack(self._mean.widths), self.state.held.get(facts["held"])
        if before is not None:
            held.restore_(before)
        return held
