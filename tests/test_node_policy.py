"""A node's policy: a file on the node, compared with a run before anything is answered."""

from __future__ import annotations

import threading
import time
import tomllib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, run, shards_of, task_of
from loopback import federation, with_policy

from fedrows.data.federation import FederatedData
from fedrows.flower.node import joining, policy_use
from fedrows.flower.node.policy import NodePolicy, PolicyError, digest_of, read_policy
from fedrows.flower.node.policy_use import FILE, PolicyUse
from fedrows.flower.node.state import DECLINED, NodeState
from fedrows.flower.wire.contract import digest, make_contract
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.names import SumNames
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.privacy.options import Privacy
from fedrows.server import begin, rounds

INDEX: dict[str, Any] = CONFIG | {"privacy": "index", "timeout": 5.0, "threshold": 0.7}
RUN = "0" * 16
ALLOWED = Privacy.of("index", threshold=0.7)


def write(path: Path, policy: NodePolicy) -> Path:
    path.write_text(policy.text(), "utf-8")
    return path


# -- the file --


@pytest.mark.parametrize(
    "policy",
    [
        NodePolicy(),
        NodePolicy.open(),
        NodePolicy(privacy="full", index_epsilon=None, task='a "task" of é', peers="0" * 64),
    ],
)
def test_a_policy_is_read_as_it_was_written(tmp_path: Path, policy: NodePolicy) -> None:
    path = write(tmp_path / "policy.toml", policy)
    assert read_policy(path) == policy
    text = path.read_text("utf-8")
    assert len(tomllib.loads(text)) == len(fields(NodePolicy))
    entries = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(entries) == len(fields(NodePolicy))
    for entry in entries:
        assert text.splitlines()[text.splitlines().index(entry) - 1].startswith("# ")


def test_what_a_file_does_not_say_is_as_strict_as_by_default(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text("min-contributors = 5\n")
    assert read_policy(path) == NodePolicy(min_contributors=5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read"),
        ("privacy = index\n", "not valid TOML"),
        ("\0", "not valid TOML"),
        ("min-contributers = 3\n", "'min-contributers', which means nothing"),
        ("min-contributors = 0\n", "min-contributors is 0, but must be at least 1"),
        ('min-contributors = "none"\n', "must be a whole number"),
        ("min-contributors = true\n", "must be a whole number"),
        ('privacy = "secret"\n', "must be one of clear, heat, index, full"),
        ("index-epsilon = nan\n", "a finite number"),
        ("threshold = 1.5\n", "at most 1"),
    ],
)
def test_a_policy_that_cannot_be_used_says_so(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "policy.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PolicyError, match=words) as caught:
        read_policy(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# -- a run compared with it --


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"privacy": "clear"}, "privacy is clear, but the policy of this node asks for at least"),
        ({"privacy": "heat"}, "privacy is heat"),
        ({"index_epsilon": None}, "index-epsilon is none.* at most 1"),
        ({"index_epsilon": 1.1}, "index-epsilon is 1.1"),
        ({"coins": "row"}, "coins is row.* asks for value"),
        ({"index_epsilon_for_ever": 4.5}, "index-epsilon-for-ever is 4.5.* at most 4"),
        ({"min_contributors": 1}, "min-contributors is 1.* at least 2"),
        ({"openers": 1, "colluding": 0}, "openers is 1"),
        ({"colluding": 0}, "colluding is 0"),
        ({"threshold": 0.5}, "threshold is 0.5.* at least 0.6667"),
        ({"secure_sum": "arithmetic"}, "secure-sum is arithmetic"),
        ({"heat": "hashed", "heat_epsilon": 3.0}, "heat-epsilon is 3.0"),
    ],
)
def test_a_run_that_asks_for_less_privacy_is_declined(dials: dict[str, Any], words: str) -> None:
    policy = NodePolicy()
    policy.check(ALLOWED, "test", None)
    asked = {"privacy": "index", "threshold": 0.7, **dials}
    if asked["privacy"] != "index":
        del asked["threshold"]
    with pytest.raises(PolicyError, match=words) as caught:
        policy.check(Privacy.of(**asked), "test", None)
    assert str(caught.value).count(". ") == 0
    NodePolicy.open().check(Privacy.of(**{**asked, "secure_sum": "real"}), "test", None)


@pytest.mark.parametrize(
    ("dials", "words"),
    [
        ({"dp_noise": 0.1}, "dp-noise is 0.1, .* at least 0.6455"),
        ({"dp_heat_noise": 0.1}, "dp-heat-noise is 0.1"),
        ({"mechanism": "gaussian"}, "dp-noise is 0.0"),  # a server that adds it sees exact sums
    ],
)
def test_rows_of_few_nodes_are_opened_under_enough_noise_alone(
    dials: dict[str, Any], words: str
) -> None:
    asked = {"privacy": "full", "mechanism": "distributed"}
    NodePolicy().check(Privacy.of(**asked), "test", None)
    with pytest.raises(PolicyError, match=words):
        NodePolicy().check(Privacy.of(**{**asked, **dials}), "test", None)


def test_a_policy_is_for_one_federation(tmp_path: Path) -> None:
    mine, other = tmp_path / "peers.json", tmp_path / "other.json"
    for path, name in ((mine, "a"), (other, "b")):
        write_peers(path, {name: own_key(tmp_path / name).public})
    policy = NodePolicy(task="test", peers=digest_of(mine))
    policy.check(ALLOWED, "test", mine)
    for task, peers, words in (
        ("another", mine, "for the task 'test', but this node's app is of 'another'"),
        ("test", other, "for another federation"),
        ("test", None, "for another federation"),
        ("test", tmp_path / "none.json", "cannot be read"),
    ):
        with pytest.raises(PolicyError, match=words):
            policy.check(ALLOWED, task, peers)


def test_a_sum_needs_as_many_nodes_as_the_policy_says() -> None:
    NodePolicy(nodes_in_sum=4).check_sum(4)
    with pytest.raises(PolicyError, match=r"opened with 3 nodes, .* nodes-in-sum is 4"):
        NodePolicy(nodes_in_sum=4).check_sum(3)


# -- a node --


def enrolment(config: dict[str, Any], data: FederatedData) -> bytes:
    """A server's request to enrol in a run."""
    contract = make_contract(task_of(data), config)
    fingerprint = contract.fingerprint(contract.model(data), data)
    facts = {"contract": fingerprint, "run": RUN, "version": 1}
    return pack(Message("enrol", facts, {}))


def with_peers(folder: Path, *names: str) -> None:
    write_peers(folder / "peers.json", {name: own_key(folder / name).public for name in names})


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        INDEX | {"index-epsilon": "", "index-epsilon-for-ever": ""},
        INDEX | {"min-contributors": 1},
        INDEX | {"weighting": "examples"},
    ],
)
def test_a_node_with_peers_declines_before_it_looks_at_its_data(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """No size, no row and no reason leaves it, and the reason stays on the node."""
    data = examples(clients=3)
    with_peers(tmp_path, "n0", "n1", "n2")

    def looked_at(_: Any) -> FederatedData:
        raise AssertionError("the data of the node were looked at")

    task = replace(task_of(data), shard=looked_at)
    own = {"name": "n0", "peers": str(tmp_path / "peers.json")}
    state = NodeState(tmp_path / "n0")
    answer = unpack(joining.answer(task, config, own, state, enrolment(config, data)))
    assert answer == Message("declined", {}, {})
    why = (state.folder / DECLINED).read_text()
    assert why.endswith("the node takes no part in the run.\n")
    assert (state.folder / DECLINED).stat().st_mode & 0o777 == 0o600
    kept = {"signing.key", "answering.lock", DECLINED}
    assert {path.name for path in state.folder.iterdir()} == kept


def test_a_node_without_peers_may_take_part_in_the_clear(tmp_path: Path) -> None:
    data = examples(clients=3)
    node = with_policy(task_of(data), CONFIG, data, tmp_path / "n0", "n0", None)
    answer = unpack(node(enrolment(CONFIG, data)))
    assert answer.kind == "enrolled"
    assert "index/item" in answer.parts


def test_the_default_policy_takes_part_in_the_default_private_run(tmp_path: Path) -> None:
    data = examples(clients=3)
    with_peers(tmp_path, "n0", "n1", "n2")
    node = with_policy(task_of(data), INDEX, data, tmp_path / "n0", "n0", None)
    answer = unpack(node(enrolment(INDEX, data)))
    assert answer.kind == "enrolled"
    assert "index/item" not in answer.parts


def test_a_run_that_waits_names_the_nodes_that_decline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrows.flower.server.fleet.SAID", 0.0)
    data = examples()
    shards = shards_of(data, 3)
    config = CONFIG | {"clients-per-round": 4, "min-nodes": 3}
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)
    policy = write(tmp_path / "own.toml", NodePolicy())
    loopback.here[3] = with_policy(
        task_of(data), config, shards["n2"], tmp_path / "n2", "n2", policy
    )

    class Heard(Exception):
        """Ends the wait."""

    def hear(sentence: str) -> None:
        raise Heard(sentence)

    said: list[str] = []
    fleet._log, fleet.notice = said.append, hear
    with pytest.raises(Heard, match=r"2 are here and at least 3 are.*why: node 3\. Mend"):
        fleet.gather()
    assert not [text for text in said if "goes on" in text]


def test_a_node_that_has_had_its_rounds_leaves_and_the_run_goes_on(tmp_path: Path) -> None:
    data = examples()
    shards = shards_of(data, 3)
    config = CONFIG | {"rounds": 6, "clients-per-round": 8, "min-answers": 1}
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)
    policy = write(tmp_path / "own.toml", replace(NodePolicy.open(), rounds_per_day=2))
    loopback.here[3] = with_policy(
        task_of(data), config, shards["n2"], tmp_path / "n2", "n2", policy
    )
    said: list[str] = []
    fleet._log = said.append
    assert run(fleet, data).round == 6
    assert sorted(fleet.registry.nodes) == ["n0", "n1"]
    kinds = [unpack(message).kind for node, message in loopback.sent if node == 3]
    assert kinds == ["enrol", "train", "train", "train"]  # the last one was declined
    assert [text for text in said if "declines" in text] == [
        "Node 'n2' declines to take part: its own log says why."
    ]
    assert "rounds-per-day is 2" in (tmp_path / "n2" / DECLINED).read_text()


def test_a_private_node_takes_part_in_all_the_rounds_that_its_policy_allows(
    tmp_path: Path,
) -> None:
    """The unions of coming rounds are declined while the last allowed ones are under way."""
    data = examples()
    shards = shards_of(data, 4)
    config = CONFIG | {"rounds": 6, "clients-per-round": 9, "privacy": "index", "timeout": 5.0}
    fleet, loopback = federation(task_of(data), config, shards, tmp_path)
    policy = write(tmp_path / "own.toml", replace(NodePolicy.open(), rounds_per_day=3))
    loopback.here[4] = with_policy(
        task_of(data), config, shards["n3"], tmp_path / "n3", "n3", policy
    )
    trained = list[set[str]]()
    agreed = fleet.contract
    progress = begin(agreed.model(data), agreed.algorithm, agreed.plan, data.local)
    for _ in rounds(fleet, agreed.plan, progress):
        trained.append({name for name, why in fleet.answers.items() if not why})
    assert [("n3" in nodes) for nodes in trained] == [True] * 3 + [False] * 3
    assert all({"n0", "n1", "n2"} <= nodes for nodes in trained)


# -- what is used of it --


def test_the_rounds_of_a_day_outlive_a_process_and_a_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy, now = NodePolicy(rounds_per_day=2), 20_000 * 86_400.0
    monkeypatch.setattr(time, "time", lambda: now)
    for _ in range(2):
        PolicyUse(tmp_path, policy).begin_round_()
    for moved in (0, 80_000, -86_400):  # later that day, and a clock that was set back
        monkeypatch.setattr(time, "time", lambda moved=moved: now + moved)
        with pytest.raises(PolicyError, match="rounds-per-day is 2"):
            PolicyUse(tmp_path, policy).begin_round_()
    monkeypatch.setattr(time, "time", lambda: now + 86_400)
    PolicyUse(tmp_path, policy).begin_round_()
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_what_is_remembered_of_a_policy_stays_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy_use, "_VERSIONS", 10)
    sizes = []
    for number in range(60):
        use = PolicyUse(tmp_path, NodePolicy.open())
        use.begin_round_()
        use.count_heat_(f"{number:064x}")
        sizes.append(sum(path.stat().st_size for path in tmp_path.iterdir()))
    assert max(sizes) == max(sizes[:20])
    assert {path.name for path in tmp_path.iterdir()} == {FILE, "policy-use.lock"}


def test_two_messages_at_once_do_not_share_a_round(tmp_path: Path) -> None:
    policy, declined = NodePolicy(rounds_per_day=20), []

    def begin() -> None:
        for _ in range(6):
            try:
                PolicyUse(tmp_path, policy).begin_round_()
            except PolicyError:
                declined.append(1)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(declined) == 4


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"day": 1, "rounds": "x", "heat": {}}'])
def test_a_damaged_file_of_what_is_used_allows_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(PolicyError, match="is damaged"):
        PolicyUse(tmp_path, NodePolicy()).begin_round_()


def test_heat_is_counted_so_often_over_one_version_of_the_data(tmp_path: Path) -> None:
    """A server that counts again with a node fewer would learn that node's heat."""
    data, more = examples(clients=3), examples(clients=3, seed=1)
    names = ("n0", "n1", "n2", "n3")
    with_peers(tmp_path, *names)
    policy = write(tmp_path / "own.toml", replace(NodePolicy(), heat_counts=2))
    sums, request = SumNames(), unpack(enrolment(INDEX, data))

    def count(shard: FederatedData, run: str) -> str:
        node = with_policy(task_of(data), INDEX, shard, tmp_path / "n0", "n0", policy)
        node(pack(Message("enrol", request.facts | {"run": run}, {})))
        facts = {
            "contract": digest(request.facts["contract"]), "run": run,
            "sum": sums.make(), "use": "heat", "phase": 0, "party": 1,
            "parties": {str(i): name for i, name in enumerate(names, start=1)},
        }  # fmt: skip
        return unpack(node(pack(Message("sum", facts, {"request": b""})))).kind

    assert [count(data, run) for run in (RUN, "1" * 16, RUN, "2" * 16)] == [
        "sum", "sum", "declined", "declined",
    ]  # fmt: skip
    why = (tmp_path / "n0" / DECLINED).read_text()
    assert "heat-counts is 2" in why
    assert "raise heat-counts, or submit the run with the `out` of an earlier one" in why
    assert count(more, RUN) == "sum"
    assert count(data, RUN) == "declined"
