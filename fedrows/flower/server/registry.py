"""Who is in the federation: nodes, the clients they host, and the heat that follows from them.

Clients stand in an order of their own, and a client's number is its position in it. Those that are
there at the start are sorted by name, as a simulation has them; who comes later goes to the end.
A name belongs to its node: clients of two nodes may have the same one.
Heat comes from here, never from uploads, and follows every change at the cost of the change.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedrows.data.fresh_negatives import PoolDraws
from fedrows.errors import RunFolderError
from fedrows.files.whole import write_private
from fedrows.flower.wire.clients import ClientName, no_ids
from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError, part_of
from fedrows.rows.heat import Heat, ceiling
from fedrows.rows.index import Index
from fedrows.rows.schema import Schema

AT_A_TIME = 2**18  # rows that are added to the heat in one go


@dataclass
class RegisteredClient:
    """One client, as it was registered."""

    node: str
    name: ClientName
    examples: int
    index: dict[str, Tensor]  # table → sorted ids
    accepted: int = 0  # the tag of the last round that counted


@dataclass
class RegisteredNode:
    """One node, as it was registered."""

    secret: str  # SHA-256 of what proves it is the same node again
    clients: list[ClientName]  # in the order that messages count them by
    version: int = 1  # of that list and of its index sets
    address: int = 0  # Flower's id of it, 0 while that is not known
    one_by_one: bool = False  # a gateway: its clients need not answer together


@dataclass(frozen=True)
class EnrolmentLimits:
    """What a registration may ask for."""

    clients: int  # of one node
    examples: int  # of one client: its weight
    bytes: int = 2**23  # of one message


@dataclass
class Registry:
    """All nodes and clients; `local` tables stay with the clients and are never sent."""

    schema: Schema
    weighting: str
    limits: EnrolmentLimits
    local: frozenset[str] = frozenset()
    nodes: dict[str, RegisteredNode] = field(default_factory=dict)
    clients: list[RegisteredClient] = field(default_factory=list)
    version: int = 0  # grows with every change
    sets_known: bool = True  # whether nodes send their clients' index sets
    weight_quantile: float | None = None  # of all clients' examples, at which each is capped
    draws: PoolDraws | None = None  # of negatives, for data that are to be ranked

    def __post_init__(self) -> None:
        self._ceiling = self._newest_ceiling()
        self._count_all()
        self._renumber()

    @property
    def tables(self) -> list[str]:
        """The tables that the server has a say in."""
        return [table for table in self.schema.tables if table not in self.local]

    def addresses(self) -> dict[str, int]:
        """Flower's id of every node by its name; 0 while it is not known."""
        return {name: node.address for name, node in self.nodes.items()}

    def index(self, clients: Iterable[int]) -> dict[str, Index]:
        """The index sets of some clients, by their numbers."""
        chosen = [self.clients[number] for number in clients]
        return {
            table: Index.of([client.index[table] for client in chosen]) for table in self.tables
        }

    def round_index(self, clients: Sequence[int], round_: int) -> dict[str, Index]:
        """The rows that some clients have in a round: what they hold, and what they draw."""
        held = self.index(clients)
        if self.draws is None or not clients:
            return held
        return self.draws.index(held, torch.tensor(clients), round_)

    def unions(self, groups: Sequence[Sequence[int]], round_: int) -> dict[str, Index]:
        """The rows that any client of a group has in a round, group by group."""
        sets: dict[str, list[Tensor]] = {table: [] for table in self.tables}
        for group in groups:
            for table, index in self.round_index(group, round_).items():
                sets[table].append(torch.unique(index.ids))
        return {table: Index.of(ids) for table, ids in sets.items()}

    def register(self, address: int, version: int, message: Message) -> str:
        """Takes in a node with its clients, new or back again; gives its name."""
        name, secret = _word(message.facts, "node"), _word(message.facts, "secret")
        proof = hashlib.sha256(secret.encode()).hexdigest()
        known = self.nodes.get(name)
        if known is not None and not hmac.compare_digest(known.secret, proof):
            raise WireError(f"Node {name!r} is known under another secret: choose another name.")
        clients = self._read(name, message, "")
        self._check_count(name, len(clients))
        old = {client.name: client for client in self.clients if client.node == name}
        for client in clients:
            if client.name in old:
                client.accepted = old[client.name].accepted
        alone = message.facts.get("one-by-one") is True
        names = [client.name for client in clients]
        self.nodes[name] = RegisteredNode(proof, names, version, address, alone)
        self._replace(name, clients)
        return name

    def remove(self, node: str) -> None:
        """Takes out a node that takes no part any longer, with its clients."""
        self._replace(node, [])
        del self.nodes[node]

    def change(self, node: str, message: Message) -> None:
        """Takes in what a node says has changed: who left, who came, whose data did."""
        registered = self.nodes[node]
        left = _positions(message.facts.get("left", []), len(registered.clients))
        moved = self._read(node, message, "changed/")
        members = {client.name: client for client in self.clients if client.node == node}
        for position in left:
            members.pop(registered.clients[position], None)
        for client in moved:
            if client.name in members:
                client.accepted = members[client.name].accepted
            members[client.name] = client
        stayed = [name for i, name in enumerate(registered.clients) if i not in left]
        known = set(stayed)
        new = [client.name for client in moved if client.name not in known]
        self._check_count(node, len(stayed) + len(new))
        registered.clients = stayed + new
        registered.version += 1
        self._replace(node, [members[name] for name in registered.clients])

    def lasting_number(self, number: int) -> int:
        """A number of a client that stays its own when others come and go."""
        client = self.clients[number]
        key = json.dumps([client.node, client.name]).encode()
        return int.from_bytes(hashlib.sha256(key).digest()[:8], "big")

    def asked(self, node: str, numbers: Sequence[int]) -> tuple[list[int], list[int]]:
        """Where some clients stand in their node's own list, and their last tags that counted."""
        order = {client: i for i, client in enumerate(self.nodes[node].clients)}
        clients = [self.clients[number] for number in numbers]
        return [order[x.name] for x in clients], [x.accepted for x in clients]

    def _read(self, node: str, message: Message, prefix: str) -> list[RegisteredClient]:
        """The clients that a message describes, checked."""
        names = message.facts.get("clients", [])
        if not isinstance(names, list):
            raise WireError(f"Node {node!r} names no list of clients.")
        self._check_count(node, len(names))
        if not all(isinstance(n, int | str) and not isinstance(n, bool) for n in names):
            raise WireError(f"Node {node!r} names a client by something else than text or number.")
        if len(set(names)) < len(names):
            raise WireError(f"Node {node!r} names a client twice.")
        if any(isinstance(n, str) and len(n) > 256 for n in names):
            raise WireError(f"Node {node!r} names a client by more than 256 characters.")
        most = self.limits.examples
        part = part_of(message.parts, f"{prefix}examples")
        sums = ids_from_bytes(part, most * len(names) + 1, len(names))
        if len(sums) != len(names):
            raise WireError(f"Node {node!r} does not say how many examples each client has.")
        examples = torch.diff(sums, prepend=torch.zeros(1, dtype=torch.int64)).tolist()
        if any(not 1 <= count <= most for count in examples):
            raise WireError(
                f"Node {node!r} has a client with less than 1 or more than {most} examples."
            )
        index: dict[str, list[Tensor]] = {}
        if not self.sets_known:
            index = {table: [no_ids()] * len(names) for table in self.tables}
        for table in self.tables if self.sets_known else ():
            rows = self.schema.tables[table].rows
            ids, every = part_of(message.parts, f"{prefix}index/{table}"), rows * len(names)
            flat = ids_from_bytes(ids, every, every)
            splits = torch.searchsorted(flat, torch.arange(len(names) + 1) * rows)
            parts = flat.split(splits.diff().tolist())
            index[table] = [part.sub_(i * rows) for i, part in enumerate(parts)]
            _check_held(self.draws, node, table, index[table])
        return [
            RegisteredClient(
                node, name, examples[i], {table: sets[i] for table, sets in index.items()}
            )
            for i, name in enumerate(names)
        ]

    def _check_count(self, node: str, clients: int) -> None:
        if clients > self.limits.clients:
            raise WireError(
                f"Node {node!r} has {clients} clients, but max-clients is {self.limits.clients}."
            )

    def _replace(self, node: str, clients: list[RegisteredClient]) -> None:
        """Puts these clients in the place of those that the node had."""
        before = [client for client in self.clients if client.node == node]
        now = {client.name: client for client in clients}
        old = {client.name for client in before}
        self.clients = [
            now.get(x.name, x) if x.node == node else x
            for x in self.clients
            if x.node != node or x.name in now
        ]
        self.clients += [client for client in clients if client.name not in old]
        self.version += 1
        if (newest := self._newest_ceiling()) == self._ceiling:
            self._count(before, -1)
            self._count(clients, 1)
        else:
            self._ceiling = newest
            self._count_all()
        self._renumber()

    def sort(self) -> None:
        """Orders clients by name, as a simulation has them; only before the first round."""
        self.clients.sort(
            key=lambda client: (isinstance(client.name, str), client.name, client.node)
        )
        self._renumber()

    def _newest_ceiling(self) -> float:
        """The largest weight that a client of those who are here may have."""
        examples = torch.tensor([client.examples for client in self.clients], dtype=torch.int64)
        return ceiling(examples, self.weight_quantile)

    def _weights(self, members: list[RegisteredClient]) -> Tensor:
        if self.weighting != "examples":
            return torch.ones(len(members), dtype=torch.float64)
        examples = torch.tensor([client.examples for client in members], dtype=torch.float64)
        return examples.clamp(max=self._ceiling)

    def weight_of(self, client: RegisteredClient) -> float:
        """The weight of a client, by what it was registered with."""
        return float(self._weights([client])[0])

    def _count_all(self) -> None:
        self.heat = {t: Heat(no_ids(), no_ids().double(), 0.0) for t in self.tables}
        self._count(self.clients, 1)

    def _count(self, members: list[RegisteredClient], sign: int) -> None:
        """Adds some clients to the heat, or takes them away; a few at a time, to save memory."""
        weights = sign * self._weights(members)
        sizes = np.array(
            [sum(map(len, client.index.values())) for client in members], dtype=np.int64
        )
        cuts = (np.flatnonzero(np.diff(np.cumsum(sizes) // AT_A_TIME)) + 1).tolist()
        for first, last in pairwise([0, *cuts, len(members)]):
            some, own = members[first:last], weights[first:last]
            for table, heat in self.heat.items():
                index = Index.of([client.index[table] for client in some])
                counts, everywhere = own, 0.0
                if self.draws is not None and table == self.draws.table:
                    counts, everywhere = self.draws.expected(index.lengths, own)
                counts = index.spread(counts)
                self.heat[table] = heat.changed(index.ids, counts, float(own.sum()), everywhere)

    def _renumber(self) -> None:
        self.weights = self._weights(self.clients)

    def accepted(self) -> Tensor:
        """The tag of the last round that counted, of every client: (N,)."""
        return torch.tensor([client.accepted for client in self.clients], dtype=torch.int64)

    def save(self, path: Path) -> None:
        """Writes nodes and clients into one file, whole or not at all."""
        names = [[client.node, client.name, client.examples] for client in self.clients]
        nodes = {name: vars(node) for name, node in self.nodes.items()}
        facts = {"members": names, "nodes": nodes, "version": self.version}
        tensors = {}
        for table in self.tables:
            index = Index.of([client.index[table] for client in self.clients])
            tensors[f"{table}/ids"], tensors[f"{table}/splits"] = index.ids, index.splits
        write_private(path, safetensors.torch.save(tensors, {"fedrows": json.dumps(facts)}))

    def load_(self, path: Path) -> None:
        """Reads what `save` has written, in place of what is here."""
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                facts = json.loads((file.metadata() or {})["fedrows"])
                parts = {
                    table: file.get_tensor(f"{table}/ids").split(
                        file.get_tensor(f"{table}/splits").diff().tolist()
                    )
                    for table in self.tables
                }
            self.nodes = {name: RegisteredNode(**about) for name, about in facts["nodes"].items()}
            self.clients = [
                RegisteredClient(
                    node, name, examples, {table: parts[table][i] for table in self.tables}
                )
                for i, (node, name, examples) in enumerate(facts["members"])
            ]
            self.version = facts["version"]
        except (OSError, safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path} is missing or damaged: start the run again with --overwrite."
            ) from error
        self.__post_init__()


def _word(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 256:
        raise WireError(f"The message has no {name} of 1 to 256 characters.")
    if not value.isprintable():  # operators see it in their terminals
        raise WireError(f"The message has a {name} with characters that cannot be printed.")
    return value


def _positions(value: Any, limit: int) -> set[int]:
    if not isinstance(value, list) or not all(type(x) is int and 0 <= x < limit for x in value):
        raise WireError("The message names clients that the node does not have.")
    return set(value)


def _check_held(draws: PoolDraws | None, node: str, table: str, held: Sequence[Tensor]) -> None:
    """Raises a WireError if a client cannot hold these sorted ids of a table, and draw others.

    Heat counts on the items that are left to draw: with none it would no longer be a number.
    """
    if draws is None or table != draws.table:
        return
    for ids in held:
        if len(ids) and int(ids[0]) < draws.span[0]:
            raise WireError(
                f"Node {node!r} has a client that holds row 0 of table {table!r}, which means "
                "nothing."
            )
        if len(ids) >= draws.items:
            raise WireError(
                f"Node {node!r} has a client that holds all {draws.items} items of table "
                f"{table!r}, so there is no negative to draw for it: leave it out."
            )
