"""Items that clients do not hold, drawn without replacement, for a whole cohort at once.

The items that a client does not hold are numbered by rank, 0 to its room − 1. Ranks are drawn, and
then turned into ids: with a client's ids sorted, h_0 < h_1 < …, the item of rank r is r + j, where
j counts the t with h_t − t ≤ r.

    room ≥ 4 · count     the first `count` different ranks of 1.5 · count + 64 draws; that these
                         have too few different ones is less likely than 10⁻¹⁵
    room < 4 · count     a shuffle of all ranks, cut off

Both depend on the client's key and its own rows alone, cost O(count · log) a client, and never wait
for a GPU: how many ids come out is known beforehand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedrows.rows.index import Index
from fedrows.seeds import below, bits

_BITS = 20  # of a draw's position, when draws are sorted
MOST = 2**18  # that can be drawn for a client


def room_of(lengths: Tensor, span: tuple[int, int]) -> Tensor:
    """How many of the ids span[0] … span[1]−1 each client does not hold: (K,)."""
    return span[1] - span[0] - lengths


def draw_unheld(held: Index, keys: Tensor, count: int, span: tuple[int, int]) -> Index:
    """For each client `count` ids of a span that it does not hold, or as many as there are; sorted.

    held: what each client holds, within the span. keys (K,): of each client's stream.
    """
    device, room = held.ids.device, room_of(held.lengths, span)
    known = torch.stack([room, held.splits[:-1], keys.cpu()]).to(device, non_blocking=True)
    room_there, starts, streams = known.unbind()
    few = room < 4 * count  # (K,), on the host
    if not bool(few.any()):
        ranks = _first_different(streams, room_there, count)
    else:
        some = torch.nonzero(few).flatten().to(device)
        ranks = _first_different(streams, room_there.clamp(min=1), count)
        ranks[some] = _shuffled(streams[some], room_there[some], count)
    ids = _ids_of(ranks, held, starts, span)  # (K, count)
    sizes = room.clamp(max=count)
    splits = torch.cat([sizes.new_zeros(1), torch.cumsum(sizes, 0)])
    if bool((sizes < count).any()):
        row = torch.repeat_interleave(sizes)
        flat = row * count + torch.arange(len(row)) - splits[:-1][row]
        return Index(ids.view(-1)[flat.to(device)], splits)
    return Index(ids.view(-1), splits)


def _first_different(streams: Tensor, room: Tensor, count: int) -> Tensor:
    """The first `count` different ranks of each client's stream, ascending: (K, count)."""
    tries = count + count // 2 + 64
    position = torch.arange(tries, device=room.device)
    drawn = below(bits(streams[:, None], position), room[:, None])  # (K, tries)
    tagged = torch.sort((drawn << _BITS) | position, dim=1).values
    rank, at = tagged >> _BITS, tagged & (2**_BITS - 1)
    fresh = torch.ones_like(rank, dtype=torch.bool)
    fresh[:, 1:] = rank[:, 1:] != rank[:, :-1]  # of equal ones, the earliest draw
    earlier = torch.zeros_like(rank).scatter_(1, at, fresh.to(rank.dtype)).cumsum(1)
    chosen = fresh & (earlier.gather(1, at) <= count)
    column = torch.where(chosen, chosen.cumsum(1) - 1, count)
    ranks = torch.zeros(len(rank), count + 1, dtype=rank.dtype, device=rank.device)
    return ranks.scatter_(1, column, rank)[:, :count]


def _shuffled(streams: Tensor, room: Tensor, count: int) -> Tensor:
    """The first `count` of a shuffle of all ranks, ascending; those past the room come last."""
    rank = torch.arange(4 * count, device=room.device)
    random = bits(streams[:, None], rank)  # (K, 4 · count)
    outside = rank >= room[:, None]
    order = torch.argsort(torch.where(outside, torch.iinfo(torch.int64).max, random), stable=True)
    return torch.sort(order[:, :count], dim=1).values if count else order[:, :0]


def _ids_of(ranks: Tensor, held: Index, starts: Tensor, span: tuple[int, int]) -> Tensor:
    """The ids of ranks (K, C) among what each client does not hold."""
    low, high = span
    width = high - low + 4 * ranks.shape[1] + 1  # more than any rank
    slot = torch.arange(len(held.ids), device=ranks.device) - starts[held.owner]
    keys = held.owner * width + (held.ids - low - slot)  # (R,), ascending
    client = torch.arange(len(ranks), device=ranks.device)[:, None]
    before = torch.searchsorted(keys, client * width + ranks, right=True)
    return ranks + low + before - starts[:, None]
