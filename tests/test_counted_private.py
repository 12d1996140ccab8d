"""A counted start of a private deployment: sums alone, bounded by the node's policy and its ε."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from attack import bytes_of, proven_epsilon
from counted import COUNTED, build, deployment, finish, liked_items, twin
from deployed import difference, shards_of, task_of
from loopback import phases_in, with_policy

from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.node import private_node
from fedrows.flower.node.noisy_node import NoisyNode
from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.node.policy_use import FILE
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.server.private_sums import PrivateSumFleet
from fedrows.flower.wire.codings import integers_to_bytes
from fedrows.flower.wire.message import pack, unpack
from fedrows.privacy.heat_of_mode import private_counts
from fedrows.privacy.ledger import AGAINST_SERVER, Entry, Event, Ledger
from fedrows.privacy.mechanisms.distributed import Distributed
from fedrows.privacy.protocol import ProtocolError
from fedrows.rows.index import Index
from fedrows.simulation import Simulation
from fedrows.simulator.counted_start import count_labels
from fedrows.watch import Observers

INDEX: dict[str, Any] = COUNTED | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 5.0,
}  # fmt: skip
FULL: dict[str, Any] = COUNTED | {
    "privacy": "full", "index-epsilon": "", "clients-per-round": 12, "rounds": 1,
    "weighting": "uniform", "dp-clip": 0.3, "dp-heat-rows": 20,
}  # fmt: skip
LITTLE = {"dp-noise": 1e-5, "dp-heat-noise": 1e-6}
OWN = frozenset({"user"})


def private(run: Any) -> PrivateSumFleet:
    assert isinstance(run.fleet, PrivateSumFleet)
    return run.fleet


def begun(run: Any) -> Any:
    """The parameters that a server has before the first round."""
    run.start.set_(run.progress.params)
    return run.progress.whole().without(OWN)


@pytest.mark.parametrize("config", [COUNTED, INDEX], ids=["clear", "index"])
@pytest.mark.parametrize("more", [{}, {"mode": "async", "buffer": 6, "concurrency": 6}])
def test_it_begins_where_the_simulation_does(
    tmp_path: Path, config: dict[str, Any], more: dict[str, Any]
) -> None:
    data = liked_items()
    run, _ = deployment(tmp_path, data, config | more, nodes=4)
    plan = replace(run.plan, mode="sync", buffer=None, concurrency=None)
    simulation = Simulation(data, build(data, 3), run.algorithm, plan)
    wanted = simulation.progress.whole().without(OWN)
    assert difference(begun(run), wanted) < 1e-12
    assert float(wanted.tables["item"][:, 0].abs().max()) > 0.1


def test_a_private_run_is_the_clear_one_to_the_precision_of_its_words(tmp_path: Path) -> None:
    data = liked_items()
    run, _ = deployment(tmp_path, data, INDEX, nodes=4)
    finish(run)
    simulation = twin(run, data)
    for _ in simulation:
        pass
    found, wanted = (x.progress.whole().without(OWN) for x in (run, simulation))
    assert difference(found, wanted) < 1e-5
    names = [x.mechanism for x in private(run).accounts.ledger.entries if x.kind == "totals/value"]
    assert names[:2] == ["heat of item, clients", "heat of item, positives"]


# What a server may try


@pytest.mark.parametrize("config", [COUNTED, INDEX], ids=["clear", "index"])
def test_no_message_has_a_nodes_counters(tmp_path: Path, config: dict[str, Any]) -> None:
    """A server that looks for them in what comes from a node finds them in a clear run alone."""
    data = liked_items()
    run, post = deployment(tmp_path, data, config | {"rounds": 1}, nodes=4)
    answers: dict[int, bytes] = dict.fromkeys(range(1, 5), b"")

    def listening(node: int, answer: bytes) -> bytes:
        answers[node] += answer
        return answer

    post.meddle = listening
    finish(run)
    found = 0
    for node, (_, shard) in enumerate(shards_of(data, 4).items(), start=1):
        counts = count_labels(shard)
        held = counts.examples > 0
        whole = torch.zeros(20, dtype=torch.float64).index_copy(0, counts.ids, counts.positives)
        for numbers in (counts.positives[held], whole):
            found += integers_to_bytes(numbers.to(torch.int64).tolist()) in answers[node]
    assert found == (4 if config is COUNTED else 0)
    if config is INDEX:
        assert all(kind not in ("labels", "count-labels") for kind in _kinds(post.sent))


def _kinds(sent: list[tuple[int, bytes]]) -> set[str]:
    return {unpack(message).kind for _, message in sent}


@pytest.mark.parametrize("counts", [1, 2])
def test_two_counts_show_no_node_if_its_policy_allows_one(tmp_path: Path, counts: int) -> None:
    """The difference of two counts, with a node and without it, is what its clients like."""
    data, shards = liked_items(), shards_of(liked_items(), 4)
    policy = tmp_path / "own.toml"
    policy.write_text(replace(NodePolicy.open(), heat_counts=counts).text(), "utf-8")
    totals = []
    for without in (None, 4):
        run, post = deployment(tmp_path, data, INDEX, nodes=4)
        for place, (name, shard) in enumerate(shards.items(), start=1):
            task = task_of(shard, build)
            post.here[place] = with_policy(task, INDEX, shard, tmp_path / name, name, policy)
        if without is not None:
            post.here.pop(without)
        fleet = private(run)
        FlowerFleet.gather(fleet)
        nodes = sorted(fleet.registry.nodes)
        if counts == 1 and without is not None:
            with pytest.raises(ProtocolError):
                fleet._count(nodes)
            assert fleet.labels is None
            return
        fleet._count(nodes)
        assert fleet.labels is not None
        totals.append(torch.zeros(20, dtype=torch.float64))
        totals[-1][fleet.labels.ids] = fleet.labels.positives
    own = count_labels(shards["n3"])
    assert torch.equal((totals[0] - totals[1])[own.ids], own.positives)


def hostile(answer_of: Callable[[bytes], bytes], change: Callable[[Any], bool]) -> Any:
    """A node to which the server sends a changed message, once."""
    done: list[bool] = []

    def answer(request: bytes) -> bytes:
        outer = unpack(request)
        if not done and outer.kind == "sum" and change(outer):
            done.append(True)
            return answer_of(pack(outer))
        return answer_of(request)

    return answer


@pytest.mark.parametrize(
    ("start", "labels"),
    [("zero", "item"), ("counted", "user"), ("counted", "nothing"), ("counted", ["item"])],
)
def test_a_node_counts_no_other_labels(
    tmp_path: Path, start: str, labels: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = liked_items()
    run, post = deployment(tmp_path, data, INDEX | {"start": start}, nodes=4)

    def change(message: Any) -> bool:
        if message.facts.get("use") == "heat":
            message.facts["labels"] = labels
        return message.facts.get("use") == "heat"

    post.here[2] = hostile(post.here[2], change)
    run.fleet.gather()
    assert "asks for counts of labels that the run does not start from" in caplog.text
    assert run.fleet.heat()["item"].total == 9  # of three nodes


def test_a_node_that_is_told_another_prior_is_not_added_up(tmp_path: Path) -> None:
    """Its clients' own biases would differ, and so what the server can tell from the sum."""
    data = liked_items()
    config = INDEX | {"clients-per-round": 12, "min-answers": 1, "rounds": 1}
    run, post = deployment(tmp_path, data, config, nodes=4)
    changed: list[object] = []

    def meddled(request: bytes, answer_of: Callable[[bytes], bytes] = post.here[2]) -> bytes:
        outer = unpack(request)
        if outer.kind == "sum" and "prior" in outer.facts:
            changed.append(outer.facts["prior"])
            outer.facts["prior"] = 0.99
        return answer_of(pack(outer))

    post.here[2] = meddled
    finish(run)
    assert changed
    assert run.fleet.answers["n1"] or run.fleet.last.answered < 12  # type: ignore[union-attr]


def test_a_lying_node_makes_no_start_beyond_that_of_all_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody sees its part, so it can set an item's counts, but not beyond all clients."""
    words_of = private_node.counted_words

    def lie(*args: Any) -> np.ndarray:
        words = words_of(*args)
        if words[-20:].sum() == honest:
            words[30:40] += np.uint64(2**40)
            words[-10:] -= np.uint64(2**50)
        return words

    data = liked_items()
    honest = int(count_labels(shards_of(data, 4)["n0"]).positives.sum())
    monkeypatch.setattr(private_node, "counted_words", lie)
    run, _ = deployment(tmp_path, data, INDEX, nodes=4)
    start = begun(run)
    counts = private(run).labels
    assert counts is not None
    assert float(counts.examples.max()) == 12 == data.clients
    p = counts.prior
    most = max(math.log((12 + 5 * p) / (5 - 5 * p)), math.log((12 + 5 - 5 * p) / (5 * p)))
    most += abs(math.log(p / (1 - p)))
    assert float(start.tables["item"][:, 0].abs().max()) <= most


# Noise inside the sum


def test_with_next_to_no_noise_it_begins_where_the_simulation_does(tmp_path: Path) -> None:
    data = liked_items()
    run, _ = deployment(tmp_path, data, FULL | LITTLE, nodes=4)
    simulation = Simulation(data, build(data, 3), run.algorithm, run.plan)
    assert difference(begun(run), simulation.progress.whole().without(OWN)) < 1e-3


def test_noisy_counters_are_paid_for_by_server_and_nodes(tmp_path: Path) -> None:
    data, noise = liked_items(), 2.0
    run, post = deployment(tmp_path, data, FULL | {"dp-heat-noise": noise}, nodes=4)
    clear = Simulation(data, build(data, 3), run.algorithm, run.plan)
    assert difference(begun(run), clear.progress.whole().without(OWN)) > 1e-3
    ledger = private(run).accounts.ledger
    names = ["heat of item", "heat of item, clients", "heat of item, positives"]
    for kind in ("model/user-replaced", AGAINST_SERVER):
        entries = [entry for entry in ledger.entries if entry.kind == kind]
        assert [entry.mechanism for entry in entries] == names
        assert {entry.event.noise[0] for entry in entries} == {noise * math.sqrt(0.6)}
        assert ledger.spent(kind) < math.inf
    for name, shard in shards_of(data, 4).items():
        spent = json.loads((tmp_path / name / FILE).read_bytes())["spent"]
        assert len(spent) == shard.clients
        assert list(spent.values()) == pytest.approx([3 / (2 * noise**2 * 0.6)] * shard.clients)
    kinds = {part for _, m in post.sent for one in phases_in(m) for part in one.facts}
    assert "prior" not in kinds  # nobody has been asked to train


def test_a_lying_node_makes_no_noisy_count_beyond_all_clients(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heat that it could set would stop a row; a counter that it could set would be the prior."""
    honest, liars = NoisyNode._noisy_heat, set[str]()

    def lie(node: NoisyNode, facts: dict[str, Any]) -> np.ndarray:
        words = honest(node, facts)
        if node.name == "n0":
            liars.add(node.name)
            words[[3, 23]] += np.uint64(2**60)  # heat of item 3, and the clients that have it
            words[[43]] -= np.uint64(2**60)  # those that like it
        return words

    data = liked_items()
    plain, _ = deployment(tmp_path / "plain", data, FULL | LITTLE, nodes=4)
    begun(plain)
    monkeypatch.setattr(NoisyNode, "_noisy_heat", lie)
    run, _ = deployment(tmp_path / "lied", data, FULL | LITTLE, nodes=4)
    begun(run)
    assert liars
    heat, counts, wanted = private(run)._heat, private(run).labels, private(plain).labels
    assert heat is not None
    assert counts is not None
    assert wanted is not None
    assert float(heat["item"].counts.max()) <= 12 == data.clients
    moved = torch.stack([counts.examples - wanted.examples, counts.positives - wanted.positives])
    assert float(moved.abs().max()) < 12.1
    assert abs(counts.prior - wanted.prior) < 12.1 / float(wanted.examples.sum() - 12)


def test_a_game_on_both_counters_proves_no_more_than_the_ledger_says() -> None:
    """A user alone has and likes item 9, or has and likes item 3; the federations lie side by side.

    Whoever sees all noisy counts guesses which. Without the noise it would always win.
    """
    trials, delta, most = 4000, 1e-3, 1
    how = Distributed(counted=1.0)

    def counted(last: int, noise: float, seed: int) -> np.ndarray:
        ids = torch.tensor([12 * trial + row for trial in range(trials) for row in (0, 1, last)])
        index = Index(ids, torch.arange(len(ids) + 1))
        scaled = noise * math.sqrt(index.clients / 3) / math.sqrt(trials)
        counts, _ = private_counts(index, 12 * trials, how, scaled, most, bytes_of(seed))
        return counts.view(trials, 12).numpy()

    def game(noise: float) -> float:
        guess = []
        for last in (9, 3):
            both = counted(last, noise, 5 + last) + counted(last, noise, 50 + last)
            guess.append(both[:, 9] - both[:, 3])
        cuts = [-4.0, -1.0, 0.0, 1.0, 4.0]
        return max(proven_epsilon(guess[0] > cut, guess[1] > cut, delta) for cut in cuts)

    ledger = Ledger(delta)
    event = Event((1.5,), "all", discrete=True)
    ledger.add_(*(Entry(AGAINST_SERVER, name, 0, event=event) for name in ("clients", "positives")))
    claimed = ledger.spent(AGAINST_SERVER)
    assert game(1.5) <= claimed
    assert game(0.2) > claimed


def test_a_node_declines_counters_that_its_clients_cannot_pay_for(tmp_path: Path) -> None:
    """Heat alone is within the policy's user-epsilon; heat and both counters are not."""
    data, heard = liked_items(), {}
    for start in ("zero", "counted"):
        config = FULL | {"start": start, "dp-heat-noise": 2.0, "dp-noise": 8.0}
        run, post = deployment(tmp_path / start, data, config, nodes=4)
        policy = tmp_path / f"{start}.toml"
        policy.write_text(replace(NodePolicy.open(), user_epsilon=4.0).text(), "utf-8")
        shard = shards_of(data, 4)["n0"]
        node = task_of(shard, build), config, shard, tmp_path / start / "n0", "n0", policy
        post.here[1] = with_policy(*node)
        fleet = private(run)
        FlowerFleet.gather(fleet)
        try:
            fleet._count(sorted(fleet.registry.nodes))
            heard[start] = "counted"
        except ProtocolError:
            heard[start] = (tmp_path / start / "n0" / "declined.txt").read_text()
    assert heard["zero"] == "counted"
    assert "user-epsilon is 4" in heard["counted"]


# Over several processes


def test_labels_that_were_counted_are_not_counted_again(tmp_path: Path) -> None:
    """A run that is killed between the count and its first round goes on from the file."""
    data, out = liked_items(), tmp_path / "run"
    first, _ = deployment(tmp_path, data, INDEX, nodes=4)
    with Journal.opened(out, first):
        begun(first)
    again, post = deployment(tmp_path, data, INDEX, nodes=4)
    with Journal.opened(out, again) as journal:
        carry_out(again, journal, Observers())
    uses = [one.facts.get("use") for _, m in post.sent for one in phases_in(m)]
    assert "update" in uses
    assert "heat" not in uses
    simulation = twin(again, data)
    for _ in simulation:
        pass
    found, wanted = (x.progress.whole().without(OWN) for x in (again, simulation))
    assert difference(found, wanted) < 1e-5
