"""A node that answers nonsense in the groups of a private asynchronous run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from asynchronous import deployment
from deployed import examples
from test_async_groups import PRIVATE, at_random
from test_hostile_clients import mutated

from fedrows.flower.wire.message import Message, pack, unpack

DATA = examples()


def mutated_inside(answer: bytes, draw: np.random.Generator) -> bytes:
    """The answer to one or several phases, with one of them changed, or the message around them."""
    outer = unpack(answer)
    if outer.kind != "sums" or draw.random() < 0.3:
        return mutated(answer, draw)
    parts = dict(outer.parts)
    some = str(draw.choice(sorted(parts)))
    parts[some] = mutated(parts[some], draw)
    return pack(Message(outer.kind, outer.facts, parts))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_fuzzed_answers_cost_no_group_of_others_and_move_no_row_far(
    tmp_path: Path, seed: int
) -> None:
    """One node of eight mutates each of its answers; steps go on, and other groups lose nothing."""
    transport, draw, sent = at_random(seed), np.random.default_rng(seed), Counter[str]()
    terms = {**PRIVATE, "shards": 8, "min-nodes": 8, "buffer": 4, "concurrency": 8, "rounds": 15}
    run = deployment(DATA, tmp_path / "nodes", transport, **terms)

    def meddle(node: int, answer: bytes) -> bytes:
        kind = unpack(answer).kind
        if node > 1 or kind == "enrolled" or not run.fleet.groups:
            return answer
        sent[kind] += 1
        return mutated_inside(answer, draw)

    transport.meddle = meddle
    lines = list(run)
    assert run.progress.round == 15
    assert sent.total() >= 15
    lost = {why: names for x in lines for why, names in x.dropped.items()}
    honest = [x for x in lines if x.answered == 4]
    assert len(honest) >= 5, lost
    largest = max(float(x.abs().max()) for x in run.progress.whole().tables.values())
    assert largest <= 15 * run.contract.privacy.update_range
