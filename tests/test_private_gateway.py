"""A private run with devices behind a gateway, without a network between server and nodes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")
pytest.importorskip("starlette")

from browser_devices import BrowserRounds, NodeDevice, PlainDevice
from deployed import CONFIG, difference, examples, run, simulated, task_of
from private_devices import PrivateDevice, PrivateRun, private_run

from fedrows.flower.gateway.device_runs import why_declined
from fedrows.flower.gateway.forms import RegistrationForm
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.contract import make_contract
from fedrows.flower.wire.message import Message, WireError, pack, unpack
from fedrows.privacy import secure_sum
from fedrows.privacy.keys import SIGNATURE
from fedrows.rows.heat import heat_of

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "timeout": 30.0, "dtype": "float32", "algorithm": "fedsubavg", "rounds": 2,
    "clients-per-round": 12,
}  # fmt: skip


@pytest.fixture
def script() -> Iterator[BrowserRounds]:
    """The browser's client, played by node."""
    made = BrowserRounds()
    yield made
    made.close()


def begin(it: PrivateRun, kind: type[PrivateDevice], **more: Any) -> list[Any]:
    """Five devices, enrolled and running."""
    made = []
    for client in range(5):
        name = f"device-{client:05d}"
        given = (it.url, it.store.make_token(), name, it.contract, it.shard, client)
        made.append(kind(*given, **more))
        it.start(made[-1])
    return made


def test_devices_in_a_private_run_train_as_simulated(tmp_path: Path) -> None:
    """And nobody tells the gateway an index set, nor the gateway the server which rows it wants."""
    data, answers = examples(), []
    with private_run(data, PRIVATE, tmp_path, 5) as it:
        devices = begin(it, PrivateDevice)
        it.loopback.meddle = lambda node, x: answers.append((node, x)) or x  # type: ignore[func-returns-value]
        found = run(it.fleet, data)
        kept = it.store.rows("SELECT message, examples FROM registrations")
        # Nor does it let devices train in the clear, whatever the server asks.
        known = unpack(it.loopback.sent[-1][1]).facts
        asks = {name: known[name] for name in ("run", "contract")} | {"tag": 9, "version": 1}
        for positions in (b"", ids_to_bytes(torch.arange(5))):
            train = Message(
                "train", asks, {"positions": positions, "numbers": b"", "accepted": b""}
            )
            assert unpack(it.loopback.here[1](pack(train))).kind == "silent"
    assert difference(found.whole(), simulated(it.fleet, data)) < 2e-5
    heat = heat_of(data.index["item"], data.weights("uniform"))
    assert torch.equal(it.fleet.heat()["item"].counts, heat.counts)
    assert len(kept) == 5
    assert all(unpack(x).parts.keys() == {"key"} and count == 1 for x, count in kept)
    for one in devices:
        assert {unpack(x).kind for x in one.sent} == {"sum", "silent"}
        assert sorted(
            x.facts["tag"] >> 31 for x in one.seen if "terms" in x.parts and "tag" in x.facts
        ) == [1, 2]
    wanted = [part for node, x in answers if node == 1 for part in parts_of(x, "asked")]
    everything = [ids_to_bytes(torch.arange(count)) for count in range(31)]
    assert len(wanted) == 2
    assert all(part[:-SIGNATURE] in everything for part in wanted)


def parts_of(answer: bytes, name: str) -> list[bytes]:
    """Every part of a name in an answer about sums."""
    outer = unpack(answer)
    inner = [unpack(x) for x in outer.parts.values()] if outer.kind == "sums" else [outer]
    return [x.parts[name] for x in inner if name in x.parts]


def test_the_browsers_devices_do_what_pythons_do(tmp_path: Path, script: BrowserRounds) -> None:
    """With rows that wait because too few devices hold them: the same model, the same rows wait."""
    data, models, waiting = examples(each=5), [], []
    config = PRIVATE | {"min-contributors": 2}
    for kind in (PlainDevice, NodeDevice):
        with private_run(data, config, tmp_path / kind.__name__, 5) as it:
            manifest = json.loads(
                (tmp_path / kind.__name__ / "program" / "manifest.json").read_text()
            )
            manifest["fields"] = {name: {"table": table} for name, table in data.fields.items()}
            more = {} if kind is PlainDevice else {"script": script, "manifest": manifest}
            devices = begin(it, kind, **more)
            models.append(run(it.fleet, data).whole())
        run_ = devices[0].seen[-1].facts["run"]
        if kind is PlainDevice:
            waiting.append([one.held.of(0, "item") for one in devices])
        else:
            held = [one.held_back(run_).get("item", []) for one in devices]
            waiting.append(
                [([x for x, _ in own], [list(row.values()) for _, row in own]) for own in held]
            )
            assert [[line["round"] for line in one.lines] for one in devices] == [[1, 2]] * 5
            assert {word for one in devices for word in one.news} == {"rows", "trained"}
    assert difference(*models) < 2e-5
    assert sum(len(ids) for ids, _ in waiting[0]) > 0
    for (ids, rows), (others, theirs) in zip(*waiting, strict=True):
        order = np.argsort(others)
        assert ids.tolist() == np.array(others)[order].tolist()
        assert np.abs(rows - np.array(theirs).reshape(rows.shape)[order]).max(initial=0) < 2e-5


def test_a_device_that_lies_about_heat_counts_as_the_gateways_devices_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, honest = examples(), secure_sum.client

    def lying(terms: Any, me: int, key: Any, keys: Any, words: Any, *more: Any) -> Any:
        if isinstance(words, np.ndarray) and me == 0 and set(words.tolist()) == {0, 1}:
            words = words.copy()
            words[7] = 2**31
        return honest(terms, me, key, keys, words, *more)

    monkeypatch.setattr(secure_sum, "client", lying)
    with private_run(data, PRIVATE | {"rounds": 1}, tmp_path, 5) as it:
        begin(it, PrivateDevice)
        it.fleet.gather()
    heat = it.fleet.heat()["item"]
    others = data.select(torch.arange(data.clients - 5)).index["item"].ids
    [counted] = heat.counts[heat.ids == 7].tolist()
    assert counted == int((others == 7).sum()) + 5


class Absent(PrivateDevice):
    """A device that says nothing in the second round's update."""

    def answer(self, message: Message) -> bytes:
        is_second = message.facts.get("tag", 0) >> 31 == 2
        if self.client == 4 and (is_second or message.facts["sum"] in self.halves.get("gone", ())):
            self.halves.setdefault("gone", set()).add(message.facts["sum"])
            return pack(Message("silent", {}, {}))
        return super().answer(message)


def test_a_device_goes_on_from_its_last_round_that_counted(tmp_path: Path) -> None:
    """The server knows what counted of the gateway, and the gateway what counted of a device."""
    data = examples()
    with private_run(data, PRIVATE | {"rounds": 3}, tmp_path, 5) as it:
        devices = begin(it, Absent)
        found = run(it.fleet, data)
    assert float(found.whole().tables["item"].abs().max()) > 0.01
    for one in devices:
        asked = [x.facts for x in one.seen if "tag" in x.facts and x.facts["phase"] == 0]
        last = [(x["accepted"] >> 31, x["tag"] >> 31) for x in asked]
        assert last == ([(0, 1), (1, 2), (1, 3)] if one.client == 4 else [(0, 1), (1, 2), (2, 3)])


def test_a_registration_for_a_private_run_shows_no_rows(tmp_path: Path) -> None:
    form = RegistrationForm({}, 1, private=True)
    key, ids = bytes(32), ids_to_bytes(torch.arange(3))
    assert form.check(pack(Message("registration", {"examples": 1}, {"key": key}))) == (1, {})
    for facts, parts in (
        ({"examples": 1}, {"key": key, "index/item": ids}),
        ({"examples": 9}, {"key": key}),
        ({"examples": 1}, {"key": key[1:]}),
        ({"examples": 1}, {}),
    ):
        with pytest.raises(WireError, match="registration for a private run"):
            form.check(pack(Message("registration", facts, parts)))


def test_data_in_groups_are_declined(tmp_path: Path) -> None:
    privacy = make_contract(task_of(examples()), PRIVATE | {"min-contributors": 2}).privacy
    grouped = replace(examples(), groups={"item": {"film": (0, 30)}})
    assert "do not know the rule" in str(why_declined(privacy, "uniform", grouped))
    large = replace(examples(), tables={"item": 2**20 + 1})
    assert "up to 1048576 rows" in str(why_declined(privacy, "uniform", large))
    assert why_declined(privacy, "uniform", examples()) is None
