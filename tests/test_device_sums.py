"""Sums among devices: the gateway's half over its store, and the browser's halves, run by node.

What a hostile gateway tries against a single half is in test_browser_sums.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")
pytest.importorskip("starlette")

from browser_devices import BrowserRounds, silent

from fedrows.flower.gateway.device_sums import AgreedTerms, DeviceSums, SumDevice
from fedrows.flower.gateway.forms import PhaseForm, read_form
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.work import WorkStore
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.flower.wire.upload_checks import UploadRefused
from fedrows.privacy import openings, secure_sum
from fedrows.privacy.options import Privacy
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.weighted_mean import WeightedMean

ROWS = 9
HELD = [[0, 1], [1], [1, 2, 8], [3], [0, 3]]  # by device
MANIFEST = {
    "tables": {"item": {"rows": ROWS, "width": 2, "local": False, "padded": False}},
    "fields": {"item": {"table": "item"}},
    "dense": {},
}
Change = Callable[[int, Message], Message]


class Cohort:
    """Five devices of the browser's client, who answer what lies in a gateway's store."""

    def __init__(self, script: BrowserRounds, folder: Path, **policy: Any) -> None:
        self.script, self.work = script, WorkStore(GatewayStore(folder))
        self.devices: list[SumDevice] = []
        for number, held in enumerate(HELD):
            given = {"ids": {"item": held}, "label": [1] * len(held)}
            made = script.ask(device=f"d{number}", manifest=MANIFEST, given=given, policy=policy)
            key = unpack(bytes.fromhex(made["body"])).parts["key"]
            self.devices.append(SumDevice(f"d{number}", "r", key))
        self.sums = DeviceSums(self.work, "a" * 16, "p" * 32)
        self.change: Change = lambda number, message: message
        self.reply: Callable[[int, bytes], bytes | None] = lambda number, body: body
        self.reload: dict[int, int] = {}  # device → the phase in which its tab is reloaded
        self.news: dict[int, list[str]] = {}
        self.answers: list[tuple[int, bytes]] = []

    def ask(self, number: int, message: Message) -> bytes:
        """A device's answer to a message, whoever sends it."""
        ask = "reload" if self.reload.get(number) == message.facts["phase"] else ""
        made = self.script.ask(device=f"d{number}", message=pack(message).hex(), ask=ask)
        self.news[number] = made["news"]
        return bytes.fromhex(made["body"])

    def facts(self, use: str, /, **more: Any) -> dict[str, Any]:
        """What all are told of a sum."""
        tables = [{"name": "item", "rows": ROWS, "width": 2}]
        known = {"use": use, "round": 1, "tables": tables, "threshold": 4, "colluding": 1}
        return known | more

    def half(self, agreed: AgreedTerms) -> Any:
        """The gateway's half of a sum with a word for each row."""
        cohort = tuple(range(len(self.devices)))
        terms = SumTerms(agreed.name, cohort, 4, ROWS, colluding=1, early_list=True)
        return secure_sum.server(terms, dict(enumerate(one.key for one in self.devices)))

    def carry(self, use: str = "heat", seconds: float = 20.0, **more: Any) -> secure_sum.SumResult:
        """A whole sum with a word for each row."""
        agreed = self.sums.terms(self.devices, self.facts(use, **more), {})
        return self.run(agreed, self.half, 4 * ROWS, seconds)

    def run(self, agreed: AgreedTerms, half: Any, size: int, seconds: float = 20.0) -> Any:
        """A whole sum, with the devices in a thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self._answer, args=[stop])
        thread.start()
        try:
            own = [{"number": i, "accepted": 0, "tag": 2**31} for i in range(len(self.devices))]
            return self.sums.carry(half(agreed), agreed, self.devices, own, size, seconds)
        finally:
            stop.set()
            thread.join()

    def _answer(self, stop: threading.Event) -> None:
        done: set[str] = set()
        while not stop.is_set():
            for number in range(len(self.devices)):
                offered = self.work.offer(f"d{number}")
                if offered is None or offered.id in done:
                    continue
                done.add(offered.id)
                held = self.work.find(f"d{number}", offered.id)
                message = self.change(number, unpack(self.work.message(offered.id, 0)))
                body = self.reply(number, self.ask(number, message))
                if body is None or held is None:
                    continue
                self.answers.append((number, body))
                try:
                    read_form(held.form).check(body)
                    self.work.take(held.id, body)
                except UploadRefused:
                    self.work.refuse(held.id)
            time.sleep(0.005)
        self.work.store.close()


@pytest.fixture(scope="module")
def script() -> Iterator[BrowserRounds]:
    """The browser's client, played by node."""
    made = BrowserRounds()
    yield made
    made.close()


@pytest.fixture
def cohort(script: BrowserRounds, tmp_path: Path) -> Cohort:
    return Cohort(script, tmp_path / "gate")


def counts(who: list[int]) -> list[int]:
    """How many of some devices hold each row."""
    return [sum(row in HELD[one] for one in who) for row in range(ROWS)]


def test_the_gateway_has_the_sum_alone(cohort: Cohort) -> None:
    """Every masked vector is as good as random, and the total is right."""
    result = cohort.carry()
    assert result.values.tolist() == counts([0, 1, 2, 3, 4])
    seen = [x for x in (unpack(body) for _, body in cohort.answers) if x.facts.get("phase") == 2]
    assert len(seen) == 5
    words = np.concatenate(
        [np.frombuffer(x.parts["reply"][-64 - 4 * ROWS : -64], dtype="<u4") for x in seen]
    )
    assert len(set(words.tolist())) == 5 * ROWS
    assert words.min() > 10**5  # a count would be below


def test_a_union_shows_rows_and_no_counts(cohort: Cohort) -> None:
    first, second = cohort.carry("union").values, cohort.carry("union").values
    assert np.flatnonzero(first).tolist() == [0, 1, 2, 3, 8] == np.flatnonzero(second).tolist()
    assert (first[[0, 1, 2, 3, 8]] != second[[0, 1, 2, 3, 8]]).all()


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_a_device_that_is_gone_is_a_drop_out(cohort: Cohort, phase: int) -> None:
    def until(number: int, body: bytes) -> bytes | None:
        message = unpack(body)
        return None if number == 2 and message.facts.get("phase", 9) >= phase else body

    cohort.reply = until
    result = cohort.carry(seconds=4.0)
    inside = [0, 1, 3, 4] if phase < 3 else [0, 1, 2, 3, 4]
    assert result.clients == inside
    assert result.values.tolist() == counts(inside)


def test_a_tab_that_is_reloaded_drops_out_and_is_back_in_the_next_sum(cohort: Cohort) -> None:
    cohort.reload = {2: 2}
    assert cohort.carry().clients == [0, 1, 3, 4]
    assert "was closed in the middle" in cohort.news[2][-1]
    cohort.reload = {}
    assert cohort.carry().clients == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "garbage",
    [
        lambda x: pack(Message("sum", x.facts, {"reply": bytes(100)})),
        lambda x: pack(Message("sum", x.facts, {"reply": x.parts["reply"][:-1]})),
        lambda x: pack(Message("sum", x.facts, {"reply": bytes(10**5)})),
        lambda x: pack(Message("sum", {**x.facts, "phase": 7}, x.parts)),
        lambda x: b"nothing that can be read",
    ],
)
def test_a_device_that_sends_garbage_is_left_out(cohort: Cohort, garbage: Any) -> None:
    def spoilt(number: int, body: bytes) -> bytes:
        message = unpack(body)
        wrong = number == 3 and message.kind == "sum" and message.facts["phase"] == 1
        return garbage(message) if wrong else body

    cohort.reply = spoilt
    result = cohort.carry()
    assert result.clients == [0, 1, 2, 4]
    assert result.values.tolist() == counts([0, 1, 2, 4])
    assert 3 in result.left_out


def test_devices_that_were_told_two_things_open_nothing(cohort: Cohort) -> None:
    """As a gateway would that trains all but one device on a model of which they learn nothing."""
    other = cohort.sums.terms(cohort.devices, cohort.facts("union"), {})

    def told(number: int, message: Message) -> Message:
        if "terms" not in message.parts or number != 2:
            return message
        about = unpack(other.message).facts | {"sum": message.facts["sum"]}
        return Message(
            "sum", message.facts, message.parts | {"terms": pack(Message("terms", about, {}))}
        )

    cohort.change = told
    result = cohort.carry()  # the odd one out signs for another sum: its keys are refused
    assert result.clients == [0, 1, 3, 4]
    victims = {0, 1, 2}

    def split(number: int, message: Message) -> Message:
        return told(2 if number in victims else 0, message)

    cohort.change = split
    with pytest.raises(ProtocolError, match="2 of 5 clients came through phase 'keys'"):
        cohort.carry()


def test_no_sum_is_begun_twice(cohort: Cohort) -> None:
    """Neither with the same messages, nor under the name of an earlier sum."""
    asked: list[Message] = []
    cohort.change = lambda number, message: asked.append(message) or message  # type: ignore[func-returns-value]
    cohort.carry()
    first = next(x for x in asked if x.facts["phase"] == 0 and x.facts["party"] == 2)
    vectors = next(x for x in asked if x.facts["phase"] == 2 and x.facts["party"] == 2)
    for message in (first, vectors, first):
        assert silent(cohort.ask(2, message))
    cohort.reload = {2: 0}
    assert silent(cohort.ask(2, first))
    assert "not a new one" in cohort.news[2][-1]


def test_a_vector_is_masked_once(cohort: Cohort) -> None:
    """A second request for vectors, with another list of boxes, gets no second answer."""
    twice: list[bytes] = []

    def ask(number: int, message: Message) -> Message:
        if number == 2 and message.facts["phase"] == 3:
            vectors = asked[2]
            less = Message("sum", vectors.facts, {"request": vectors.parts["request"] + bytes(4)})
            twice.append(cohort.ask(2, less))
        asked[number] = message
        return message

    asked: dict[int, Message] = {}
    cohort.change = ask
    result = cohort.carry()
    assert silent(twice[0])
    assert 2 not in result.answering  # and it goes no further in this sum


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"threshold": 2}, "has share 0.4,"),
        ({"threshold": 3}, "has share 0.6,"),
        ({"colluding": 3}, "too few"),
        ({"tables": [{"name": "item", "rows": ROWS + 1, "width": 2}]}, "for other tables"),
        ({"tables": []}, "for other tables"),
        ({"use": "gradient"}, "does not know"),
    ],
)
def test_terms_that_do_not_fit_are_refused(
    cohort: Cohort, change: dict[str, Any], why: str
) -> None:
    agreed = cohort.sums.terms(cohort.devices, cohort.facts("heat", **change), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert why in cohort.news[1][-1]


def test_a_party_that_stands_twice_is_refused(cohort: Cohort) -> None:
    """A gateway that plays all others with one key gets nothing."""
    one = cohort.devices[0]
    agreed = cohort.sums.terms([one, cohort.devices[1], one, one, one], cohort.facts("heat"), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert "one key" in cohort.news[1][-1]
    strange = cohort.sums.terms([*cohort.devices[2:], one, one], cohort.facts("heat"), {})
    assert silent(cohort.ask(1, first_of(strange, 1)))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"coding": {"range": 3.9, "fraction": 20, "bits": 32}}, "do not fit"),
        ({"dense": [{"name": "bias", "shape": [1]}]}, "do not fit"),
        ({"openers": 1}, "openers"),
    ],
)
def test_updates_that_would_tell_something_are_refused(
    cohort: Cohort, change: dict[str, Any], why: str
) -> None:
    """A range of the gateway's choice, for instance: who fits into it would be an answer."""
    about = {"lr": 0.1, "range": 4.0, "losses": True, "minimum": 2, "openers": 2, "dense": []}
    about |= {"coding": {"range": 4.0, "fraction": 20, "bits": 32}}
    agreed = cohort.sums.terms(cohort.devices, cohort.facts("update", **about | change), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert why in cohort.news[1][-1]


def test_a_device_without_all_of_its_rows_adds_nothing(
    script: BrowserRounds, tmp_path: Path
) -> None:
    """The union lacks row 2: device 2 sits the round out, and its weight is not in the sum."""
    cohort = Cohort(script, tmp_path / "gate", contributors=1)
    ids, privacy = np.array([0, 1, 3, 8]), Privacy.of("index", min_contributors=1)
    mean = WeightedMean({"item": 2}, {}, 4.0, True, None)
    layout, coding = mean.layout({"item": ids}), mean.coding(np.ones(5), 5, 4, 1.0)
    about = {"lr": 0.5, "range": 4.0, "losses": True, "minimum": 1, "openers": 2, "dense": []}
    about["coding"] = {"range": coding.range, "fraction": coding.fraction, "bits": coding.bits}
    model = np.arange(8, dtype="<f4")
    parts = {"union/item": ids_to_bytes(torch.from_numpy(ids)), "model/item": model.tobytes()}
    agreed = cohort.sums.terms(cohort.devices, cohort.facts("update", **about), parts)
    plan = layout.plan(agreed.name, (0, 1, 2, 3, 4), privacy, coding, 1)
    terms = plan.terms(4, colluding=1, early_list=True)
    keys = dict(enumerate(one.key for one in cohort.devices))

    def half(_: AgreedTerms) -> Any:
        return openings.server(plan, terms, keys)

    result = cohort.run(agreed, half, 8 * plan.length)
    opened = layout.opened(result.rows.reshape(-1), result.opened, result.extra, coding)
    assert result.total.clients == [0, 1, 2, 3, 4]
    assert np.abs(opened.extra - [4.0, 4 * 0.5]).max() < 1e-5
    holders = np.array(counts([0, 1, 3, 4]))[ids]
    step = -0.1 * model.reshape(4, 2) + 0.5 / (1 + ids[:, None])  # of the script's program
    assert np.abs(opened.rows["item"][1] - holders[:, None] * step).max() < 1e-5


def first_of(agreed: AgreedTerms, party: int) -> Message:
    """The first message of a sum to a party."""
    facts = {"run": "a" * 16, "sum": agreed.sum, "phase": 0, "party": party, "number": 1}
    return Message("sum", facts, {"request": b"", "terms": agreed.message})


def test_a_form_takes_an_answer_to_its_own_phase() -> None:
    form = PhaseForm("ab", 3, 200)
    assert read_form(form.text()) == form
    facts = {"sum": "ab", "phase": 3}
    assert form.check(pack(Message("sum", facts, {"reply": b"x"}))) == b"x"
    assert form.check(pack(Message("silent", {}, {}))) is None
    for wrong in (
        pack(Message("sum", facts | {"phase": 2}, {"reply": b"x"})),
        pack(Message("sum", facts | {"sum": "cd"}, {"reply": b"x"})),
        pack(Message("sum", facts, {"reply": b"x", "more": b""})),
        pack(Message("trained", facts, {"reply": b"x"})),
        pack(Message("sum", facts, {"reply": bytes(200)})),
        b"",
    ):
        with pytest.raises(UploadRefused):
            form.check(wrong)
