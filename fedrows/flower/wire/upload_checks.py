"""An update is untrusted input: what is checked before it touches the model.

A message that cannot be read is refused whole, for one node wrote it. Of a message that can, each
client's update is refused or taken by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrows.flower.wire.codings import ids_from_bytes
from fedrows.flower.wire.message import Message, WireError, unpack
from fedrows.flower.wire.submodels import (
    SubmodelLayout,
    decode_submodels,
    part_names,
)
from fedrows.rows.params import Submodels

FACTOR = 100.0  # times the median: what no honest update is, if nobody names a bound


class UploadRefused(Exception):
    """Why an upload was dropped: a word for counting, and a sentence for the log."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


def read_upload(
    data: bytes, forms: Mapping[str, SubmodelLayout], tag: int, most_steps: int
) -> tuple[Message, dict[str, Submodels], Tensor]:
    """What a node's clients made of a round: submodels by name, and the steps of each (K,)."""
    clients = next(iter(forms.values())).clients
    most = sum(form.most for form in forms.values()) + 64 * clients + 2**20
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
    known = {"steps", "losses"}
    for name, form in forms.items():
        known |= part_names(name, form)
    if odd := sorted(x for x in message.parts.keys() - known if not x.startswith("changed/")):
        raise UploadRefused("unreadable", f"a part that nobody asked for ({odd[0][:40]!r})")
    try:
        found = {name: decode_submodels(name, message.parts, form) for name, form in forms.items()}
        sums = ids_from_bytes(
            message.parts.get("steps", b""), clients * (most_steps + 1) + 1, clients
        )
    except WireError as error:
        raise UploadRefused("wrong shape", str(error)) from None
    if len(sums) != clients:
        raise UploadRefused("wrong shape", "steps of fewer clients than were asked")
    steps = torch.diff(sums, prepend=torch.zeros(1, dtype=torch.int64)) - 1
    if (steps > most_steps).any():
        raise UploadRefused("wrong shape", f"more local steps than {most_steps}")
    return message, found, steps.to(torch.float64)


def finite_clients(found: Mapping[str, Submodels]) -> Tensor:
    """Which clients sent nothing but finite numbers: (K,)."""
    good: Tensor | None = None
    for part in found.values():
        mine = part.norms().isfinite()  # a NaN or an infinity anywhere shows in the norm
        good = mine if good is None else good & mine
    assert good is not None
    return good


def too_long(
    update: Submodels,
    correction: Mapping[str, Tensor] | None,
    bound: float | None,
) -> Tensor:
    """Which clients' updates are longer than any honest one: (K,).

    correction: what the algorithm multiplies each row by (R,), if it does; the update is then
    measured before and after.
    """
    forms = [update]
    if correction is not None:
        rows = {table: x * correction[table][:, None] for table, x in update.rows.items()}
        forms.append(Submodels(update.index, rows, update.dense))
    bad: Tensor | None = None
    for form in forms:
        norms = form.map(Tensor.double).norms()
        limit = bound if bound is not None else FACTOR * float(norms.median())
        long = norms > limit if limit > 0 else torch.zeros_like(norms, dtype=torch.bool)
        bad = long if bad is None else bad | long
    assert bad is not None
    return bad
