"""A server that hides what it opened, so that the same rows are sent to it again.

Four clients hold a row. Each sum is over three of them, and the server shows nobody a proof of what
was opened. If all send the row again each time, four sums give four clients' numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deployed
import numpy as np
import pytest
import safetensors.torch
from crypto_twin import node, registry
from deployed import CONFIG, examples, shards_of, task_of
from loopback import federation

from fedrows.privacy import openings
from fedrows.privacy.messages import pack, unpack
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import LastRequests, run

CLIENTS = (0, 1, 2, 3)
COHORTS = [tuple(one for one in CLIENTS if one != left_out) for left_out in CLIENTS]
Proof = Callable[[bytes, bytes], bytes]  # the true one and that of the sum before → what is shown


def one_sum(name: str, cohort: tuple[int, ...], rows: dict[int, Any], show: Proof, old: bytes):
    """What the server opens, what each client thinks is sent, and the true proof."""
    plan = Openings(name, cohort, rows=1, width=1, minimum=2)
    terms, keys = plan.terms(3), registry(cohort)
    true: list[bytes] = []

    def hiding() -> Any:
        half = openings.server(plan, terms, keys)
        requests = next(half)
        for phase in range(6):
            requests = half.send((yield requests))
            if phase == 5:
                true.append(next(iter(requests.values())))
                requests = {one: show(request, old) for one, request in requests.items()}
        try:
            half.send((yield requests))
        except StopIteration as stop:
            return stop.value

    halves = {}
    for one in cohort:
        holds = np.array([one in rows])
        values = np.array([[rows.get(one, 0)]], dtype=np.uint32)
        halves[one] = openings.client(plan, terms, one, node(one), keys, values, holds)
    found = run(hiding(), halves)
    return int(found.result.rows[0, 0]), found.clients, true[0]


def recovered(show: Proof) -> int:
    """How many clients' numbers four sums give."""
    numbers = {0: 1009, 1: 2503, 2: 6101, 3: 7919}
    held, sums, proof = dict(numbers), [], b""
    for place, cohort in enumerate(COHORTS):
        parts = {one: held[one] for one in cohort if one in held}
        opened, sent, proof = one_sum(f"sum {place}", cohort, parts, show, proof)
        sums.append(opened)
        for one in parts:
            if one not in sent or sent[one].all():
                del held[one]
    total = sum(sums) / 3  # every client is in three of the four sums
    return sum(abs(total - sums[one] - numbers[one]) < 1 for one in CLIENTS)


def one_statement(true: bytes, _: bytes) -> bytes:
    return pack(*unpack(true)[:-1])


SHOWN: dict[str, Proof] = {
    "nothing": lambda true, _: b"",
    "an empty list": lambda true, _: pack(b""),
    "cut short": lambda true, _: true[:-1],
    "one opener's statement": one_statement,
    "statements without names": lambda true, _: pack(b"", *unpack(true)[1:]),
    "the proof of another sum": lambda true, old: old,
}


@pytest.mark.parametrize("shown", SHOWN)
def test_without_a_proof_no_row_is_sent_again(shown: str) -> None:
    assert recovered(SHOWN[shown]) == 0


def test_the_attack_works_on_clients_that_believe_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken on purpose: a client that takes no proof for "nothing was opened"."""
    monkeypatch.setattr(
        openings, "_sent", lambda plan, session, answer: np.zeros(plan.rows, dtype=bool)
    )
    assert recovered(SHOWN["nothing"]) == len(CLIENTS)


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.slow
def test_a_node_without_a_proof_holds_nothing_back(
    hidden: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Real nodes in a round of a deployment: with the proof they keep what was not opened."""
    true = openings.late_server

    def hiding(*args: Any) -> Any:
        half = true(*args)
        requests = next(half)
        try:
            while True:
                requests = half.send((yield requests))
                if isinstance(requests, LastRequests) and hidden:
                    requests = dict.fromkeys(requests, b"")
        except StopIteration as stop:
            return stop.value

    monkeypatch.setattr(openings, "late_server", hiding)
    data = examples(clients=4, rows=20)
    options = {"privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": ""}
    config = CONFIG | options | {"clients-per-round": 4, "rounds": 1, "timeout": 5.0}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    deployed.run(fleet, data)
    files = list(tmp_path.glob("n*/*/held/*.safetensors"))
    assert len(files) == 4
    held = sum(len(safetensors.torch.load(file.read_bytes())["held/item/id"]) for file in files)
    assert held == 0 if hidden else held > 4
