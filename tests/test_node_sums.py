"""What a private node has on its disk: nothing unmasked after a round, and no more every round."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from deployed import CONFIG, examples, shards_of, task_of
from loopback import federation, phases_in

from fedrows.errors import FedrowsError
from fedrows.flower.node.node_sums import NodeSums
from fedrows.flower.wire.names import SumNames
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.replay import Done
from fedrows.server import begin, rounds

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": 2.0, "index-epsilon-for-ever": 6.0,
    "min-contributors": 2, "timeout": 5.0, "clients-per-round": 4, "rounds": 5,
}  # fmt: skip


def files(folder: Path) -> dict[str, int]:
    """The files below a folder and the folders themselves, with their modes."""
    return {
        str(path.relative_to(folder)): path.stat().st_mode & 0o777 for path in folder.rglob("*")
    }


@pytest.mark.slow
def test_nothing_of_a_run_stays_on_a_node(tmp_path: Path) -> None:
    data = examples(clients=4)
    config = PRIVATE | {"rounds": 7}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    under_way = set()

    def look(node: int, answer: bytes) -> bytes:
        under_way.update(path.name for path in tmp_path.glob("n*/*/sums/**/*"))
        return answer

    loopback.meddle = look
    agreed = fleet.contract
    progress = begin(agreed.model(data), agreed.algorithm, agreed.plan)
    counts = []
    for _ in rounds(fleet, agreed.plan, progress):
        left = {path.name for path in tmp_path.glob("n*/*/sums/*/")}
        assert len(left) <= 5  # a sum that the next message ends, unions, keys of sums to come
        unmasked = [path.parent for path in tmp_path.glob("n*/*/sums/*/inputs.npz")]
        uses = {one.name: json.loads((one / "facts.json").read_text())["use"] for one in unmasked}
        assert list(uses.values()).count("update") <= 1
        assert len(list((tmp_path / "n0").glob("*/sums/*.npz"))) <= 1  # what one union came to
        counts.append(len(files(tmp_path)))
    assert {path.name for path in tmp_path.glob("n*/*/sums/*")} == {"newest"}
    assert {"half", "facts.json", "inputs.npz", "asked.npz"} <= under_way  # while it lasted
    assert len(set(counts[2:-3])) == 1
    for node in tmp_path.glob("n*"):
        modes = files(node)
        assert modes.pop("node.json") == 0o600
        assert {mode for mode in modes.values() if mode & 0o077} == set(), modes


def test_a_sum_that_never_ended_goes_with_the_next_message(tmp_path: Path) -> None:
    data = examples(clients=4)
    config = PRIVATE | {"rounds": 2, "min-answers": 1}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 4), tmp_path)
    seen: list[str] = []

    def silent_once(node: int, answer: bytes) -> bytes | str:
        begun = [one.facts for one in phases_in(loopback.sent[-1][1]) if "use" in one.facts]
        if node == 2 and begun and begun[0]["use"] == "update" and not seen:
            seen.append(begun[0]["sum"])
            return "it was killed"  # the server goes on without it, and never says that it is over
        return answer

    loopback.meddle = silent_once
    agreed = fleet.contract
    progress = begin(agreed.model(data), agreed.algorithm, agreed.plan)
    left = [
        list(tmp_path.glob(f"n*/*/sums/{seen[0]}")) for _ in rounds(fleet, agreed.plan, progress)
    ]
    assert [len(folders) for folders in left] == [4, 0]  # the others hear of the end later, too


def half(length: int) -> Generator[bytes, bytes, str]:
    """A protocol of three messages."""
    for _ in range(3):
        yield bytes(length)
    return "over"


@pytest.mark.slow
def test_the_folder_does_not_grow_over_a_thousand_rounds(tmp_path: Path) -> None:
    names, sizes = SumNames(), []
    for number in range(1_000):
        sums, name = NodeSums(tmp_path), names.make()
        sums.begin({"sum": name, "use": "union"})
        if number % 3:
            sums.begin_work(name, {})
        sums.put_inputs(name, {"rows": np.ones(8)})
        if number % 7 == 0:
            continue  # it never ends
        phases = range(2 if number % 5 == 0 else 4)
        for _ in phases:
            facts, reply = NodeSums(tmp_path).advance(
                name, lambda facts: half(len(NodeSums(tmp_path).inputs(facts["sum"]))), b""
            )
        if isinstance(reply, Done):
            sums.put_asked(name, {"union": np.arange(3)})
            sums.end(facts["sum"])
        sizes.append(len(files(tmp_path)))
    assert max(sizes) <= 25  # newest, five sums, and what was asked for
    assert max(sizes[-50:]) <= max(sizes[:50])


def test_a_sum_is_begun_once_and_none_before_the_newest(tmp_path: Path) -> None:
    sums, names = NodeSums(tmp_path), SumNames()
    old, new = names.make(), names.make()
    sums.begin({"sum": new, "use": "union"})
    sums.end(new)
    for name in (new, new[:16] + "f" * 16, old):
        with pytest.raises(ProtocolError, match="never begun twice"):
            NodeSums(tmp_path).begin({"sum": name, "use": "union"})


def test_what_is_added_up_is_said_once_and_ends_older_sums_of_the_same_use(tmp_path: Path) -> None:
    sums, names = NodeSums(tmp_path), SumNames()
    old, beside, new, keys = (names.make() for _ in range(4))
    uses = {old: "update", beside: "union", new: "update", keys: "update"}
    for name in uses:
        sums.begin({"sum": name, "use": uses[name], "round": 3})
    for name in (old, beside, new):
        found = sums.begin_work(name, {"tag": 7, "round": 4, "union": beside})
        assert (found["tag"], found["round"]) == (7, 3)  # no message changes what keys are bound to
    assert {path.name for path in tmp_path.glob("*/")} == {beside, new, keys}
    with pytest.raises(ProtocolError, match="not said twice"):
        sums.begin_work(new, {"tag": 8})
    assert sums.facts(new)["tag"] == 7


def test_keys_that_were_never_used_crowd_out_no_sum_that_is_under_way(tmp_path: Path) -> None:
    sums, names = NodeSums(tmp_path), SumNames()
    uses = ("update", "union", "union", "update", "union")  # the second is begun again as the third
    first, unused, union, *ahead = (names.make() for _ in uses)
    for name, use in zip((first, unused, union), uses, strict=False):
        sums.begin({"sum": name, "use": use})
    sums.begin_work(union, {})
    sums.begin_work(first, {"union": unused})
    for name, use in zip(ahead, uses[3:], strict=True):
        sums.begin({"sum": name, "use": use})
    assert {path.name for path in tmp_path.glob("*/")} == {first, union, *ahead}


def test_a_union_under_way_outlives_the_vectors_of_the_next_and_serves_one_update(
    tmp_path: Path,
) -> None:
    sums, names = NodeSums(tmp_path), SumNames()
    unions, updates = [names.make() for _ in range(4)], [names.make() for _ in range(2)]
    for name in unions[:3]:
        sums.begin({"sum": name, "use": "union"})
        sums.begin_work(name, {})
    assert {path.name for path in tmp_path.glob("*/")} == set(unions[1:3])
    for name in unions[:3]:
        sums.put_asked(name, {"union": np.arange(3)})
    assert {path.stem for path in tmp_path.glob("*.npz")} == set(unions[1:3])
    for name in updates:
        sums.begin({"sum": name, "use": "update"})
        sums.begin_work(name, {"union": unions[1]})
        if name == updates[0]:
            assert sums.asked(name, unions[1])["union"].tolist() == [0, 1, 2]
    with pytest.raises(ProtocolError, match="is lost"):
        sums.asked(updates[1], unions[1])  # it has served
    with pytest.raises(FedrowsError, match="does not name a sum"):
        sums.begin_work(updates[1].replace(updates[1][-1], "x"), {})


def test_a_server_whose_clock_was_set_back_learns_the_newest_name() -> None:
    ahead, names = time.time_ns() + 10**9 * 3600, SumNames()
    names.learn_(f"{ahead:016x}")
    assert int(names.make()[:16], 16) == ahead + 1
    for lie in ("f" * 16, "", "not a number", 7, None):
        names.learn_(lie)
    assert int(names.make()[:16], 16) == ahead + 2
