"""Clients on other machines, behind the same seam as simulated ones; Flower carries the letters.

In the steady state a node gets one letter a round and sends one. Rows travel once for all clients
that a node hosts. Who does not answer in time is left out of the round, and is asked again in a
later one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.fleet import OpenRound, Traffic
from fedrows.flower import parcel
from fedrows.flower.checks import Refused, finite, read_upload, too_long
from fedrows.flower.door import Door, Post
from fedrows.flower.had import Had, Marks
from fedrows.flower.job import Contract, digest
from fedrows.flower.parcel import Form
from fedrows.flower.registry import Registry
from fedrows.flower.state import tag_of
from fedrows.flower.wire import Letter, WireError, ids_to_bytes, pack, unpack
from fedrows.robust import clip_norms_, trim
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels
from fedrows.rows.schema import Schema
from fedrows.seeds import COHORT, choose

POLL = 0.1  # seconds between two looks for answers
PAUSE = 10.0  # seconds at most before a round is tried again


@dataclass
class Exchange:
    """What happened in a round, for whoever watches."""

    round: int
    tries: int = 1  # a round with too few answers is tried again
    asked: int = 0
    answered: int = 0
    dropped: dict[str, list[Any]] = field(default_factory=dict)  # why → clients, by name
    refused: dict[str, list[str]] = field(default_factory=dict)  # why → nodes or clients
    messages: int = 0  # sent, one to a node
    bytes_down: int = 0
    bytes_up: int = 0
    rows_spared: int = 0  # not sent, because the node had them
    loss: float | None = None  # of the clients that answered, before they trained
    seconds: dict[str, float] = field(default_factory=dict)
    resident: int | None = None  # bytes of memory that the server has after it


class FlowerFleet:
    """The clients of all nodes that have registered."""

    def __init__(
        self,
        contract: Contract,
        schema: Schema,
        registry: Registry,
        post: Post,
        fingerprint: str,
        run: str,
        tell: Callable[[str], None] = print,
    ) -> None:
        self.contract, self.schema, self.registry, self.post = contract, schema, registry, post
        self.run = run
        self.last: Exchange | None = None  # the newest round's
        self.rejected: Counter[str] = Counter()  # uploads, over the whole run
        self._fingerprint, self._tell = fingerprint, tell
        self._door = Door(post, registry, fingerprint, self.rejected, lambda x: self._tell(x))
        self._had = Had()
        self._changes: list[tuple[str, Letter]] = []  # told in this round's answers

    @property
    def clients(self) -> int:
        return len(self.registry.members)

    @property
    def weights(self) -> Tensor:
        return self.registry.weights

    @property
    def least(self) -> int:
        cohort = self.contract.plan.clients_per_round
        wanted = self.contract.terms.min_answers
        return (cohort + 1) // 2 if wanted is None else min(wanted, cohort)

    def heat(self) -> Mapping[str, Heat]:
        return self.registry.heat

    def draw(self, counter: int, count: int) -> Tensor:
        return choose(self.contract.plan.seed, COHORT, counter, self.clients, count)

    def open_round(self, round_: Round) -> OpenRound:
        return FlowerRound(self, round_, self.registry.index(round_.cohort.tolist()))

    def gather(self) -> None:
        """Greets nodes that are new, and takes in those that have answered.

        Before the first round it waits until there are enough, later only while there are too few.
        """
        terms, plan = self.contract.terms, self.contract.plan
        told = time.monotonic()
        while True:
            for name in self._door.greet(self.run):
                self._had.forget(name)
            clients, nodes = self.clients, len(self.registry.nodes)
            here = set(self.post.nodes())
            near = [node for node in self.registry.nodes.values() if node.address in here]
            first = self.last is None and all(one.accepted == 0 for one in self.registry.members)
            enough = clients >= plan.clients_per_round
            enough &= sum(len(node.clients) for node in near) >= self.least
            if first:
                enough &= clients >= (terms.min_clients or 0) and nodes >= terms.min_nodes
            if enough:
                if first:
                    self.registry.sort()
                return
            if time.monotonic() - told > 10:
                told = time.monotonic()
                self._tell(
                    f"Waiting for nodes: {len(near)} are here, and {clients} clients are known."
                )
            time.sleep(POLL)

    def trained(
        self, cohort: Tensor, start: Submodels, sent: Submodels | None, round_: Round
    ) -> Upload:
        """What the nodes of a cohort send back."""
        began = time.perf_counter()
        tag = tag_of(round_.number)
        before = self.last
        again = before is not None and before.round == round_.number
        tries = 1 + before.tries if before is not None and again else 1
        self.last = told = Exchange(round_.number, tries, asked=len(cohort))
        hosts = self._by_node(cohort, told)
        letters, marks = {}, {}
        for name, places in hosts.items():
            letter, marks[name] = self._letter(name, cohort, places, start, sent, tag, told)
            letters[self.registry.nodes[name].address] = pack(letter)
        told.messages = len(letters)
        told.bytes_down = sum(map(len, letters.values()))
        packed = time.perf_counter()
        answers = self._exchange(letters, round_.number)
        waited = time.perf_counter()
        taken: dict[int, tuple[dict[str, Submodels], int]] = {}
        steps: dict[int, float] = {}
        losses: list[tuple[float, float]] = []
        for name, places in hosts.items():
            answer = answers.get(self.registry.nodes[name].address, "it did not answer in time")
            if isinstance(answer, str):
                self._dropped(told, cohort, places, answer)
                continue
            told.bytes_up += len(answer)
            self._read(name, cohort, places, answer, tag, marks[name], told, taken, steps, losses)
        upload = self._assemble(cohort, taken, steps, told)
        if losses:
            told.loss = sum(x * w for x, w in losses) / sum(w for _, w in losses)
        done = time.perf_counter()
        told.answered = len(upload.clients)
        told.seconds = {
            "pack": packed - began,
            "wait": waited - packed,
            "check": done - waited,
        }
        if told.answered >= self.least:
            for position in upload.clients.tolist():
                self.registry.members[position].accepted = tag
        else:
            self._tell(
                f"Round {told.round} is tried again: {told.answered} of {told.asked} answered, and "
                f"{self.least} are needed."
            )
            time.sleep(min(PAUSE, POLL * 2**tries))  # whatever is wrong gets time to pass
        self._apply_changes()
        return upload

    def _by_node(self, cohort: Tensor, told: Exchange) -> dict[str, list[int]]:
        """Which places of the cohort each node that is here hosts, in its own order of them."""
        here, hosts = set(self.post.nodes()), dict[str, list[int]]()
        for place, number in enumerate(cohort.tolist()):
            hosts.setdefault(self.registry.members[number].node, []).append(place)
        found = {}
        for name, places in hosts.items():
            if self.registry.nodes[name].address not in here:
                self._dropped(told, cohort, places, "its node is away")
                continue
            order = {client: i for i, client in enumerate(self.registry.nodes[name].clients)}
            found[name] = sorted(places, key=lambda p: order[self._name(cohort, p)])
        return found

    def _name(self, cohort: Tensor, place: int) -> Any:
        return self.registry.members[int(cohort[place])].name

    def _dropped(self, told: Exchange, cohort: Tensor, places: list[int], why: str) -> None:
        told.dropped.setdefault(why, []).extend(self._name(cohort, place) for place in places)

    def _letter(
        self,
        name: str,
        cohort: Tensor,
        places: list[int],
        start: Submodels,
        sent: Submodels | None,
        tag: int,
        told: Exchange,
    ) -> tuple[Letter, Marks]:
        """What a node is asked for, and which rows it will then have."""
        node = self.registry.nodes[name]
        order = {client: i for i, client in enumerate(node.clients)}
        members = [self.registry.members[int(cohort[place])] for place in places]
        facts = {
            "tag": tag, "run": self.run, "version": node.version, "job": digest(self._fingerprint)
        }  # fmt: skip
        parts = {
            "places": ids_to_bytes(torch.tensor([order[one.name] for one in members])),
            "numbers": _eight([int(cohort[place]) for place in places]),
            "accepted": _eight([one.accepted for one in members]),
        }
        exact = "float64" if self.contract.plan.dtype == "float64" else "float32"
        model = each_once(start, places)
        marks: Marks = {}
        if self.contract.terms.row_cache:
            facts["base"] = self._had.base(name)
            same, marks, spared = self._had.spare_(name, model)
            parts |= same
            told.rows_spared += spared
        parts |= parcel.write("model", model, exact)
        if sent is not None:
            parts |= parcel.write("sent", each_once(sent, places), exact)
        return Letter("train", facts, parts), marks

    def _exchange(self, letters: Mapping[int, bytes], round_: int) -> dict[int, bytes | str]:
        """Sends letters and waits for their answers, at most as long as the terms say."""
        if not letters:
            return {}
        seconds = self.contract.terms.timeout
        until = time.monotonic() + seconds
        waiting = self.post.send(letters, seconds, round_)
        found: dict[int, bytes | str] = {}
        while waiting and time.monotonic() < until:
            for message, answer in self.post.receive(waiting).items():
                found[waiting.pop(message)] = answer
            if waiting:
                time.sleep(POLL)
        for message, answer in (self.post.receive(waiting) if waiting else {}).items():
            found[waiting.pop(message)] = answer  # what came while it slept
        return found

    def _read(
        self,
        name: str,
        cohort: Tensor,
        places: list[int],
        answer: bytes,
        tag: int,
        marks: Marks,
        told: Exchange,
        taken: dict[int, tuple[dict[str, Submodels], int]],
        steps: dict[int, float],
        losses: list[tuple[float, float]],
    ) -> None:
        """Takes from a node's answer what can be trusted."""
        plan = self.contract.plan
        if self._is(answer, "lost"):
            self._had.forget(name)
            self.registry.nodes[name].address = 0  # it is greeted again
            self._dropped(told, cohort, places, "its node has lost its state")
            return
        index = self.registry.index(int(cohort[place]) for place in places)
        forms = {"update": Form(index, self.schema, self.contract.coding, plan.torch_dtype)}
        for extra in self.contract.algorithm.returns:
            forms[extra] = forms["update"]
        most = plan.local_steps if plan.batches == "draw" else 2**31 // max(len(places), 1) - 2
        try:
            letter, found, done = read_upload(answer, forms, tag, most)
        except Refused as error:
            self._refuse(told, error.reason, f"node {name!r}", str(error))
            return
        self._had.answered(name, marks, tag)
        good = finite(found)
        reported = np.frombuffer(letter.parts.get("losses", b"")[: 4 * len(places)], dtype="<f4")
        for i, place in enumerate(places):
            number = int(cohort[place])
            if not good[i]:
                who = f"client {self.registry.members[number].name!r}"
                self._refuse(told, "not finite", who, "a number that is not finite")
                continue
            taken[place] = found, i
            steps[place] = float(done[i])
            if i < len(reported) and np.isfinite(reported[i]):
                losses.append((float(reported[i]), float(self.weights[number])))
        if letter.facts.get("changes"):
            self._changes.append((name, letter))

    def _is(self, answer: bytes, kind: str) -> bool:
        if len(answer) > 4096:
            return False
        try:
            return unpack(answer).kind == kind
        except WireError:
            return False

    def _refuse(self, told: Exchange, reason: str, who: str, why: str) -> None:
        told.refused.setdefault(reason, []).append(who)
        self.rejected[reason] += 1
        self._tell(f"Round {told.round}: the upload of {who} is refused: {why.rstrip('.')}.")

    def _apply_changes(self) -> None:
        """Takes in what nodes said has changed; it counts from the next round on."""
        for name, letter in self._changes:
            try:
                self.registry.change(name, letter)
                self._tell(f"Node {name!r} has new data, or other clients.")
            except WireError as error:
                self.rejected["registration"] += 1
                self._tell(f"Node {name!r} announces a change that is refused: {error}")
        self._changes.clear()

    def _assemble(
        self,
        cohort: Tensor,
        taken: Mapping[int, tuple[dict[str, Submodels], int]],
        steps: Mapping[int, float],
        told: Exchange,
    ) -> Upload:
        """The updates that can be trusted, in cohort order, as one."""
        order = sorted(taken)
        while True:
            who = cohort[torch.tensor(order, dtype=torch.int64)]
            index = self.registry.index(who.tolist())
            names = ["update", *self.contract.algorithm.returns]
            parts = {name: _joined(index, [taken[p] for p in order], name, self.schema,
                                   self.contract.plan.torch_dtype) for name in names}  # fmt: skip
            if not order:
                break
            correction = self.contract.algorithm.correction(
                index, self.heat(), self.contract.plan.torch_dtype
            )
            bad = too_long(parts["update"], correction, self.contract.terms.max_norm)
            if not bad.any():
                break
            for i in bad.nonzero().view(-1).tolist():
                client = f"client {self._name(cohort, order[i])!r}"
                self._refuse(told, "too long", client, "an update longer than any honest one")
            order = [place for place, out in zip(order, bad.tolist(), strict=True) if not out]
        update = parts.pop("update")
        if order and self.contract.terms.robust == "clip":
            clip_norms_(update, self.contract.terms.clip_norm)
        if order and self.contract.terms.robust == "trim":
            update = trim(update, self.contract.terms.trim_share)
        done = torch.tensor([steps[place] for place in order], dtype=torch.float64)
        return Upload(who, update, done, parts, None)


@dataclass
class FlowerRound:
    """A round of clients on nodes."""

    fleet: FlowerFleet
    round: Round
    index: Mapping[str, Index]

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.trained(self.round.cohort, start, sent, self.round)

    @property
    def traffic(self) -> Traffic:
        """The bytes that went over the network."""
        last = self.fleet.last
        assert last is not None, "it has trained"
        return Traffic(last.bytes_down, last.bytes_up)


def _joined(
    index: Mapping[str, Index],
    taken: list[tuple[dict[str, Submodels], int]],
    name: str,
    schema: Schema,
    dtype: torch.dtype,
) -> Submodels:
    """Single clients' submodels, one after another."""
    own = [found[name].slice(i, i + 1) for found, i in taken]
    rows = {
        table: torch.cat(
            [torch.zeros(0, schema.tables[table].width, dtype=dtype)] + [x.rows[table] for x in own]
        )
        for table in index
    }
    dense = {
        tensor: torch.cat([torch.zeros(0, *shape, dtype=dtype)] + [x.dense[tensor] for x in own])
        for tensor, shape in schema.dense.items()
    }
    return Submodels(index, rows, dense)


def each_once(found: Submodels, places: list[int]) -> Submodels:
    """The rows of some clients, each once, and what they all get of the dense tensors."""
    which = torch.tensor(places, dtype=torch.int64)
    index, rows = {}, {}
    for table, its in found.index.items():
        some = replace(its, source=None).select(which)
        assert some.source is not None
        ids, inverse = torch.unique(some.ids, return_inverse=True)
        first = torch.empty_like(ids).scatter_(0, inverse, some.source)
        index[table] = Index(ids, torch.tensor([0, len(ids)]))
        rows[table] = found.rows[table].index_select(0, first)
    return Submodels(index, rows, {name: x[places[:1]] for name, x in found.dense.items()})


def _eight(numbers: list[int]) -> bytes:
    return np.array(numbers, dtype="<i8").tobytes()
