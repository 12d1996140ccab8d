"""A node in a private run: it shows no index set, and its updates leave in secure sums alone.

What happens in a round is `privacy.client_side`; here are the messages, the disk and the checks.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Assignment, Upload, train
from fedrows.data.batches import LocalData
from fedrows.errors import FedrowsError
from fedrows.flower.node.client_memory import with_local_rows
from fedrows.flower.node.enrolled import StateLost, version_of
from fedrows.flower.node.losses import losses
from fedrows.flower.node.node import ClientNode, spread_rows
from fedrows.flower.node.node_sums import Arrays, NodeSums
from fedrows.flower.node.parties import party_keys
from fedrows.flower.node.policy import PolicyError
from fedrows.flower.node.state import Memory
from fedrows.flower.node.sum_inputs import contribution_arrays, counted_words, read_contribution
from fedrows.flower.wire.clients import ClientName
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import digest
from fedrows.flower.wire.label_counters import prior_in
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.flower.wire.model_digests import DIGESTS, check_model
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.signing import own_key, read_peers, sign_enrolment
from fedrows.flower.wire.submodels import decode_submodels
from fedrows.flower.wire.sums import (
    ASKED,
    USES,
    VECTORS,
    coding_of,
    heat_terms,
    row_space,
    threshold,
    union_terms,
    update_parties,
    update_terms,
    weighted_mean,
)
from fedrows.privacy import openings, secure_sum, union
from fedrows.privacy.answers import Asking
from fedrows.privacy.client_side import AskedTraining, shared_update, train_on_asked
from fedrows.privacy.counting import values_of
from fedrows.privacy.held_back import HeldBack
from fedrows.privacy.layout import PartyVectors
from fedrows.privacy.messages import sign
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.randomness import fresh
from fedrows.privacy.relations import check_declared
from fedrows.privacy.replay import Done
from fedrows.privacy.weighted_mean import ClientUpdates
from fedrows.rows.heat import Heat
from fedrows.rows.params import Submodels

log = logging.getLogger("fedrows.flower")
NO_ANSWER = "the node could not answer"  # all that the server hears: a reason may tell of data
NODE = np.zeros(1, dtype=np.int64)  # the name by which a node holds rows back: it is one party
_YES = np.ones(1, dtype=bool)
_HELD = 0  # the tag of the rows held back, of which there is one version


class PrivateNode(ClientNode):
    """Answers the messages of a private run: requests to enrol, and the phases of secure sums.

    peers: the file of the other nodes' public keys.
    """

    def __init__(self, *args: Any, peers: Path) -> None:
        super().__init__(*args)
        self._peers = read_peers(peers)
        tables = tuple(t for t in self.model.schema.tables if t not in self.data.local)
        self._space = row_space(self.model.schema, tables)
        self._mean = weighted_mean(self.contract, self.model.schema, tables, self.data.groups)
        values = {table: values_of(self.data, table) for table in tables}
        privacy, path = self.contract.privacy, self._home.answers
        self._asking = Asking(self._space, privacy.stages, values, path, fresh, privacy.coins)

    def _signed(self, request: Message, enrolled: Message) -> Message:
        key, asked = own_key(self._home.folder), request.facts
        return sign_enrolment(key, asked["run"], asked["version"], enrolled)

    def reply(self, message: Message) -> bytes:
        """The answer to phases of sums; a private node answers nothing else."""
        if message.kind != "sums":
            return self._reply(message)
        try:
            phases = {name: unpack(part) for name, part in message.parts.items()}
            for fact in ("run", "contract"):
                if any(x.facts.get(fact) != message.facts[fact] for x in phases.values()):
                    raise WireError(f"A message brings one of another {fact}.")
        except WireError as error:
            log.warning("This node does not answer: %s", error)
            return pack(Message("silent", {"why": NO_ANSWER}))
        answers = {}
        for name, phase in phases.items():
            try:
                answers[name] = self._reply(phase)
            except PolicyError as error:
                self._home.decline(str(error))
                answers[name] = pack(Message("declined"))
            except StateLost:
                answers[name] = pack(Message("state-lost"))
        return pack(Message("sums", {}, answers))

    def _reply(self, message: Message) -> bytes:
        """The answer to one phase of a sum."""
        # A round has at most four exchanges, each of which may take as long as the time-out.
        sums = NodeSums(self.state.folder / "sums", 4 * self.contract.options.timeout)
        try:
            if message.kind != "sum":
                raise ProtocolError(
                    "This node takes part in secure sums, and trains for nothing else."
                )
            return pack(self._phase(sums, message))
        except (PolicyError, StateLost):
            raise
        except FedrowsError as error:
            log.warning("This node does not answer: %s", error)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            log.warning("A message of the server makes no sense.", exc_info=True)
        return pack(Message("silent", {"why": NO_ANSWER, "newest": sums.newest}))

    def _phase(self, sums: NodeSums, message: Message) -> Message:
        name, begins = message.facts.get("sum"), message.facts.get("phase") == 0
        if begins:
            facts = {key: value for key, value in message.facts.items() if key != "phase"}
            facts["contract"] = digest(self._fingerprint)  # its own, whatever the message says
            self._registry(facts)
            if facts["use"] not in USES:
                raise ProtocolError("The message asks for a sum that this node does not know.")
            sums.begin(facts)
        ahead = sums.facts(name).get("ahead") is True
        works = message.facts.get("phase") == VECTORS if ahead else begins
        try:
            if works:
                self._begin_work(sums, message)
            facts, reply = sums.advance(
                name, lambda facts: self._half_begun(sums, facts), message.parts.get("request", b"")
            )
            if not isinstance(reply, Done):
                return Message("sum", {"sum": name}, {"reply": reply})
            sums.inputs(facts["sum"])  # without them the policy was not asked
            parts = self._end(sums, facts, reply.result)
        except BaseException:
            sums.end(str(name))  # a half that has refused a message never goes on
            raise
        sums.end(facts["sum"])
        return Message("sum", {"sum": name}, parts)

    def _begin_work(self, sums: NodeSums, message: Message) -> None:
        """Takes in what a sum adds up, and makes what the node puts into it."""
        facts = sums.begin_work(message.facts.get("sum"), message.facts)
        if facts["use"] != "heat":
            self._asked_clients(facts)
        self._use_up_(facts)
        sums.put_inputs(facts["sum"], self._inputs(sums, facts, message.parts))

    def _inputs(self, sums: NodeSums, facts: dict[str, Any], parts: dict[str, bytes]) -> Arrays:
        """What the node puts into a sum."""
        if facts["use"] == "heat":
            return {"words": counted_words(facts, self.contract, self.data, self._space)}
        names, position = self._asked_clients(facts)
        if facts["use"] == "union":
            index = {t: self.data.index[t].select(position) for t in self._space.tables}
            if not len(places := self._space.places(index)):
                raise ProtocolError("The clients that are asked hold no row: the node drops out.")
            return {"places": places}
        asked = self._asked(sums, facts, names)
        self._check_range(facts)
        check_declared(self.data, self._mean.values or {}, position)
        training = self._trained(facts, parts, asked, names, position)
        return self._sent(self._updates(facts, training, position), asked)

    def _half_begun(self, sums: NodeSums, facts: dict[str, Any]) -> ClientHalf[Any]:
        """The node's half of a protocol, which ends under the contract that it began under."""
        if facts["contract"] != digest(self._fingerprint):
            raise ProtocolError("The sum was begun under another contract: the node drops out.")
        return self._half(sums, facts)

    def _half(self, sums: NodeSums, facts: dict[str, Any]) -> ClientHalf[Any]:
        """The node's half of a protocol; what goes into the sum is read when it is wanted."""
        registry, key, me = self._registry(facts), own_key(self._home.folder), int(facts["party"])
        name = facts["sum"]
        if facts["use"] == "heat":
            terms = heat_terms(self.contract, facts, self._space)
            return secure_sum.client(terms, me, key, registry, lambda _: sums.inputs(name)["words"])
        if facts["use"] == "union":
            plan, terms = union_terms(self.contract, facts, self._space)
            return union.client(terms, plan, me, key, registry, lambda: sums.inputs(name)["places"])

        def part() -> openings.Part:
            sent = read_contribution(sums.inputs(name), self._space.tables)
            layout = self._mean.layout(self._space.by_table(self._asked(sums, facts)["union"]))
            values, holds, extra = PartyVectors(layout, sent, coding_of(facts)).words(0)
            opening, terms = update_terms(self.contract, facts, layout)
            return openings.Part(opening, terms, values, holds, extra)

        terms = update_parties(self.contract, facts)
        return openings.late_client(terms, me, key, registry, part)

    def _registry(self, facts: dict[str, Any]) -> dict[int, bytes]:
        """The keys of a sum's parties, which must be known, different and enough."""
        keys = party_keys(facts, self.name, own_key(self._home.folder).public, self._peers)
        self.policy.check_sum(threshold(self.contract, facts))
        return keys

    def _use_up_(self, facts: dict[str, Any]) -> None:
        """Takes what a sum uses of the policy, before anything of it is answered."""
        if facts["use"] == "union":
            self.use.begin_round_()
        if facts["use"] == "heat":
            sets = {t: i for t, i in self._current.index.items() if t in self._space.tables}
            self.use.count_heat_(version_of(sets))

    def _end(self, sums: NodeSums, facts: dict[str, Any], result: Any) -> dict[str, bytes]:
        """What the node says, and what it keeps, when a sum is over."""
        if facts["use"] == "union":
            asked, me = self._answers(sums, facts, result), int(facts["party"])
            _, terms = union_terms(self.contract, facts, self._space)
            return {"asked": sign(own_key(self._home.folder), terms.context, ASKED, me, asked)}
        if facts["use"] == "update":
            layout = self._mean.layout(self._space.by_table(self._asked(sums, facts)["union"]))
            held, arrays = self._held(), sums.inputs(facts["sum"])
            sent = read_contribution(arrays, self._space.tables)
            self._mean.keep_(held, sent, NODE, layout, layout.marks(result), _YES, _YES)
            self.state.held.put(_HELD, held.tensors())
        return {}

    def _asked(
        self, sums: NodeSums, facts: dict[str, Any], names: list[ClientName] | None = None
    ) -> Arrays:
        """Which rows the clients asked for in the union of this very round.

        names: of the clients of the update, if it begins. They are those of the union.
        """
        asked = sums.asked(facts["sum"], facts["union"])
        if names is not None and json.loads(str(asked["clients"])) != names:
            raise ProtocolError("The update has other clients than its union: it drops out.")
        rounds = {int(asked["round"]), round_of(facts["tag"]), facts["round"]}
        if len(rounds) > 1:
            raise ProtocolError("The update is of another round than its union: it drops out.")
        return asked

    def _asked_clients(self, facts: dict[str, Any]) -> tuple[list[ClientName], Tensor]:
        """The clients that a message asks, by name and by their place in the shard."""
        enrolled = self._enrolled(facts["version"])
        where = {name: i for i, name in enumerate(self._current.names)}
        names = [enrolled.names[position] for position in facts["places"]]
        if not names:
            raise ProtocolError("The message asks no client, and zeros hide nobody: it drops out.")
        if len(set(names)) < len(names):
            raise ProtocolError("The message asks a client twice: the node drops out.")
        if any(name not in where for name in names):
            raise StateLost
        return names, torch.tensor([where[name] for name in names], dtype=torch.int64)

    def _most_weights(self, facts: dict[str, Any]) -> Tensor:
        """What the clients that a message asks weigh at most: as the server knows them."""
        examples = self._enrolled(facts["version"]).examples
        known = torch.tensor(
            [examples[position] for position in facts["places"]], dtype=torch.float64
        )
        return known if self.contract.plan.weighting == "examples" else torch.ones_like(known)

    def _check_range(self, facts: dict[str, Any]) -> None:
        """Refuses a coding that no honest server sends: who fits into it would be an answer."""
        most = float(self._most_weights(facts).sum()) * max(1.0, self._mean.range)
        if not coding_of(facts).range >= most:
            raise ProtocolError("The coding's range is below what was agreed: the node drops out.")

    def _answers(self, sums: NodeSums, facts: dict[str, Any], united: np.ndarray) -> bytes:
        """Which rows of the union this node asks for; each client answers for itself."""
        self._space.check_union(united, sums.inputs(facts["sum"]).get("places", united[:0]))
        names, position = self._asked_clients(facts)
        wanted = self._wanted(names, position, united)
        splits = np.cumsum([0, *map(len, wanted)])
        asked = {"union": united, "wanted": np.concatenate(wanted), "splits": splits}
        about = {"round": np.array(facts["round"]), "clients": np.array(json.dumps(names))}
        sums.put_asked(facts["sum"], asked | about)
        together = np.unique(np.concatenate(wanted))
        return ids_to_bytes(torch.from_numpy(np.searchsorted(united, together)))

    def _wanted(
        self, names: Sequence[ClientName], position: Tensor, united: np.ndarray
    ) -> list[np.ndarray]:
        """The rows of a union that each client asks for."""
        sets = [{t: self.data.index[t].slice(at, at + 1) for t in self._space.tables}
                for at in position.tolist()]  # fmt: skip
        held = map(self._space.places, sets)
        return [self._asking.wanted(n, united, x) for n, x in zip(names, held, strict=True)]

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
        memories = self.state.memories(names, facts["accepted"])
        start = spread_rows(self._rows_sent(facts, parts, asked), index)
        start = self._with_local(start, position, memories, prior_in(facts, plan))
        number = round_of(tag)
        about = Round(number, plan.lr_at(number), len(numbers), 0.0, numbers)
        of = dict(zip(position.tolist(), numbers.tolist(), strict=True))

        def train_here(local: LocalData, own: Submodels, sent: Submodels | None) -> Upload:
            known = torch.tensor([of[client] for client in local.clients.tolist()])
            local, algorithm = replace(local, clients=known), self.contract.algorithm
            assignment = Assignment(local, own, sent, None, about)
            return train(self.training, algorithm, plan, assignment)

        present = torch.ones(len(position), dtype=torch.bool)
        training = train_on_asked(self.data, position, index, present, start, None, train_here)
        self._keep_local(training, names, memories, tag)
        return training

    def _rows_sent(
        self, facts: dict[str, Any], parts: dict[str, bytes], asked: Arrays
    ) -> Submodels:
        """The rows that the node asked for, of the model that all nodes of the sum train on."""
        places = np.unique(asked["wanted"])
        layout = self._layout(self._space.index([places]), self.contract.plan.dtype)
        sent, heat = decode_submodels("model", parts, layout), self._heat_sent(facts, parts, places)
        check_model(facts, parts[DIGESTS], sent, heat, self._space, asked["union"])
        return sent

    def _heat_sent(
        self, facts: dict[str, Any], parts: dict[str, bytes], places: np.ndarray
    ) -> dict[str, Heat]:
        """The heat that came with the rows: none, for the server corrects the sum."""
        return {}

    def _keep_local(
        self, training: AskedTraining, names: list[ClientName], memories: list[Memory], tag: int
    ) -> None:
        """Keeps the rows of local tables; who did not train keeps what it had."""
        if not self.data.local:
            return
        parts = self.data.local, training.start, training.update, training.clients.tolist()
        for name, memory in zip(names, with_local_rows(memories, *parts), strict=True):
            self.state.of(name).put(tag, memory)

    def _updates(
        self, facts: dict[str, Any], training: AskedTraining, position: Tensor
    ) -> ClientUpdates:
        """What the clients made of their rows, and what they weigh."""
        count = len(training.clients)
        before = np.zeros(count)
        if self.contract.options.report_loss and training.local is not None:
            before = losses(self.model, training.local, training.start).double().numpy()
        weights = self.data.weights(self.contract.plan.weighting)[position]
        weights = weights.minimum(self._most_weights(facts))[training.clients]
        return ClientUpdates(
            shared_update(training, self._space.tables, self.contract.privacy.keep_probability),
            weights.numpy(),
            np.zeros(count, dtype=np.int64),
            NODE,
            before,
        )

    def _sent(self, updates: ClientUpdates, asked: Arrays) -> Arrays:
        """What the node puts into the sum of updates."""
        united = self._space.by_table(asked["union"])
        held, layout = self._held(), self._mean.layout(united)
        sent = self._mean.within_range(self._mean.contribute(updates, united, held))
        # Without a proof of what was opened all of it counts as sent.
        nothing = {table: np.zeros(len(ids), dtype=bool) for table, ids in united.items()}
        self._mean.keep_(held, sent, NODE, layout, nothing, _YES, ~_YES)
        self.state.held.put(_HELD, held.tensors())
        return contribution_arrays(sent)

    def _held(self) -> HeldBack:
        """What the node holds back; no server can make it go back to rows that it has sent."""
        held, before = HeldBack(self._mean.widths), self.state.held.get(_HELD)
        if before is not None:
            held.restore_(before)
        return held
