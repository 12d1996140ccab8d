"""The parameters of a module that every client has for itself, as one row of a local table.

A row has the numbers of all personal parameters, one after another. So whatever handles local
tables handles personal parts: rounds, checkpoints, nodes, private rounds, mapped tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fedrows.errors import ModelError
from fedrows.lifting.replaced_operations import ReplacedOperations

_NUMBERS = 2**22  # of personal parts, that are gathered at once in an evaluation

Call = Callable[[dict[str, Tensor], Mapping[str, Tensor]], Any]  # (numbers, fields) → scores


@dataclass(frozen=True)
class PersonalParts:
    """Which parameters are personal, by name, with their shapes."""

    shapes: Mapping[str, tuple[int, ...]]

    @classmethod
    def of(
        cls, module: nn.Module, named: Sequence[str], tables: Mapping[str, str]
    ) -> PersonalParts:  # fmt: skip
        """The parameters that names of parameters and submodules stand for; a ModelError if none.

        tables: the weights that belong to tables of the data, and those tables.
        """
        if isinstance(named, str):
            raise ModelError(f"`personal` is {named!r}, but must be a list of names: [{named!r}].")
        shapes: dict[str, tuple[int, ...]] = {}
        numbers = dict(module.named_parameters())
        for name in named:
            own = [n for n in numbers if n == name or n.startswith(f"{name}.")]
            if not own:
                raise ModelError(
                    f"`personal` names {name!r}, but the module's parameters are "
                    f"{', '.join(numbers)}: name some of those, or submodules."
                )
            for parameter in own:
                if parameter in tables:
                    raise ModelError(
                        f"`personal` names {name!r}, which has table {tables[parameter]!r} in it: "
                        f"build the data with local=[{tables[parameter]!r}] in place of that."
                    )
                if not numbers[parameter].requires_grad:
                    raise ModelError(
                        f"`personal` names {name!r}, but {parameter!r} is frozen: let it train, or "
                        "leave it out."
                    )
                shapes[parameter] = tuple(numbers[parameter].shape)
        return cls(shapes)

    @property
    def width(self) -> int:
        """How many numbers a client has for itself."""
        return sum(prod(shape) for shape in self.shapes.values())

    def row(self, numbers: Mapping[str, Tensor]) -> Tensor:
        """Parameters by name as a row: (width,)."""
        return torch.cat([numbers[name].reshape(-1) for name in self.shapes])

    def split(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows (n, width) as parameters by name: (n, …) each."""
        columns = rows.split([prod(shape) for shape in self.shapes.values()], 1)
        named = zip(self.shapes.items(), columns, strict=True)
        return {name: x.reshape(len(rows), *shape) for (name, shape), x in named}  # (n, …)

    def scores(
        self,
        call: Call,
        numbers: dict[str, Tensor],
        rows: Tensor,
        clients: Tensor,
        fields: Mapping[str, Tensor],
        one_by_one: bool,
    ) -> Tensor:
        """Every example's score by its own client's parts; `rows` is the table, `clients` (n,)."""
        if len(torch.unique(clients)) == 1:
            own = {name: x[0] for name, x in self.split(rows[clients[:1]]).items()}
            return call({**numbers, **own}, fields)
        if one_by_one:
            return self._client_by_client(call, numbers, rows, clients, fields)

        def score(own: dict[str, Tensor], example: dict[str, Tensor]) -> Tensor:
            alone = {name: x[None] for name, x in example.items()}  # (1, …)
            return call({**numbers, **own}, alone)[0]

        parts, size = [], max(1, _NUMBERS // self.width)
        for some in torch.arange(len(clients), device=clients.device).split(size):
            own = self.split(rows[clients[some]])
            with ReplacedOperations():
                parts.append(vmap(score)(own, {name: x[some] for name, x in fields.items()}))
        return torch.cat(parts)

    def _client_by_client(
        self,
        call: Call,
        numbers: dict[str, Tensor],
        rows: Tensor,
        clients: Tensor,
        fields: Mapping[str, Tensor],
    ) -> Tensor:
        """The same, a call for each client."""
        result: Tensor | None = None
        for client in torch.unique(clients).tolist():
            own_examples = torch.nonzero(clients == client).flatten()
            own = {name: x[0] for name, x in self.split(rows[client : client + 1]).items()}
            scores = call({**numbers, **own}, {name: x[own_examples] for name, x in fields.items()})
            if result is None:
                result = scores.new_empty(len(clients), *scores.shape[1:])
            result[own_examples] = scores
        assert result is not None
        return result
