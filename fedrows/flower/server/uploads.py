"""The uploads of one round: each answer is checked as it comes, then all are joined into one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from fedrows.client import Upload
from fedrows.flower.server.registry import Registry
from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.message import Message
from fedrows.flower.wire.submodels import SubmodelLayout
from fedrows.flower.wire.upload_checks import finite_clients, read_upload, too_long
from fedrows.robust import clip_norms_, trim
from fedrows.rows.heat import Heat
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels

Refuse = Callable[[str, str, str], None]  # a word for counting, whose upload, and why


class RoundUploads:
    """What the clients of a cohort have sent so far; untrusted updates are refused."""

    def __init__(
        self, contract: Contract, registry: Registry, cohort: Tensor, tag: int, refuse: Refuse
    ) -> None:
        self._contract, self._registry, self._refuse = contract, registry, refuse
        self._cohort, self._tag = cohort, tag
        self._parts: dict[int, dict[str, Submodels]] = {}  # position in the cohort → submodels
        self._steps: dict[int, float] = {}
        self._marks: dict[int, dict[str, Tensor]] = {}  # which rows occurred in batches
        self._silent: set[int] = set()  # positions whose node answered without them
        self._losses: list[tuple[float, float]] = []  # a client's loss and its weight

    def add(self, positions: list[int], answer: bytes) -> Message:
        """Takes in a node's answer; raises UploadRefused if none of it can be trusted."""
        plan, algorithm = self._contract.plan, self._contract.algorithm
        numbers = [int(self._cohort[position]) for position in positions]

        def layouts(some: list[int]) -> dict[str, SubmodelLayout]:
            own = self._layout(self._registry.index([numbers[i] for i in some]))
            return {"update": own, **dict.fromkeys(algorithm.returns, own)}

        most = plan.local_steps if plan.batches == "draw" else 2**31 // max(len(positions), 1) - 2
        every = layouts(list(range(len(numbers))))
        marked = algorithm.needs_occurred
        received = read_upload(answer, every, self._tag, most, marked, layouts)
        if received.answered is not None:
            self._silent |= set(positions) - {positions[i] for i in received.answered}
            positions = [positions[i] for i in received.answered]
            numbers = [numbers[i] for i in received.answered]
        index = received.submodels["update"].index
        finite = finite_clients(received.submodels)
        for i, (position, number) in enumerate(zip(positions, numbers, strict=True)):
            if not finite[i]:
                self._refuse("not finite", self._client(position), "a number that is not finite")
                continue
            self._parts[position] = {
                name: part.slice(i, i + 1) for name, part in received.submodels.items()
            }
            self._steps[position] = float(received.steps[i])
            if received.occurred is not None:
                self._marks[position] = {
                    table: marks[index[table].splits[i] : index[table].splits[i + 1]]
                    for table, marks in received.occurred.items()
                }
            if i < len(received.losses) and received.losses[i].isfinite():
                weight = float(self._registry.weights[number])
                self._losses.append((float(received.losses[i]), weight))
        return received.message

    def silent(self, positions: list[int]) -> list[int]:
        """Those of some positions that their node's answer left out."""
        return [position for position in positions if position in self._silent]

    def loss(self) -> float | None:
        """The mean loss that clients have reported; None if none has."""
        if not self._losses:
            return None
        return sum(x * w for x, w in self._losses) / sum(w for _, w in self._losses)

    def joined(self, heat: Mapping[str, Heat]) -> Upload:
        """All updates that can be trusted, in cohort order; too long ones are refused here."""
        options, algorithm = self._contract.options, self._contract.algorithm
        order = sorted(self._parts)
        while True:
            clients = self._cohort[torch.tensor(order, dtype=torch.int64)]
            index = self._registry.index(clients.tolist())
            parts = {
                name: self._join(index, [self._parts[position][name] for position in order])
                for name in ("update", *algorithm.returns)
            }
            if not order:
                break
            share = self._registry.weights[clients]
            dtype, share = self._contract.plan.torch_dtype, share / share.sum()
            correction = algorithm.correction(index, heat, dtype, share)
            bad = too_long(parts["update"], correction, options.max_norm).tolist()
            if not any(bad):
                break
            for position, out in zip(order, bad, strict=True):
                if out:
                    client = self._client(position)
                    self._refuse("too long", client, "an update longer than any honest one")
            order = [position for position, out in zip(order, bad, strict=True) if not out]
        update = parts.pop("update")
        marks = self._occurred(update, order) if algorithm.needs_occurred else None
        if order and options.robust == "clip":
            clip_norms_(update, options.clip_norm)
        if order and options.robust == "trim":
            update = trim(update, options.trim_share)
        steps = torch.tensor([self._steps[position] for position in order], dtype=torch.float64)
        return Upload(clients, update, steps, parts, None, occurred=marks)

    def _occurred(self, update: Submodels, order: list[int]) -> dict[str, Tensor]:
        """Which rows occurred in the clients' batches, by table: (R,).

        A row that moved counts, whatever its client says. Otherwise a client could leave itself
        out of a row's divisor, and move the row further than all others.
        """
        marks = {}
        for table, rows in update.rows.items():
            said = [torch.zeros(0, dtype=torch.bool), *(self._marks[p][table] for p in order)]
            marks[table] = torch.cat(said) | rows.ne(0).any(1)
        return marks

    def _client(self, position: int) -> str:
        client = self._registry.clients[int(self._cohort[position])]
        return f"client {client.name!r} of node {client.node!r}"

    def _layout(self, index: Mapping[str, Index]) -> SubmodelLayout:
        coding, dtype = self._contract.coding, self._contract.plan.torch_dtype
        return SubmodelLayout(index, self._registry.schema, coding, dtype)

    def _join(self, index: Mapping[str, Index], parts: list[Submodels]) -> Submodels:
        """Single clients' submodels, one after another; there may be none."""
        rows, dense = self._layout(index).shapes()
        dtype = self._contract.plan.torch_dtype
        none = Submodels(
            {},
            {table: torch.zeros(0, shape[1], dtype=dtype) for table, shape in rows.items()},
            {name: torch.zeros(0, *shape[1:], dtype=dtype) for name, shape in dense.items()},
        )
        both = [none, *parts]
        return Submodels(
            index,
            {table: torch.cat([part.rows[table] for part in both]) for table in rows},
            {name: torch.cat([part.dense[name] for part in both]) for name in dense},
        )
