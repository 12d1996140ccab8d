"""A private deployment without the network: the same messages, halves that live in files."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from deployed import CONFIG, difference, examples, run, shards_of, simulated, task_of
from loopback import federation, phases_in

from fedrows.errors import PlanError
from fedrows.flower.server import fleet as fleet_module
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.server.sum_exchange import Lane, SumCourse, SumExchange, carried
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import unpack
from fedrows.privacy.accounts import BudgetSpentError
from fedrows.rows.heat import heat_of
from fedrows.server import begin, rounds

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 5.0,
}  # fmt: skip


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedsubavg",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedavg", "fedprox", "fedadam")),
    ],
)
def test_a_private_run_is_the_clear_one_to_the_precision_of_its_words(
    tmp_path: Path, algorithm: str
) -> None:
    data = examples()
    fleet, _ = federation(
        task_of(data), PRIVATE | {"algorithm": algorithm, "tau": 0.1}
        if algorithm == "fedadam" else PRIVATE | {"algorithm": algorithm},
        shards_of(data, 4), tmp_path,
    )  # fmt: skip
    found = run(fleet, data)
    assert difference(found.whole(), simulated(fleet, data)) < 2e-5


def test_heat_is_exact_and_nobody_tells_an_index_set(tmp_path: Path) -> None:
    data = examples()
    fleet, post = federation(task_of(data), PRIVATE, shards_of(data, 4), tmp_path)
    answers: list[bytes] = []
    post.meddle = lambda node, answer: answers.append(answer) or answer  # type: ignore[func-returns-value]
    run(fleet, data)
    true, found = heat_of(data.index["item"], data.weights("uniform")), fleet.heat()["item"]
    assert torch.equal(true.ids, found.ids)
    assert torch.equal(true.counts, found.counts)
    assert true.total == found.total
    assert not any(one.index["item"].numel() for one in fleet.registry.clients)
    for message in (one for answer in answers for one in phases_in(answer) or [unpack(answer)]):
        assert set(message.parts) <= {"examples", "signature", "reply", "asked"}


def test_a_round_takes_two_messages_a_node_and_a_third_to_openers(tmp_path: Path) -> None:
    """Vectors, opened masks: they bring the next unions, and the keys of sums to come."""
    data = examples()
    config = PRIVATE | {"clients-per-round": 12, "rounds": 6}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    agreed = fleet.contract
    progress = begin(agreed.model(data), agreed.algorithm, agreed.plan)
    sent, uses, paid, all_sent = [], [], [], []
    for _ in rounds(fleet, agreed.plan, progress):
        paid.append(max(entry.round for entry in fleet.accounts.ledger.entries))
        messages = [message for node, message in post.sent if node == 1]
        sent.append(len(messages))
        all_sent.append(len(post.sent))
        uses.append([one.facts.get("use") for m in messages for one in phases_in(m)])
        post.sent.clear()
    assert paid == [3, 4, 5, 6, 6, 6]  # what two unions ahead are asked is in the ledger
    assert sent[0] in (14, 15)  # enrolment 1, heat 4, the first union 5, the first sum 4 or 5
    assert all_sent[1] == 4 + 10  # the second union is told to all
    assert all_sent[2:5] == [
        10,
        10,
        10,
    ]  # two messages to each of 4 nodes, one to each of 2 openers
    assert all_sent[5] == 14  # and who opens nothing hears of the end
    begun = [[use for use in each if use] for each in uses]
    assert begun[1:] == [["union", "update"], ["union", "update"], ["update"], ["update"], []]


def test_a_union_of_another_cohort_than_was_drawn_is_found_anew(tmp_path: Path) -> None:
    data = examples()
    config = PRIVATE | {"clients-per-round": 12, "rounds": 2}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    agreed = fleet.contract
    progress = begin(agreed.model(data), agreed.algorithm, agreed.plan)
    unions = []
    for _ in rounds(fleet, agreed.plan, progress):
        phases = [one.facts for _, m in post.sent for one in phases_in(m)]
        unions.append(len({x["sum"] for x in phases if x.get("use") == "union"}))
        post.sent.clear()
        post.here.pop(4, None)  # it was in the union that is there already
    assert fleet.last is not None
    assert (unions, fleet.last.answered) == ([2, 1], 9)


@pytest.mark.slow
def test_one_silent_message_has_one_union_asked_twice(tmp_path: Path) -> None:
    """Nodes forget the unions behind one that begins anew, and so must the server."""
    data = examples()
    config = PRIVATE | {"clients-per-round": 12, "rounds": 6, "min-answers": 1}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    vectors: list[int] = []

    def silent_once(node: int, answer: bytes) -> bytes | str:
        if node == 2 and any("coding" in one.facts for one in phases_in(post.sent[-1][1])):
            vectors.append(node)
            return "it was killed" if len(vectors) == 3 else answer
        return answer

    post.meddle = silent_once
    run(fleet, data)
    entries = fleet.accounts.ledger.entries
    asked = sorted(one.round for one in entries if one.mechanism == "union")
    assert asked == [1, 2, 3, 4, 4, 5, 6]


@pytest.mark.slow
def test_unions_that_are_asked_again_spend_no_more_than_there_is(tmp_path: Path) -> None:
    data = examples()
    config = PRIVATE | {
        "clients-per-round": 12, "rounds": 9, "min-answers": 1, "index-epsilon": 1.0,
        "index-epsilon-for-ever": 50.0, "max-epsilon": 6.5,
    }  # fmt: skip
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    vectors: list[int] = []

    def silent_often(node: int, answer: bytes) -> bytes | str:
        if node == 2 and any("coding" in one.facts for one in phases_in(post.sent[-1][1])):
            vectors.append(node)
            return "it was killed" if len(vectors) > 2 else answer
        return answer

    post.meddle = silent_often
    with pytest.raises(BudgetSpentError, match=r"max-epsilon of .* is 6.5: .* raise max-epsilon"):
        run(fleet, data)
    privacy = fleet.contract.privacy
    assert 5 < fleet.accounts.ledger.spent(privacy.limited) <= 6.5


def test_no_union_is_asked_beside_a_sum_that_carries_none() -> None:
    def half() -> Generator[dict[int, bytes], dict[int, bytes], None]:
        yield {1: b""}
        yield {1: b""}

    asked: list[str] = []
    lane: Lane[Any] = Lane(
        SumExchange({1: "n0"}, {"sum": "0" * 32, "run": "r", "contract": "c"}), half()
    )
    steps = SumCourse().steps(lane, (), lambda: asked.append("second"))
    carried(steps, lambda messages, awaited: {})
    assert (lane.sum.phases, asked) == (2, [])


@pytest.mark.slow
def test_rows_with_too_few_holders_wait_at_their_node(tmp_path: Path) -> None:
    data = examples()
    fleet, _ = federation(
        task_of(data), PRIVATE | {"min-contributors": 3, "rounds": 3}, shards_of(data, 4), tmp_path
    )
    found = run(fleet, data)
    nodes = [data.select(torch.arange(i, data.clients, 4)) for i in range(4)]
    holders = np.zeros(30, dtype=int)
    for node in nodes:
        holders[node.index["item"].ids.unique().numpy()] += 1
    moved = found.params.tables["item"].ne(0).any(1).numpy()
    assert moved.any()
    assert not moved[holders < 3].any()
    assert list(tmp_path.glob("n*/*/held/*.safetensors"))


@pytest.mark.slow
def test_what_waits_is_sent_later(tmp_path: Path) -> None:
    """Held back in a round with few clients, a row arrives in a later one with enough of them."""
    data = examples(clients=4, rows=3, each=12)
    config = PRIVATE | {"min-contributors": 2, "clients-per-round": 3, "rounds": 12}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    found = run(fleet, data)
    assert found.params.tables["item"].ne(0).any(1).sum() >= 2


@pytest.mark.parametrize(
    "use", ["union", *(pytest.param(use, marks=pytest.mark.slow) for use in ("heat", "update"))]
)
@pytest.mark.parametrize("phase", range(6))
def test_a_node_that_falls_silent_in_any_phase_is_a_drop_out(
    tmp_path: Path, use: str, phase: int
) -> None:
    data = examples()
    config = PRIVATE | {"rounds": 2, "min-answers": 1, "openers": 2, "clients-per-round": 12}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    uses: dict[str, str] = {}
    silent = {"left": 1}

    def meddle(node: int, answer: bytes) -> bytes | str:
        for facts in (one.facts for one in phases_in(post.sent[-1][1])):
            if "use" in facts:
                uses[facts["sum"]] = facts["use"]
            here = uses[facts["sum"]] == use and facts["phase"] == phase
            if node == 2 and here and silent["left"]:
                silent["left"] = 0
                return "it was killed"
        return answer

    post.meddle = meddle
    its = fleet.contract
    progress = begin(its.model(data), its.algorithm, its.plan)
    answered = []
    for _ in rounds(fleet, its.plan, progress):
        assert fleet.last is not None
        answered.append(fleet.last.answered)
    assert progress.round == 2
    assert progress.params.tables["item"].isfinite().all()
    assert max(answered) == 12


def test_an_opener_that_opens_nothing_is_named_and_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 1 keeps its pads whenever it is an opener; another draw has other openers."""
    monkeypatch.setattr(fleet_module, "POLL", 0.001)
    data, said, uses = examples(), list[str](), dict[str, str]()
    config = PRIVATE | {"rounds": 12, "min-contributors": 2, "clients-per-round": 12}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    fleet._log = said.append
    kept = []

    def meddle(node: int, answer: bytes) -> bytes | str:
        for facts in (one.facts for one in phases_in(post.sent[-1][1])):
            uses.setdefault(facts["sum"], str(facts.get("use")))
            if node == 1 and uses[facts["sum"]] == "update" and facts["phase"] == 4:
                kept.append(facts["sum"])
                return "it keeps its pads"
        return answer

    post.meddle = meddle
    progress = run(fleet, data)
    assert progress.round == 12
    assert kept
    named = [line for line in said if "nothing was opened (node 'n0': Opener 1 did not" in line]
    assert len(named) == len(kept)


@pytest.mark.slow
def test_randomized_answers_hide_rows_and_are_remembered(tmp_path: Path) -> None:
    data = examples(rows=60, each=20)
    config = PRIVATE | {"index-epsilon": 2.0, "index-epsilon-for-ever": 6.0, "rounds": 3}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    run(fleet, data)
    assert isinstance(fleet, PrivateFlowerFleet)
    spent = fleet.accounts.ledger.spent("server/value")
    assert 2.0 < spent <= 6.0  # between one round's and that of all there will ever be
    again = federation(task_of(data), config, shards_of(data, 4), tmp_path / "again")[0]
    assert isinstance(again, PrivateFlowerFleet)
    again.restore_({}, fleet.state(), 3)
    assert again.accounts.line() == fleet.accounts.line()
    kept = list(tmp_path.glob("n*/answers/*/*.npz"))
    assert kept
    assert all(file.stat().st_mode & 0o077 == 0 for file in kept)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"robust": "trim"}, "single updates"),
        ({"max-norm": 1.0}, "single updates"),
        ({"algorithm": "scaffold"}, "sum of the updates"),
        ({"row-cache": True}, "in the clear"),
        ({"coding": "int8"}, "in the clear"),
        ({"privacy": "heat", "index-epsilon": ""}, "deployments know"),
        ({"tables": "mapped"}, "tables in memory"),
    ],
)
def test_what_does_not_go_together_is_refused(option: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        make_contract(task_of(examples()), PRIVATE | option)


@pytest.mark.parametrize(("weighting", "told"), [(None, {1}), ("uniform", {1}), ("examples", None)])
def test_examples_are_told_only_where_the_mean_needs_them(
    tmp_path: Path, weighting: str | None, told: set[int] | None
) -> None:
    data = examples()
    config = PRIVATE | ({} if weighting is None else {"weighting": weighting})
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    fleet.gather()
    found = {one.examples for one in fleet.registry.clients}
    assert found == (told or set(data.sizes.tolist()))
