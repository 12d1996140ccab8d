"""The items that a held-out item is ranked against, the same for all models, algorithms and seeds.

    sampled    99 items that the client has in none of its examples, drawn evenly by counters
    all        every item but those of the client's training examples, and for a test item also
               those of its validation examples

A scorer takes the numbers of some examples (b,) and candidates (b, C), or (1, C) for all of them,
and gives scores (b, C): a model, a popularity, a leak detector. Examples are scored in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.data.examples import Examples
from fedrows.data.federation import FederatedData
from fedrows.data.fresh_negatives import items_of
from fedrows.data.unheld import draw_unheld
from fedrows.errors import DataError
from fedrows.measure.ranking import rank_of
from fedrows.model import Loss
from fedrows.rows.index import Index, index_and_slots
from fedrows.seeds import CANDIDATE, client_keys

RankScorer = Callable[[Tensor, Tensor], Tensor]

SAMPLED = 99
MOST_ITEMS = 2**20  # of a table that is ranked as a whole
_IDS = 2**17  # scored at once, where each example has candidates of its own
_SCORES = 2**22  # where all have the same


@dataclass(frozen=True, eq=False)
class Ranks:
    """Where the held-out items of some examples stand, counted from 0."""

    owner: Tensor  # (n,), the client of each
    item: Tensor  # (n,)
    sampled: Tensor  # (n,), among the sampled items
    all: Tensor | None = None  # (n,), among all; None if the table is too large for that
    losses: Tensor | None = None  # (n,), over the item and the sampled ones, if asked for


class Candidates:
    """The sampled items of every client; a small table may have fewer than were asked for."""

    def __init__(self, data: FederatedData, device: torch.device) -> None:
        count, drawn = SAMPLED, draw_candidates(data, SAMPLED)
        self.width, lengths = 1 + count, drawn.lengths
        self.real: Tensor | None = None  # (clients, count), which of them are there; None: all
        if bool((lengths == count).all()):
            self.ids = drawn.ids.view(-1, count).to(device)  # (clients, count)
            return
        position = torch.arange(len(drawn.ids)) - drawn.splits[:-1][drawn.owner]
        ids = torch.full((drawn.clients, count), items_of(data)[1][0])
        ids[drawn.owner, position] = drawn.ids
        self.ids = ids.to(device)
        self.real = (torch.arange(count) < lengths[:, None]).to(device)

    def beside(self, owner: Tensor, item: Tensor) -> tuple[Tensor, Tensor | None]:
        """Items (b,) of some clients, each with the client's sampled ones: (b, 1 + 99), and which
        of the columns count."""
        ids = torch.cat([item[:, None], self.ids[owner]], 1)
        if self.real is None:
            return ids, None
        return ids, torch.cat([torch.ones_like(ids[:, :1], dtype=torch.bool), self.real[owner]], 1)


class RankedItems:
    """What the held-out items of one part of the data, validation or test, are ranked against."""

    def __init__(
        self, data: FederatedData, part: str, device: torch.device, sampled: Candidates
    ) -> None:
        if part not in ("validation", "test"):
            raise DataError(f"part is {part!r}, but must be validation or test.")
        _, self.span = items_of(data)
        examples: Examples = getattr(data, part)
        self.device, self.count, self.sampled = device, len(examples), sampled
        self.host_owner = examples.owner.cpu()
        self.owner, self.item = self.host_owner.to(device), data.targets(examples).to(device)
        self._known = _index(data, [data.validation] if part == "test" else [])
        self._places: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # by slice

    def ranks(self, score: RankScorer, shared: bool = False, loss: Loss | None = None) -> Ranks:
        """The rank of every held-out item.

        shared: whether the scorer takes candidates (1, C) that are those of all its examples.
        """
        sampled, losses = self.among_sampled(score, loss)
        small = self.span[1] - self.span[0] <= MOST_ITEMS
        among_all = self._among_all(score, shared) if small else None
        return Ranks(self.owner, self.item, sampled, among_all, losses)

    def among_sampled(
        self, score: RankScorer, loss: Loss | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The ranks among the sampled items (n,), and the losses over them if asked for."""
        empty = self.item.new_zeros(0, dtype=torch.float64)
        ranks, losses = [empty], [empty]
        for first, last in self._slices(_IDS // self.sampled.width):
            some = torch.arange(first, last, device=self.device)
            ids, real = self.sampled.beside(self.owner[some], self.item[some])
            scores = score(some, ids)
            ranks.append(
                rank_of(scores[:, 1:], scores[:, 0], None if real is None else real[:, 1:])
            )
            if loss is not None:
                losses.append(losses_of(scores, real, loss))
        return torch.cat(ranks), None if loss is None else torch.cat(losses)

    def _among_all(self, score: RankScorer, shared: bool) -> Tensor:
        low, high = self.span
        items = torch.arange(low, high, device=self.device).view(1, -1)
        ranks = [self.item.new_zeros(0, dtype=torch.float64)]
        for first, last in self._slices((_SCORES if shared else _IDS) // (high - low)):
            some = torch.arange(first, last, device=self.device)
            scores = score(some, items if shared else items.expand(len(some), -1)).clone()
            position = self.item[some, None] - low
            target, bad = scores.gather(1, position).squeeze(1), scores.isnan().any(1)
            scores[self._places_known(first, last)] = -torch.inf
            scores.scatter_(1, position, -torch.inf)  # it is no item beside itself
            ranks.append(rank_of(scores, torch.where(bad, torch.nan, target)))
        return torch.cat(ranks)

    def _slices(self, size: int) -> Iterator[tuple[int, int]]:
        """All examples, so many at a time: where each slice begins and ends."""
        for first in range(0, self.count, max(1, size)):
            yield first, min(first + max(1, size), self.count)

    def _places_known(self, first: int, last: int) -> tuple[Tensor, Tensor]:
        """Which items do not count for a slice of examples: (example, item) pairs, found once."""
        if (first, last) not in self._places:
            index = self._known.select(self.host_owner[first:last])
            positions = index.ids - self.span[0]
            self._places[first, last] = index.owner.to(self.device), positions.to(self.device)
        return self._places[first, last]


def losses_of(scores: Tensor, real: Tensor | None, loss: Loss) -> Tensor:
    """The loss of examples with candidates (b, C) of which some may not count: (b,) float64."""
    if real is not None:
        scores = scores.masked_fill(~real, torch.finfo(scores.dtype).min)
    return loss(scores, scores.new_ones(len(scores))).to(torch.float64)


def draw_candidates(data: FederatedData, count: int = SAMPLED) -> Index:
    """So many items for each client that it has in none of its examples, sorted."""
    _, span = items_of(data)
    index = _index(data, [data.validation, data.test])
    keys = client_keys(0, CANDIDATE, 0, torch.arange(index.clients))
    return draw_unheld(index, keys, count, span)


def _index(data: FederatedData, parts: list[Examples]) -> Index:
    """The items that each client, trained or not, holds in training or is asked for in some parts.

    On the CPU. In training it also holds what stands in histories.
    """
    table, _ = items_of(data)
    held = data.index[table]
    owners, ids = [held.owner], [held.ids]
    for part in parts:
        owners.append(part.owner)
        ids.append(data.targets(part))
    clients = len(data.test.splits) - 1
    return index_and_slots(clients, _arrays(owners), _arrays(ids))[0]


def _arrays(tensors: list[Tensor]) -> list[np.ndarray]:
    return [x.cpu().numpy() for x in tensors]
