"""A counted start over a network: the numbers of the simulation, and nodes that count wrongly."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("safetensors")

from counted import COUNTED, RUN, build, deployment, finish, liked_items, twin
from deployed import difference, shards_of, task_of
from loopback import with_policy

from fedrows import catalogue
from fedrows.device.program import build as device_program
from fedrows.errors import FedrowsError, PlanError
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.node.policy import NodePolicy, read_policy
from fedrows.flower.node.state import DECLINED
from fedrows.flower.wire.codings import ids_to_bytes, integers_to_bytes
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.label_counters import labels_message, prior_in, read_labels
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.models import mf
from fedrows.plan import Plan
from fedrows.runs.export import ExportError
from fedrows.simulator.counted_start import count_labels
from fedrows.watch import Observers


def shared(run: Any) -> Any:
    """The parameters that a server has."""
    return run.progress.whole().without(frozenset({"user"}))


@pytest.mark.parametrize(
    "more",
    [{}, {"start-near": 2, "start-pseudo": 8.0}, {"dtype": "float32", "algorithm": "fedavg"}],
)
@pytest.mark.parametrize("nodes", [1, 3])
def test_a_deployed_run_is_the_simulated_one(
    tmp_path: Path, nodes: int, more: dict[str, Any]
) -> None:
    data = liked_items()
    run, _ = deployment(tmp_path, data, COUNTED | more, nodes)
    finish(run)
    simulation = twin(run, data)
    begun = simulation.progress.params.copy()
    for _ in simulation:
        pass
    assert difference(shared(run), shared(simulation)) < (1e-5 if more.get("dtype") else 1e-12)
    assert difference(shared(simulation), begun.without(frozenset({"user"}))) > 0.01
    assert float(begun.tables["item"][:, 0].abs().max()) > 0.1


HELD, HOLDERS = torch.tensor([1, 4, 6]), torch.tensor([3, 1, 2])


def counters(**changed: bytes) -> bytes:
    """A node's answer that is right, but for the parts that are changed."""
    parts = {
        "ids": ids_to_bytes(torch.tensor([1, 6])),
        "examples": integers_to_bytes([3, 1]),
        "positives": integers_to_bytes([0, 1]),
    }
    return pack(Message("labels", {}, {**parts, **changed}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (counters(ids=ids_to_bytes(torch.tensor([1, 5]))), "none of its clients has enrolled"),
        (counters(ids=ids_to_bytes(torch.tensor([1, 7]))), "beyond the table's 7 rows"),
        (counters(ids=ids_to_bytes(torch.arange(4))), "more ids than the 3"),
        (counters(ids=b"\x01\x84"), "cut off inside an id"),
        (counters(examples=integers_to_bytes([4, 1])), "for more than have enrolled"),
        (counters(examples=integers_to_bytes([0, 1])), "for no client"),
        (counters(examples=integers_to_bytes([-3, 1])), "for no client"),
        (counters(examples=integers_to_bytes([2**63 - 1, 1])), "for more than have enrolled"),
        (counters(examples=integers_to_bytes([3])), "wrong length"),
        (counters(positives=integers_to_bytes([-1, 0])), "like an item below 0"),
        (counters(positives=integers_to_bytes([0, 2])), "above those that have it"),
        (counters(positives=b"\0" * 15), "wrong length"),
        (counters(more=b""), "answers something else"),
        (pack(Message("labels", {}, {"ids": b""})), "answers something else"),
        (pack(Message("trained", {}, {})), "answers something else"),
        (counters() + b"\0" * 5000, "at most 4192 can be right"),
        (counters()[:-1], "message"),
        (b"", "message"),
    ],
)
def test_counters_that_cannot_be_are_refused_in_a_sentence(answer: bytes, words: str) -> None:
    right = read_labels(counters(), "item", HELD, HOLDERS)
    assert (right.ids.tolist(), right.positives.tolist()) == ([1, 6], [0, 1])
    with pytest.raises(WireError, match=words) as caught:
        read_labels(answer, "item", HELD, HOLDERS)
    assert str(caught.value).count(". ") == 0
    with pytest.raises(WireError):
        read_labels(counters(), "item", HELD[:0], HOLDERS[:0])  # of a node without rows


@pytest.mark.parametrize("prior", [None, 0.0, 1.0, -0.5, float("nan"), float("inf"), "0.5", 1])
def test_a_node_takes_no_prior_that_is_no_share(prior: Any) -> None:
    plan = Plan(start="counted")
    with pytest.raises(WireError, match="no share of positives between 0 and 1"):
        prior_in({"prior": prior}, plan)
    assert prior_in({"prior": 0.25}, plan) == 0.25
    assert prior_in({"prior": prior}, replace(plan, start="zero")) is None


def counting(change: Callable[[Message], Message | None]) -> Callable[[int, bytes], Any]:
    """Changes what the first node says of its labels; None: it says nothing."""

    def meddle(node: int, answer: bytes) -> bytes | str:
        message = unpack(answer)
        if node != 1 or message.kind != "labels":
            return answer
        changed = change(message)
        return "it was killed" if changed is None else pack(changed)

    return meddle


def too_many(message: Message) -> Message:
    """All clients of the federation like every item that this node has."""
    count = len(message.parts["examples"]) // 8
    every = integers_to_bytes([12] * count)
    return Message("labels", {}, {**message.parts, "examples": every, "positives": every})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (too_many, "are not counted: It counts an item for no client, or for more"),
        (lambda m: Message("labels", {}, {}), "are not counted: It answers something else"),
        (lambda m: Message("declined", {}, {}), "are not counted: Its policy does not allow it"),
        (lambda m: None, "are not counted yet: it was killed"),
    ],
)
def test_a_refused_answer_costs_its_node_that_answer_alone(
    tmp_path: Path, change: Any, words: str
) -> None:
    """The start is that of the other nodes' counts, and the node trains like them."""
    data, said = liked_items(), list[str]()
    config = COUNTED | {"clients-per-round": 12, "rounds": 1}
    run, post = deployment(tmp_path, data, config, log=said.append)
    post.meddle = counting(change)
    finish(run)
    others = [shard for name, shard in shards_of(data, 3).items() if name != "n0"]
    parts = [count_labels(shard) for shard in others]
    prior = sum(float(x.positives.sum()) for x in parts)
    prior /= sum(float(x.examples.sum()) for x in parts)
    assert run.start is not None
    assert run.start.prior == pytest.approx(prior, abs=1e-12)
    assert [text for text in said if words in text and "'n0'" in text]
    assert run.fleet.last is not None
    assert run.fleet.last.answered == 12
    assert run.fleet.rejected["labels"] == ("yet" not in words)


def test_a_client_that_claims_all_weight_makes_no_others_labels_miscounted(tmp_path: Path) -> None:
    """Beside it the rows of others weigh so little that heat leaves them out."""
    data = liked_items()
    config = COUNTED | {"max-examples": 10**12, "weight-quantile": "", "rounds": 1}
    run, post = deployment(tmp_path, data, config)

    def claim(node: int, answer: bytes) -> bytes:
        message = unpack(answer)
        if node == 1 and message.kind == "enrolled":
            sums = 10**11 * torch.arange(1, len(message.facts["clients"]) + 1)
            message.parts["examples"] = ids_to_bytes(sums)
        return pack(message)

    post.meddle = claim
    assert run.start is not None
    run.start.set_(run.progress.params)
    assert len(run.fleet.heat()["item"].ids) < len(count_labels(data).ids)
    assert run.start.prior == pytest.approx(count_labels(data).prior, abs=1e-12)


def test_if_no_node_counts_the_run_ends_in_a_sentence(tmp_path: Path) -> None:
    run, post = deployment(tmp_path, liked_items(), COUNTED, nodes=1)
    post.meddle = counting(lambda m: Message("labels", {}, {}))
    with pytest.raises(FedrowsError, match=r"no node has sent counts of its labels that can be us"):
        finish(run)


# A server that compares two counts


def asked_for_labels(config: dict[str, Any], data: Any, version: int) -> bytes:
    contract = make_contract(task_of(data, build), config)
    fingerprint = contract.fingerprint(contract.model(data), data)
    facts = {"run": RUN, "version": version, "contract": digest(fingerprint)}
    return pack(Message("count-labels", facts, {}))


@pytest.mark.parametrize("counts", [1, 2])
def test_a_node_counts_its_labels_as_often_as_its_policy_lets_heat_be_counted(
    tmp_path: Path, counts: int
) -> None:
    """A client's label is the difference of two counts: the second one is declined."""
    data = liked_items()
    run, post = deployment(tmp_path, data, COUNTED)
    policy = tmp_path / "own.toml"
    policy.write_text(replace(NodePolicy.open(), heat_counts=counts).text(), "utf-8")

    def node(shard: Any) -> Callable[[bytes], bytes]:
        task = task_of(shard, build)
        return with_policy(task, COUNTED, shard, tmp_path / "n0", "n0", policy)

    first = shards_of(data, 3)["n0"]
    post.here[1] = node(first)
    finish(run)
    flipped = first.train.label.clone()
    flipped[first.train.owner == 0] = 1 - flipped[first.train.owner == 0]
    second = replace(first, train=replace(first.train, label=flipped))
    version = run.registry.nodes["n0"].version
    answer = unpack(node(second)(asked_for_labels(COUNTED, data, version)))
    if counts == 1:
        assert answer == Message("declined", {}, {})
        assert "heat-counts is 1" in (tmp_path / "n0" / DECLINED).read_text()
    else:  # the attack works where the policy lets it: the counts differ by that client's labels
        assert answer.parts != labels_message(count_labels(first)).parts


def test_a_policy_may_forbid_counts_of_labels_alone(tmp_path: Path) -> None:
    """Such a node declines before it enrols; a run that starts at zero it joins as before."""
    data, policy = liked_items(), tmp_path / "own.toml"
    policy.write_text(replace(NodePolicy.open(), label_counts=False).text(), "utf-8")
    assert not read_policy(policy).label_counts
    for start, nodes in (("counted", {"n1", "n2"}), ("zero", {"n0", "n1", "n2"})):
        config = COUNTED | {"start": start, "rounds": 1}
        run, post = deployment(tmp_path / start, data, config)
        home, shard = tmp_path / start / "n0", shards_of(data, 3)["n0"]
        post.here[1] = with_policy(task_of(shard, build), config, shard, home, "n0", policy)
        finish(run)
        assert set(run.registry.nodes) == nodes
    said = (tmp_path / "counted" / "n0" / DECLINED).read_text()
    assert "start is counted, but the policy's label-counts is false" in said


def test_labels_are_not_counted_for_a_run_that_starts_at_zero(tmp_path: Path) -> None:
    data, config = liked_items(), COUNTED | {"start": "zero"}
    run, post = deployment(tmp_path, data, config)
    finish(run)
    assert not [m for _, m in post.sent if unpack(m).kind == "count-labels"]
    version = run.registry.nodes["n0"].version
    answer = unpack(post.here[1](asked_for_labels(config, data, version)))
    assert (answer.kind, answer.parts) == ("silent", {})


# Over several processes


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_run_that_goes_on_counts_once(tmp_path: Path, rounds: int) -> None:
    """Killed before its first round or after it: where it ends is where the simulation does."""
    data, out = liked_items(), tmp_path / "run"
    counts, left = 0, rounds
    for stop in (True, False):
        run, post = deployment(tmp_path, data, COUNTED)
        with Journal.opened(out, run) as journal:
            if stop and not rounds:
                continue

            def stopping(stop: bool = stop) -> bool:
                nonlocal left
                left -= 1
                return stop and left <= 0

            carry_out(run, journal, Observers(), stopping)
        counts += sum(unpack(m).kind == "count-labels" for _, m in post.sent)
    simulation = twin(run, data)
    for _ in simulation:
        pass
    assert counts == 3  # once for each node
    assert difference(shared(run), shared(simulation)) < 1e-12


# What stays refused


def test_what_cannot_start_from_counts_is_refused() -> None:
    data = liked_items()
    kept = replace(data, target=("user", None))
    agreed = make_contract(task_of(data, build), COUNTED)
    with pytest.raises(PlanError, match=r"about rows of user, which stay on their clients"):
        agreed.model(kept)

    def without(data: Any, seed: int) -> Any:
        model = build(data, seed)
        model.biases = None
        return model

    agreed = make_contract(task_of(data, without), COUNTED)
    with pytest.raises(PlanError, match=r"the model names no biases"):
        agreed.model(data)


def test_devices_count_no_labels() -> None:
    """A gateway makes their program when it enrols, and declines the run."""
    data = liked_items()
    plan = Plan(start="counted", clients_per_round=6)
    with pytest.raises(ExportError, match=r"start is 'counted', but a device counts no labels: e"):
        device_program(mf.build(data), data, plan, catalogue.algorithm("fedavg")())


def test_a_node_with_another_target_does_not_fit() -> None:
    data = liked_items()
    agreed = make_contract(task_of(data, build), COUNTED)
    model = agreed.model(data)
    prints = [agreed.fingerprint(model, replace(data, target=("item", x))) for x in (None, 0)]
    assert prints[0] != prints[1]
