"""What nodes send: each answer is checked as it comes, then the updates of a step are joined."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.registry import Registry
from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.names import round_of
from fedrows.flower.wire.submodels import SubmodelLayout, join_submodels
from fedrows.flower.wire.upload_checks import finite_clients, read_upload, too_long
from fedrows.robust import clip_norms_, trim
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Refuse = Callable[[str, str, str], None]  # a word for counting, whose upload, and why
NOT_FINITE = ("not finite", "a number that is not finite")
TOO_LONG = ("too long", "an update longer than any honest one")


@dataclass(frozen=True)
class ClientUpdate:
    """One client's part of an answer: what it sends is of one client (K = 1)."""

    parts: dict[str, Submodels]  # the update, and what the algorithm returns beside it
    steps: float
    marks: dict[str, Tensor] | None  # which rows occurred in batches, if that was asked
    loss: float | None  # before it trained, if it says so


class UpdateReader:
    """Reads the answers of nodes, and joins the updates of clients."""

    def __init__(self, contract: Contract, registry: Registry) -> None:
        self._contract, self._registry = contract, registry

    def read(
        self, answer: bytes, index: Mapping[str, Index], tag: int
    ) -> tuple[Message, list[ClientUpdate | None], frozenset[int]]:
        """A node's answer, client by client; None for one with a number that is not finite.

        The positions of clients that the answer leaves out come last; they have None, too. Raises
        UploadRefused if none of it can be trusted. index: the rows of the clients that were asked.
        """
        plan, algorithm = self._contract.plan, self._contract.algorithm

        def layouts(of: Mapping[str, Index]) -> dict[str, SubmodelLayout]:
            own = self._layout(of)
            return {"update": own, **dict.fromkeys(algorithm.returns, own)}

        def narrowed(some: list[int]) -> dict[str, SubmodelLayout]:
            chosen = torch.tensor(some, dtype=torch.int64)
            return layouts({table: x.select(chosen) for table, x in index.items()})

        every = layouts(index)
        clients = every["update"].clients
        most = plan.local_steps if plan.batches == "draw" else 2**31 // max(clients, 1) - 2
        received = read_upload(answer, every, tag, most, algorithm.needs_occurred, narrowed)
        answered = list(range(clients)) if received.answered is None else received.answered
        finite, own = finite_clients(received.submodels), received.submodels["update"].index
        updates: list[ClientUpdate | None] = [None] * clients
        for i, position in enumerate(answered):
            if not finite[i]:
                continue
            parts = {name: part.slice(i, i + 1) for name, part in received.submodels.items()}
            marks = None
            if received.occurred is not None:
                marks = {
                    table: x[own[table].splits[i] : own[table].splits[i + 1]]
                    for table, x in received.occurred.items()
                }
            known = i < len(received.losses) and bool(received.losses[i].isfinite())
            loss = float(received.losses[i]) if known else None
            updates[position] = ClientUpdate(parts, float(received.steps[i]), marks, loss)
        return received.message, updates, frozenset(range(clients)) - frozenset(answered)

    def too_long(
        self, updates: Sequence[ClientUpdate], weights: Tensor, heat: Mapping[str, Heat]
    ) -> list[bool]:
        """Which of some updates are longer than any honest one."""
        if not updates:
            return []
        update, share = self._join("update", updates), weights / weights.sum()
        dtype = self._contract.plan.torch_dtype
        correction = self._contract.algorithm.correction(update.index, heat, dtype, share)
        bad: list[bool] = too_long(update, correction, self._contract.options.max_norm).tolist()
        return bad

    def joined(self, clients: Tensor, updates: Sequence[ClientUpdate]) -> Upload:
        """The updates of some clients, in this order, as one upload; there may be none."""
        options, algorithm = self._contract.options, self._contract.algorithm
        parts = {name: self._join(name, updates) for name in ("update", *algorithm.returns)}
        update = parts.pop("update")
        marks = _occurred(update, updates) if algorithm.needs_occurred else None
        if updates and options.robust == "clip":
            clip_norms_(update, options.clip_norm)
        if updates and options.robust == "trim":
            update = trim(update, options.trim_share)
        steps = torch.tensor([one.steps for one in updates], dtype=torch.float64)
        return Upload(clients, update, steps, parts, None, occurred=marks)

    def _layout(self, index: Mapping[str, Index]) -> SubmodelLayout:
        coding, dtype = self._contract.coding, self._contract.plan.torch_dtype
        return SubmodelLayout(index, self._registry.schema, coding, dtype)

    def _join(self, name: str, updates: Sequence[ClientUpdate]) -> Submodels:
        """Single clients' submodels, one after another; there may be none."""
        parts, tables = [update.parts[name] for update in updates], self._registry.tables
        index = {table: Index.of([x.index[table].ids for x in parts]) for table in tables}
        return join_submodels(parts, self._layout(index))


class RoundUploads:
    """What the clients of a cohort have sent so far; untrusted updates are refused."""

    def __init__(
        self, contract: Contract, registry: Registry, cohort: Tensor, tag: int, refuse: Refuse
    ) -> None:
        self._reader = UpdateReader(contract, registry)
        self._registry, self._refuse = registry, refuse
        self._cohort, self._tag = cohort, tag
        self._updates: dict[int, ClientUpdate] = {}  # by position in the cohort
        self._silent: set[int] = set()  # positions whose node answered without them
        self._losses: list[tuple[float, float]] = []  # a client's loss and its weight

    def add(self, positions: list[int], answer: bytes) -> Message:
        """Takes in a node's answer; raises UploadRefused if none of it can be trusted."""
        numbers = [int(self._cohort[position]) for position in positions]
        index = self._registry.round_index(numbers, round_of(self._tag))
        message, updates, silent = self._reader.read(answer, index, self._tag)
        self._silent |= {positions[i] for i in silent}
        for position, number, update in zip(positions, numbers, updates, strict=True):
            if position in self._silent:
                continue
            if update is None:
                self._refuse(NOT_FINITE[0], self._client(position), NOT_FINITE[1])
                continue
            self._updates[position] = update
            if update.loss is not None:
                self._losses.append((update.loss, float(self._registry.weights[number])))
        return message

    def silent(self, positions: list[int]) -> list[int]:
        """Those of some positions that their node's answer left out."""
        return [position for position in positions if position in self._silent]

    def loss(self) -> float | None:
        """The mean loss that clients have reported; None if none has."""
        return mean_loss(self._losses)

    def joined(self, heat: Mapping[str, Heat]) -> Upload:
        """All updates that can be trusted, in cohort order; too long ones are refused here."""
        order = sorted(self._updates)
        while True:
            clients = self._cohort[torch.tensor(order, dtype=torch.int64)]
            updates = [self._updates[position] for position in order]
            bad = self._reader.too_long(updates, self._registry.weights[clients], heat)
            if not any(bad):
                return self._reader.joined(clients, updates)
            for position, out in zip(order, bad, strict=True):
                if out:
                    self._refuse(TOO_LONG[0], self._client(position), TOO_LONG[1])
            order = [position for position, out in zip(order, bad, strict=True) if not out]

    def _client(self, position: int) -> str:
        client = self._registry.clients[int(self._cohort[position])]
        return f"client {client.name!r} of node {client.node!r}"


def mean_loss(losses: Sequence[tuple[float, float]]) -> float | None:
    """The mean of losses, each with its weight; None if there are none."""
    if not losses:
        return None
    return sum(x * w for x, w in losses) / sum(w for _, w in losses)


def _occurred(update: Submodels, updates: Sequence[ClientUpdate]) -> dict[str, Tensor]:
    """Which rows occurred in the clients' batches, by table: (R,).

    A row that moved counts, whatever its client says. Otherwise a client could leave itself out of
    a row's divisor, and move the row further than all others.
    """
    marks = {}
    for table, rows in update.rows.items():
        bits = [(client.marks or {})[table] for client in updates]
        marks[table] = torch.cat([torch.zeros(0, dtype=torch.bool), *bits]) | rows.ne(0).any(1)
    return marks
