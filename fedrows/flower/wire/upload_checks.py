"""An update is untrusted input: what is checked before it touches the model.

A message that cannot be read is refused whole, for one node wrote it. Of a message that can, each
client's update is refused or taken by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError, unpack
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    decode_marks,
    decode_submodels,
    mark_names,
    part_names,
)
from fedrows.rows.params import Submodels

ANSWERED = "answered"  # the part that says which of the clients asked have answered, if not all
FACTOR = 100.0  # times the median: what no honest update is, if nobody names a bound


class UploadRefused(Exception):
    """Why an upload was dropped: a word for counting, and a sentence for the log."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class ReceivedUpload:
    """What a node's clients made of a round."""

    message: Message
    submodels: dict[str, Submodels]
    steps: Tensor  # (K,)
    losses: Tensor  # (K,), or none
    occurred: dict[str, Tensor] | None  # by table (R,), if it was asked for
    answered: list[int] | None = None  # positions among the clients asked; None: all of them


def read_upload(
    data: bytes,
    layouts: Mapping[str, SubmodelLayout],
    tag: int,
    most_steps: int,
    marked: bool = False,
    narrowed: Callable[[list[int]], Mapping[str, SubmodelLayout]] | None = None,
) -> ReceivedUpload:
    """Reads a node's answer, or raises UploadRefused; submodels have these names and layouts.

    marked: whether it must say which rows occurred in batches. narrowed: the layouts of some of
    the clients, if the answer may leave others out.
    """
    clients = next(iter(layouts.values())).clients
    index = layouts["update"].index
    most = sum(layout.most for layout in layouts.values()) + 64 * clients + 2**20
    most += sum(len(rows.ids) // 8 + 256 for rows in index.values()) if marked else 0
    if len(data) > most:
        raise UploadRefused("too large", f"{len(data)} bytes, where at most {most} can be right")
    try:
        message = unpack(data, most)
    except WireError as error:
        raise UploadRefused("unreadable", str(error)) from None
    if message.kind != "trained":
        raise UploadRefused("unexpected", "a message of another kind")
    if message.facts.get("tag") != tag:
        raise UploadRefused("stale", "an answer to another round, or to an earlier try of this one")
    answered = None
    if narrowed is not None and ANSWERED in message.parts:
        try:
            answered = ids_from_bytes(message.parts[ANSWERED], clients, clients).tolist()
        except WireError as error:
            raise UploadRefused("wrong shape", str(error)) from None
        layouts = narrowed(answered)
        clients, index = len(answered), layouts["update"].index
    known = (
        {"steps", "losses"}
        | ({ANSWERED} if narrowed is not None else set())
        | (mark_names(index) if marked else set())
    )
    for name, layout in layouts.items():
        known |= part_names(name, layout)
    if odd := sorted(x for x in message.parts.keys() - known if not x.startswith("changed/")):
        raise UploadRefused("unreadable", f"a part that nobody asked for ({odd[0][:40]!r})")
    steps, losses = message.parts.get("steps", b""), message.parts.get("losses", b"")
    try:
        submodels = {
            name: decode_submodels(name, message.parts, layout) for name, layout in layouts.items()
        }
        sums = ids_from_bytes(steps, clients * (most_steps + 1) + 1, clients)
        marks = decode_marks(message.parts, index) if marked else None
    except WireError as error:
        raise UploadRefused("wrong shape", str(error)) from None
    if len(sums) != clients or len(losses) not in (0, 4 * clients):
        raise UploadRefused("wrong shape", "steps or losses of fewer clients than were asked")
    done = torch.diff(sums, prepend=torch.zeros(1, dtype=torch.int64)) - 1
    if (done > most_steps).any():
        raise UploadRefused("wrong shape", f"more local steps than {most_steps}")
    reported = torch.from_numpy(np.frombuffer(losses, dtype="<f4").copy())
    return ReceivedUpload(message, submodels, done.to(torch.float64), reported, marks, answered)


def finite_clients(submodels: Mapping[str, Submodels]) -> Tensor:
    """Which clients sent nothing but finite numbers: (K,)."""
    # A NaN or an infinity anywhere shows in the norm.
    return torch.stack([part.norms().isfinite() for part in submodels.values()]).all(0)


def too_long(
    update: Submodels,
    correction: Mapping[str, Tensor] | None,
    bound: float | None,
) -> Tensor:
    """Which clients' updates are longer than any honest one: (K,).

    correction: what the algorithm multiplies each row by (R,), if it does; the update is then
    measured before and after.
    """
    measured = [update]
    if correction is not None:
        rows = {table: x * correction[table][:, None] for table, x in update.rows.items()}
        measured.append(Submodels(update.index, rows, update.dense))
    long = []
    for part in measured:
        norms = part.map(Tensor.double).norms()
        limit = bound if bound is not None else FACTOR * float(norms.median())
        long.append(norms > limit if limit > 0 else torch.zeros_like(norms, dtype=torch.bool))
    return torch.stack(long).any(0)
