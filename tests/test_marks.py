"""Which rows occurred in batches, over the wire: a bit for each row, and nobody gains by lying."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("safetensors")

from deployed import CONFIG, difference, examples, run, shards_of, simulated, task_of
from loopback import federation

from fedrows.flower.wire.message import WireError, pack, unpack
from fedrows.flower.wire.submodels import decode_marks, encode_marks
from fedrows.rows.index import Index

STEPPED = CONFIG | {"algorithm": "steppedmean"}


@given(st.lists(st.booleans(), max_size=40))
def test_marks_come_back_as_they_were(bits: list[bool]) -> None:
    index = {"item": Index(torch.arange(len(bits)), torch.tensor([0, len(bits)]))}
    parts = encode_marks({"item": torch.tensor(bits, dtype=torch.bool)})
    assert len(parts["occurred/item"]) == (len(bits) + 7) // 8
    assert decode_marks(parts, index)["item"].tolist() == bits
    with pytest.raises(WireError, match=f"but {len(bits)} rows have"):
        decode_marks({"occurred/item": parts["occurred/item"] + b"\0"}, index)


def meddled(change):
    """Changes the marks of every upload."""

    def meddle(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        parts = {x: change(y) if x.startswith("occurred/") else y for x, y in message.parts.items()}
        return pack(replace(message, parts=parts))

    return meddle


def test_a_row_that_moved_was_stepped_on_whatever_its_client_says(tmp_path: Path) -> None:
    data = examples()
    fleet, loopback = federation(task_of(data), STEPPED, shards_of(data), tmp_path)
    loopback.meddle = meddled(lambda marks: bytes(len(marks)))
    found = run(fleet, data).whole()
    assert not fleet.rejected
    # In these data no two steps cancel, so what moved is what occurred.
    assert difference(found, simulated(fleet, data)) < 1e-14


def test_marks_of_another_length_are_refused(tmp_path: Path) -> None:
    data = examples()
    fleet, loopback = federation(task_of(data), STEPPED, shards_of(data), tmp_path)
    honest, first = meddled(lambda marks: marks), meddled(lambda marks: marks[:-1])
    loopback.meddle = lambda node, answer: (first if node == 1 else honest)(node, answer)
    run(fleet, data)
    assert set(fleet.rejected) == {"wrong shape"}
