"""Noise inside the sums of a deployment: what nodes send, and what the server is left with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployed import CONFIG, difference, examples, run, shards_of, task_of
from loopback import federation, phases_in
from safetensors.torch import load_file

from fedrows.errors import PlanError
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.node import noisy_node
from fedrows.flower.node.policy import NodePolicy, PolicyError
from fedrows.flower.node.policy_use import FILE, PolicyUse
from fedrows.flower.server.noisy_fleet import NoisyFlowerFleet
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import pack, unpack
from fedrows.privacy import union
from fedrows.privacy.accounts import BudgetSpentError
from fedrows.privacy.discrete_gaussian import concentrated_epsilon
from fedrows.privacy.ledger import AGAINST_SERVER
from fedrows.privacy.ledger_file import LedgerFile
from fedrows.privacy.noisy_coding import NoisyCoding
from fedrows.privacy.options import Privacy
from fedrows.simulation import Simulation
from fedrows.watch import Observers

FULL: dict[str, Any] = CONFIG | {
    "privacy": "full", "index-epsilon": "", "clients-per-round": 12, "rounds": 1,
    "weighting": "uniform", "dp-clip": 0.3,
}  # fmt: skip
LITTLE = {"dp-noise": 1e-5, "dp-heat-noise": 1e-6, "dp-heat-rows": 1000}


def test_with_next_to_no_noise_it_is_the_simulated_run(tmp_path: Path) -> None:
    """Everybody is in every cohort, so the two draw the same one."""
    data = examples()
    fleet, _ = federation(task_of(data), FULL | LITTLE, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, NoisyFlowerFleet)
    found = run(fleet, data)
    its = fleet.contract
    twin = Simulation(data, its.model(data), its.algorithm, its.plan, its.privacy)
    for _ in twin:
        pass
    assert float(found.params.tables["item"].abs().max()) > 0.01
    assert difference(found.params, twin.progress.whole()) < 1e-3


def test_the_server_has_noisy_sums_alone(tmp_path: Path, monkeypatch: Any) -> None:
    """No union is made, every row moves, and what each node sent is spent for."""
    monkeypatch.setattr(union, "server", lambda *_: pytest.fail("a union would be exact"))
    data = examples()
    config = FULL | {"dp-noise": 2.0, "index-epsilon": 1.0, "index-epsilon-for-ever": 4.0}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert isinstance(fleet, NoisyFlowerFleet)
    answers: list[bytes] = []
    post.meddle = lambda node, answer: answers.append(answer) or answer  # type: ignore[func-returns-value]
    found = run(fleet, data)
    for message in (one for answer in answers for one in phases_in(answer) or [unpack(answer)]):
        assert set(message.parts) <= {"examples", "signature", "reply", "asked"}
    assert float((found.params.tables["item"] != 0).double().mean()) > 0.9
    ledger = fleet.accounts.ledger
    assert all(ledger.spent(kind) < math.inf for kind in ledger.kinds)
    assert "totals/value" not in ledger.kinds
    events = [e for e in ledger.entries if e.kind == AGAINST_SERVER and e.round]
    assert [e.event.noise[0] for e in events] == pytest.approx([2.0 * math.sqrt(0.6)])
    assert ledger.spent("model/user-replaced") == ledger.spent(AGAINST_SERVER)
    part = fleet.releasable()
    assert part is not None
    assert part.heat["heat/item/id"].tolist() == list(range(30))


def test_each_node_adds_its_share(tmp_path: Path, monkeypatch: Any) -> None:
    """Four nodes of three clients each: four shares, whose variances add up to the noise."""
    shares: list[tuple[float, int]] = []
    noises = NoisyCoding.noises

    def watched(self: NoisyCoding, parties: int, *args: Any) -> np.ndarray:
        shares.append((self.deviation * math.sqrt(parties), self.parties))
        return noises(self, parties, *args)

    monkeypatch.setattr(NoisyCoding, "noises", watched)
    data = examples()
    config = FULL | {"dp-noise": 2.0}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    run(fleet, data)
    assert [parties for _, parties in shares] == [4] * 4
    coding = fleet.contract.privacy.mechanism
    assert coding is not None
    whole = math.sqrt(sum(deviation**2 for deviation, _ in shares))
    layout = NoisyCoding(0.3, 2.0, 12, 31, 4)
    assert whole == pytest.approx(2.0 * 2 * layout.longest, rel=1e-6)


def test_a_sum_without_enough_noise_is_not_opened(tmp_path: Path) -> None:
    """ε counts on 3 of 4 nodes and one may collude, so none may be missing."""
    data = examples()
    config = FULL | {"dp-noise": 2.0, "min-answers": 1}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    assert fleet.contract.privacy.least(4) == 4
    silent, tried = {"left": 1}, []

    def meddle(node: int, answer: bytes) -> bytes | str:
        facts = unpack(post.sent[-1][1]).facts
        if facts.get("use") == "update":
            tried.append(node)
        if node == 2 and facts.get("use") == "update" and silent["left"]:
            silent["left"] = 0
            return "it was killed"
        return answer

    post.meddle = meddle
    found = run(fleet, data)
    assert found.round == 1
    assert fleet.last is not None
    assert fleet.last.tries == 2  # the first sum was not opened, and the round was done again
    assert tried.count(2) == 2
    ledger = fleet.accounts.ledger  # type: ignore[attr-defined]
    paid = [e for e in ledger.entries if e.kind == AGAINST_SERVER and e.round]
    assert len(paid) == 2  # both tries count


def half(numbers: bytes) -> bytes:
    return (np.frombuffer(numbers, dtype="<f8") / 2).tobytes()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m.facts.update(places=[m.facts["places"][0]] * 2), "asks a client twice"),
        (lambda m: m.parts.update(heat=b"\0" * 8), "no heat of them"),
        (lambda m: m.parts.update(heat=m.parts["heat"][:-8]), "no heat of them"),
        (lambda m: m.facts.update(total=-1.0), "no heat of them"),
        (lambda m: m.facts.update(total=1e9), "not of the model"),
        (lambda m: m.parts.update(heat=half(m.parts["heat"])), "not of the model"),
        (lambda m: m.parts.update(digests=m.parts["digests"][::-1]), "not of the model"),
    ],
)
def test_a_node_refuses_what_would_weaken_its_noise(
    tmp_path: Path, change: Any, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    data = examples()
    config = FULL | {"dp-noise": 2.0}
    fleet, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    seen: list[str] = []
    answer_of = post.here[2]

    def hostile(request: bytes) -> bytes:
        message = unpack(request)
        if message.facts.get("use") == "update" and not seen:
            change(message)
            reply = answer_of(pack(message))
            seen.append(str(unpack(reply).facts.get("why")))
            return reply
        return answer_of(request)

    post.here[2] = hostile
    run(fleet, data)
    assert seen == ["the node could not answer"]
    assert sentence in caplog.text


def test_a_deployed_run_has_a_part_that_may_leave_and_goes_on_from_its_ledger(
    tmp_path: Path,
) -> None:
    data, out = examples(), tmp_path / "run"
    config = FULL | {"dp-noise": 4.0, "peers": str(tmp_path / "peers.json")}

    def deployed() -> Deployment:
        _, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
        agreed = make_contract(task_of(data), config)
        return Deployment(agreed, post, config, lambda _: None)

    first = deployed()
    with Journal.opened(out, first) as journal:
        carry_out(first, journal, Observers())
    spent = json.loads((out / "release/privacy.json").read_text())
    ledger = LedgerFile(out / "ledger.jsonl").ledger(1e-6)
    assert spent["epsilon"] == {"model/user-replaced": ledger.spent("model/user-replaced")}
    model = load_file(out / "release/model.safetensors")
    assert torch.equal(model["table/item"], first.progress.params.tables["item"])
    assert load_file(out / "release/heat.safetensors")["heat/item/id"].tolist() == list(range(30))
    again = deployed()
    with Journal.opened(out, again):
        found = again.fleet.accounts.ledger  # type: ignore[attr-defined]
        assert found.spent(AGAINST_SERVER) == ledger.spent(AGAINST_SERVER) > 0


def test_deployed_runs_share_a_budget(tmp_path: Path) -> None:
    """A run for which nothing is left, or too little for its heat, ends before it is counted."""
    data, ledger = examples(), tmp_path / "ledger.jsonl"
    common = FULL | {"dp-noise": 4.0, "ledger": str(ledger), "peers": str(tmp_path / "peers.json")}

    def sent_by(name: str, most: float, heat_noise: float) -> int:
        config = common | {"max-epsilon": most, "dp-heat-noise": heat_noise}
        _, post = federation(task_of(data), config, shards_of(data, 4), tmp_path)
        deployment = Deployment(make_contract(task_of(data), config), post, config, lambda _: None)
        with Journal.opened(tmp_path / name, deployment) as journal:
            carry_out(deployment, journal, Observers())
        return len(post.sent)

    assert sent_by("first", 3.0, 4.0) > 0
    spent = ledger.read_bytes()
    assert sent_by("second", 2.3, 4.0) == 0
    with pytest.raises(
        BudgetSpentError, match=r"max-epsilon of server/user-replaced is 4, and 2\.19"
    ):
        sent_by("third", 4.0, 1.0)  # a round would fit, but not the heat
    assert ledger.read_bytes() == spent


def test_a_policy_asks_for_noise() -> None:
    """A run under full opens every row, so little noise would show rows of single holders."""
    of = make_contract(task_of(examples()), FULL | {"dp-noise": 2.0, "index-epsilon": 1.0,
                                                   "index-epsilon-for-ever": 4.0})  # fmt: skip
    NodePolicy().check(of.privacy, "test", None)
    for dial, value in (("dp-noise", 1e-6), ("dp-heat-noise", 1e-6), ("dp-counted", 0.01)):
        weak = make_contract(task_of(examples()), FULL | {"dp-noise": 2.0, dial: value,
                             "index-epsilon": 1.0, "index-epsilon-for-ever": 4.0})  # fmt: skip
        with pytest.raises(PolicyError, match="at least"):
            NodePolicy().check(weak.privacy, "test", None)


def test_a_node_keeps_its_own_count_of_what_is_spent(tmp_path: Path) -> None:
    """Whatever ledger the server keeps: ρ of a round and of the heat, for each client."""
    data = examples()
    config = FULL | {"dp-noise": 2.0, "dp-heat-noise": 4.0}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    run(fleet, data)
    for node in range(4):
        spent = json.loads(next(tmp_path.glob(f"n{node}/{FILE}")).read_text())["spent"]
        assert len(spent) == 3
        wanted = 1 / (2 * 4 * 0.6) + 1 / (2 * 16 * 0.6)
        assert list(spent.values()) == pytest.approx([wanted] * 3)
    ledger = fleet.accounts.ledger  # type: ignore[attr-defined]
    assert concentrated_epsilon(wanted, 1e-6) >= ledger.spent(AGAINST_SERVER)


def test_a_node_declines_what_its_clients_cannot_pay(tmp_path: Path) -> None:
    policy = NodePolicy(user_epsilon=8.0)
    rho, rounds = 1 / (2 * 16), 1
    PolicyUse(tmp_path, policy).spend_(["a", "b"], rho)
    while concentrated_epsilon((rounds + 1) * rho, 1e-6) <= 8:
        PolicyUse(tmp_path, policy).spend_(["b"], rho)
        rounds += 1
    assert rounds > 10
    with pytest.raises(PolicyError, match="user-epsilon is 8, and the client b would spend more"):
        PolicyUse(tmp_path, policy).spend_(["b"], rho)
    PolicyUse(tmp_path, policy).spend_(["a"], rho)  # who has enough left
    with pytest.raises(PolicyError):
        PolicyUse(tmp_path, policy).spend_(["a", "b"], rho)  # then nobody pays
    spent = json.loads((tmp_path / FILE).read_text())["spent"]
    assert spent["a"] == pytest.approx(2 * rho)


def test_over_a_network_the_noise_is_inside_the_sum() -> None:
    privacy = make_contract(task_of(examples()), FULL | {"dp-noise": 3.0}).privacy
    assert privacy.mechanism is not None
    assert (privacy.mechanism.name, privacy.mechanism.client_noise) == ("distributed", 3.0)
    assert privacy.limited == AGAINST_SERVER
    for strange in ("dp-select-noise", "mechanism", "dp-nois"):
        with pytest.raises(PlanError, match="is no option"):
            make_contract(task_of(examples()), FULL | {strange: 1.0})
    with pytest.raises(PlanError, match="dp-noise does nothing"):
        Privacy.of("index", dp_noise=2.0)


def test_the_heat_of_a_node_is_noisy_and_capped(tmp_path: Path, monkeypatch: Any) -> None:
    """Without noise: each client counts for one row; with it, the words say little."""
    data, seen = examples(), []
    inputs = noisy_node.NoisyNode._noisy_heat
    monkeypatch.setattr(
        noisy_node.NoisyNode,
        "_noisy_heat",
        lambda self, parties: seen.append(inputs(self, parties)) or seen[-1],
    )
    config = FULL | LITTLE | {"dp-heat-rows": 1}
    fleet, _ = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    run(fleet, data)
    total = np.sum(seen, axis=0).astype(np.uint64).view(np.int64)
    coding = noisy_node.heat_coding(1e-6, 4, 1)
    assert total.sum() / coding.steps == pytest.approx(12, abs=1e-3)  # one row of each client
    assert torch.equal(fleet._heat["item"].ids, torch.arange(30))  # type: ignore[attr-defined]
