"""A deployed fleet whose server never sees an index set, nor anybody's update.

    heat       a secure sum of all nodes' counts, before the first round and after enough changed
    a round    a private union of the cohort's rows, of which each node asks for some;
               rows go out, and what nodes made of them comes back as one secure sum, of which a row
               opens only if enough nodes really hold it

The round loop gets one pseudo-upload over the union, so no algorithm knows of any of this.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedrows.algorithm import Round
from fedrows.client import Upload
from fedrows.errors import PlanError
from fedrows.files.whole import placing
from fedrows.flower.party import openings_of, terms_of, union_of
from fedrows.flower.private_node import FIGURES
from fedrows.flower.server.exchange import Exchange, distinct_rows
from fedrows.flower.server.fleet import PAUSE, FlowerFleet, FlowerRound
from fedrows.flower.signing import read_peers
from fedrows.flower.space import Space
from fedrows.flower.sums import Sum, carry
from fedrows.flower.wire.clients import no_ids
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.contract import digest
from fedrows.flower.wire.message import Message, WireError
from fedrows.flower.wire.submodels import encode_submodels
from fedrows.flower.wire.tags import tag_of
from fedrows.privacy import openings, secure_sum, union
from fedrows.privacy.accounts import Accounts
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.ring import Coding
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

DIRECT = 2**20  # rows up to which a union has a word for each
HELD = 10_000  # rows that a node holds in a round, for a Bloom filter's size
PRECISION = 1e-6  # of a row after its correction


class PrivateFleet(FlowerFleet):
    """The clients of all nodes, of which the server learns sums."""

    def __init__(self, *args: Any, peers: Path) -> None:
        super().__init__(*args)
        self._peers = read_peers(peers)
        self._place: Path | None = None  # where the heat is kept
        self.space = Space(self.schema, tuple(self.registry.tables))
        self._heat: dict[str, Heat] | None = None
        self._counted: set[tuple[str, Any]] = set()  # whose data are in the heat
        plan = self.contract.plan
        self.accounts = Accounts(self.contract.privacy, plan.clients_per_round, self.clients)
        for table in self.space.tables:
            self.accounts.bound_(table, self.schema.tables[table].rows)

    def keep_in(self, place: Path) -> None:
        """Keeps the heat in a file; one that is there is read, for counting again may show much.

        The difference of two exact counts is the set of whoever was in one of them only.
        """
        self._place = place
        if not place.exists():
            return
        with safetensors.safe_open(place, framework="pt") as file:
            said = json.loads((file.metadata() or {})["fedrows"])
            self._heat = {
                table: Heat(
                    file.get_tensor(f"{table}/ids"), file.get_tensor(f"{table}/counts"), total
                )
                for table, total in said["totals"].items()
            }
        self._counted = {(node, name) for node, name in said["counted"]}

    def _keep(self) -> None:
        if self._place is None or self._heat is None:
            return
        tensors = {}
        for table, its in self._heat.items():
            tensors[f"{table}/ids"], tensors[f"{table}/counts"] = its.ids, its.counts
        totals = {table: its.total for table, its in self._heat.items()}
        said = {"totals": totals, "counted": sorted(self._counted, key=str)}
        with placing(self._place) as part:
            part.write_bytes(safetensors.torch.save(tensors, {"fedrows": json.dumps(said)}))

    def heat(self) -> Mapping[str, Heat]:
        assert self._heat is not None, "gather counts it"
        return self._heat

    def gather(self) -> None:
        """Takes in nodes; counts heat anew when so many clients changed that none is shown."""
        super().gather()
        now = {(one.node, one.name) for one in self.registry.clients}
        batch = max(2, self.contract.privacy.min_contributors)
        if self._heat is None or len(now ^ self._counted) >= batch:
            hosted = self._insist()
            self._counted = {(node, name) for node, name in now if node in hosted}
            self._keep()

    def _insist(self) -> set[str]:
        """Counts heat, again and again until enough nodes come through."""
        while True:
            try:
                return self._count()
            except (ProtocolError, PlanError) as error:
                self._log(f"Heat is counted again: {error}")
            time.sleep(PAUSE)
            super().gather()

    def _count(self) -> set[str]:
        """Counts heat by a secure sum; gives the nodes that are in it."""
        here = set(self.transport.nodes())
        nodes = sorted(n for n, its in self.registry.nodes.items() if its.address in here)
        sum_ = Sum("heat", self._parties(nodes), {})
        facts = self._facts(sum_, length=self.space.rows)
        half = secure_sum.server(terms_of(facts), self._keys(sum_))
        total = carry(sum_, half, self._swap)
        counts = torch.from_numpy(total.values.astype("int64")).to(torch.float64)
        hosted = {sum_.parties[number] for number in total.clients}
        weights = [
            float(w)
            for one, w in zip(self.registry.clients, self.weights, strict=True)
            if one.node in hosted
        ]
        self._heat = {}
        for table in self.space.tables:
            first, rows = self.space.first[table], self.schema.tables[table].rows
            own = counts[first : first + rows]
            held = own.nonzero().view(-1)
            self._heat[table] = Heat(held, own[held], sum(weights))
        self._log(f"Heat is counted by secure sum of {len(total.clients)} nodes.")
        return hosted

    def open_round(self, round_: Round) -> SecretRound:
        """Finds the cohort's rows by a private union, and asks each node which it wants.

        A node's rows stand at the first of its clients; the others have none.
        """
        cohort, hosts = round_.cohort, self._hosts(round_.cohort)
        opened = SecretRound(self, round_, {})
        if len(hosts) >= 2:
            self._ask_(opened, hosts)
        first = {places[0]: node for node, places in hosts.items()}
        sets: dict[str, list[Tensor]] = {table: [] for table in self.space.tables}
        for place in range(len(cohort)):
            ids = opened.asked.get(first.get(place, ""), no_ids())
            for table, its in self.space.index(ids).items():
                sets[table].append(its.ids)
        found = {}
        for table, parts in sets.items():
            lengths = torch.tensor([len(part) for part in parts])
            splits = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
            found[table] = Index(torch.cat([no_ids(), *parts]), splits)
        opened.index = found
        return opened

    def _ask_(self, opened: SecretRound, hosts: Mapping[str, list[int]]) -> None:
        cohort = opened.round.cohort
        sum_ = Sum("union", self._parties(sorted(hosts)), {})
        rows = self.space.rows
        facts = self._facts(sum_, rows=rows, bloom=0.01 if rows > DIRECT else 0, most=HELD)
        sum_.openings = {node: self._whom(cohort, node, places) for node, places in hosts.items()}
        try:
            half = union.server(terms_of(facts), union_of(facts), self._keys(sum_))
            found = carry(sum_, half, self._swap)
        except ProtocolError as error:
            self._log(f"The round's union failed: {error}")
            return
        opened.union, opened.ids = sum_, torch.from_numpy(found.ids)
        for node, letter in sum_.endings.items():
            try:
                count = len(opened.ids)
                places = ids_from_bytes(letter.parts["asked"], count, count)
            except (WireError, KeyError):
                continue
            opened.asked[node] = opened.ids[places]
        told = [int(cohort[place]) for node in opened.asked for place in hosts[node]]
        self.accounts.answered_(opened.round.number, map(self._stable, told))

    def _stable(self, number: int) -> int:
        """A number of a client that stays its own when others come and go."""
        one = self.registry.clients[number]
        key = json.dumps([one.node, one.name]).encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")

    def state(self) -> dict[str, Any]:
        """What the checkpoint keeps of the privacy that was spent."""
        return self.accounts.state()

    def tensors(self) -> dict[str, Tensor]:
        """Nothing more: heat has a file of its own."""
        return {}

    def restore_(self, tensors: Any, state: Mapping[str, Any], round_: int) -> None:
        """Takes back what `state` gave."""
        self.accounts.restore_(state)

    def summed(self, opened_round: SecretRound, start: Submodels) -> Upload:
        """The mean of what the nodes of an open round have made of their rows."""
        round_, union_, cohort = opened_round.round, opened_round.union, opened_round.round.cohort
        before, tag = self.last, tag_of(round_.number)
        tries = before.tries + 1 if before and before.round == round_.number else 1
        self.last = told = Exchange(round_.number, tries, asked=len(cohort))
        hosts = {n: p for n, p in self._hosts(cohort).items() if n in opened_round.asked}
        for node, places in self._hosts(cohort).items():
            if node not in hosts:
                self._dropped(told, cohort, places, "its node did not answer in the union")
        if union_ is not None:
            told.bytes_down += union_.bytes_down
            told.bytes_up += union_.bytes_up
            told.messages += union_.phases * len(union_.parties)
        if len(hosts) < 2 or union_ is None:
            return self._none(cohort)
        sum_ = Sum("update", self._parties(sorted(hosts)), {})
        coding, heaviest = self._coding(cohort, round_), float(self.weights.max())
        facts = self._facts(
            sum_,
            rows=len(opened_round.ids),
            width=self.space.width,
            minimum=self.contract.privacy.min_contributors,
            extra=FIGURES + self.schema.dense_size,
            openers=self.contract.privacy.openers,
            word=coding.dtype.name,
            union=union_.name,
            tag=tag,
            heaviest=heaviest,
            range=coding.range,
            coding={n: getattr(coding, n) for n in Coding.__dataclass_fields__},
        )
        sum_.openings = {
            node: self._work(cohort, node, places, start) for node, places in hosts.items()
        }
        plan = openings_of(facts)
        try:
            half = openings.server(plan, terms_of(facts), self._keys(sum_))
            opened = carry(sum_, half, self._swap)
        except ProtocolError as error:
            self._log(f"Round {round_.number}: the secure sum failed: {error}")
            for places in hosts.values():
                self._dropped(told, cohort, places, "the secure sum failed")
            return self._none(cohort)
        told.bytes_down += sum_.bytes_down
        told.bytes_up += sum_.bytes_up
        told.messages += sum_.phases * len(sum_.parties)
        inside = {sum_.parties[number] for number in opened.total.clients}
        for node, places in hosts.items():
            if node not in inside:
                why = sum_.silent.get(node, "it dropped out of the secure sum")
                self._dropped(told, cohort, places, why)
        ids = opened_round.ids
        upload = self._opened(cohort, ids, hosts, inside, opened, coding, heaviest, told)
        told.answered = len(upload.clients)
        if told.answered >= self.least:
            for node in inside:
                self.registry.nodes[node].held = tag
        return upload

    def _opened(
        self,
        cohort: Tensor,
        ids: Tensor,
        hosts: Mapping[str, list[int]],
        inside: set[str],
        opened: openings.OpenedSum,
        coding: Coding,
        heaviest: float,
        told: Exchange,
    ) -> Upload:
        """The one pseudo-upload that a secure sum comes to."""
        dtype = self.contract.plan.torch_dtype
        extra = torch.from_numpy(coding.decode(opened.extra))
        weight, steps, loss = extra[:FIGURES].tolist()
        who = cohort[torch.tensor(sorted(p for n in inside for p in hosts[n]), dtype=torch.int64)]
        if weight <= 0:
            return self._none(cohort)
        told.loss = loss / weight if self.contract.options.report_loss else None
        mask = torch.from_numpy(opened.opened)
        rows = torch.from_numpy(coding.decode(opened.rows.reshape(-1))).view(-1, self.space.width)
        ids, rows = ids[mask], (rows[mask] / weight).to(dtype)
        index = self.space.index(ids)
        by_table = {
            table: rows[places][:, : self.schema.tables[table].width]
            for table, places in self.space.split(ids).items()
        }
        dense, at = {}, FIGURES
        for name, shape in self.schema.dense.items():
            size = torch.Size(shape).numel()
            dense[name] = (extra[at : at + size] / weight).to(dtype).view(1, *shape)
            at += size
        upload = Upload(
            who,
            Submodels(index, by_table, dense),
            torch.tensor([steps / weight], dtype=torch.float64),
            {},
            None,
        )
        upload.weights = torch.tensor([weight * heaviest], dtype=torch.float64)
        return upload

    def _none(self, cohort: Tensor) -> Upload:
        """Nothing came back."""
        index = self.space.index(no_ids())
        dtype = self.contract.plan.torch_dtype
        rows = {
            t: torch.zeros(0, self.schema.tables[t].width, dtype=dtype) for t in self.space.tables
        }
        dense = {n: torch.zeros(1, *shape, dtype=dtype) for n, shape in self.schema.dense.items()}
        nobody = cohort[:0]
        upload = Upload(nobody, Submodels(index, rows, dense), torch.zeros(1), {}, None)
        upload.weights = torch.zeros(1, dtype=torch.float64)
        return upload

    def _coding(self, cohort: Tensor, round_: Round) -> Coding:
        """How numbers are written: precise enough after the largest correction there can be."""
        heaviest = float(self.weights.max())
        shares = (self.weights[cohort] / heaviest).sort().values
        least = float(shares[: max(self.least, 1)].sum())
        cap = getattr(self.contract.algorithm, "cap", None)
        stages = self.contract.privacy.stages
        correction = float(cap) if cap is not None else 1.0
        if stages is not None:
            correction /= stages.keep_probability
        most = self.contract.privacy.update_range * max(float(shares.sum()), 1.0)
        return Coding(most, len(self.registry.nodes), correction, PRECISION, least)

    def _hosts(self, cohort: Tensor) -> dict[str, list[int]]:
        """Which places of the cohort each node that is here hosts."""
        here, hosts = set(self.transport.nodes()), dict[str, list[int]]()
        for place, number in enumerate(cohort.tolist()):
            name = self.registry.clients[number].node
            if self.registry.nodes[name].address in here and name in self._peers:
                hosts.setdefault(name, []).append(place)
        return hosts

    def _whom(self, cohort: Tensor, node: str, places: list[int]) -> Message:
        """Which of its clients a node is asked for."""
        order = {client: i for i, client in enumerate(self.registry.nodes[node].clients)}
        names = [self._name(cohort, place) for place in places]
        facts = {
            "places": [order[name] for name in names],
            "numbers": [int(cohort[place]) for place in places],
            "version": self.registry.nodes[node].version,
            "held": self.registry.nodes[node].held,
        }
        return Message("sum", facts, {})

    def _work(self, cohort: Tensor, node: str, places: list[int], start: Submodels) -> Message:
        """What a node trains on: the rows it asked for."""
        letter = self._whom(cohort, node, places)
        exact = "float64" if self.contract.plan.dtype == "float64" else "float32"
        letter.parts |= encode_submodels("model", distinct_rows(start, places), exact)
        return letter

    def _parties(self, nodes: list[str]) -> dict[int, str]:
        if len(nodes) < 2:
            raise PlanError(
                "A secure sum needs at least 2 nodes that are here and whose keys are known."
            )
        return dict(enumerate(nodes, start=1))

    def _facts(self, sum_: Sum, **more: Any) -> dict[str, Any]:
        """What both sides must know of a sum; kept in it for the first letters."""
        privacy, count = self.contract.privacy, len(sum_.parties)
        threshold = max(privacy.colluding + 2, ceil(count * privacy.threshold))
        sum_.facts = {
            "run": self.run,
            "contract": digest(self._fingerprint),
            "parties": {str(number): node for number, node in sum_.parties.items()},
            "threshold": threshold,
            "colluding": privacy.colluding,
            **more,
        }
        return {"sum": sum_.name, "use": sum_.use, **sum_.facts}

    def _keys(self, sum_: Sum) -> dict[int, bytes]:
        return {number: self._peers[node] for number, node in sum_.parties.items()}

    def _swap(self, letters: Mapping[str, bytes]) -> dict[str, bytes | str]:
        """Sends letters to nodes by name, and waits for their answers."""
        names = {self.registry.nodes[node].address: node for node in letters}
        sent = {self.registry.nodes[node].address: letter for node, letter in letters.items()}
        found = self._send_and_wait(sent, self.last.round if self.last else 0)
        answers: dict[str, bytes | str] = {node: "it did not answer in time" for node in letters}
        return answers | {names[address]: answer for address, answer in found.items()}


@dataclass
class SecretRound(FlowerRound):
    """A round whose nodes have asked for rows over the private union of its cohort."""

    fleet: PrivateFleet
    union: Sum | None = None  # None: it failed, or there were too few nodes
    ids: Tensor = field(default_factory=no_ids)  # of the union, in the space
    asked: dict[str, Tensor] = field(default_factory=dict)  # node → rows of the space

    def train(self, start: Submodels, sent: Submodels | None) -> Upload:
        return self.fleet.summed(self, start)
