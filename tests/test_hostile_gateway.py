"""A gateway that breaks the rules of private sums towards the browser's devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")
pytest.importorskip("starlette")

from browser_devices import BrowserRounds, silent
from node_script import BrowserRefuses
from test_device_sums import MANIFEST, Cohort, first_of

from fedrows.flower.gateway.device_sums import AgreedTerms, SumDevice
from fedrows.flower.wire.codings import ids_to_bytes
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.privacy import openings, secure_sum
from fedrows.privacy.options import Privacy
from fedrows.privacy.protocol import ProtocolError
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.values import Values
from fedrows.privacy.weighted_mean import WeightedMean

MEAN = WeightedMean({"item": 2}, {}, 4.0, True, None)
UNION = np.array([0, 1, 2, 3, 8])  # rows 2 and 8 are those of device 2 alone, and row 3 …
CODING = MEAN.coding(np.ones(5), 5, 4, 1.0)


@pytest.fixture(scope="module")
def script() -> Iterator[BrowserRounds]:
    """The browser's client, played by node."""
    made = BrowserRounds()
    yield made
    made.close()


@pytest.fixture
def cohort(script: BrowserRounds, tmp_path: Path) -> Cohort:
    return Cohort(script, tmp_path / "gate")


def update_terms(cohort: Cohort, union: np.ndarray = UNION, **change: Any) -> AgreedTerms:
    """The terms of an update of all rows, with something changed."""
    coding = {"range": CODING.range, "fraction": CODING.fraction, "bits": CODING.bits}
    about = {"lr": 0.5, "range": 4.0, "losses": True, "minimum": 2, "openers": 2, "dense": []}
    model = bytes(8 * len(union))
    parts = {"union/item": ids_to_bytes(torch.from_numpy(union)), "model/item": model}
    facts = cohort.facts("update", **{**about, "coding": coding, **change})
    return cohort.sums.terms(cohort.devices, facts, parts)


def tried(cohort: Cohort, agreed: AgreedTerms, half: Any, size: int) -> Any:
    """What a sum has shown; None if no device took part in it."""
    try:
        return cohort.run(agreed, half, size)
    except ProtocolError as error:
        if "0 of 5 clients came through phase 'keys'" not in str(error):
            raise
    return None


def test_rows_of_one_device_stay_closed_without_openers(cohort: Cohort) -> None:
    """Without pads every row would be in the sum that is opened, whoever holds it."""
    agreed = update_terms(cohort, openers=0)
    mean = WeightedMean({"item": 2}, {}, 4.0, True, {"item": Values()})
    layout = mean.layout({"item": UNION})
    about = layout.plan(agreed.name, tuple(range(5)), Privacy.of("index"), CODING, 1).terms(4).about
    terms = SumTerms(
        agreed.name, tuple(range(5)), 4, 5 * 2 + 2, CODING.dtype.name, colluding=1, openers=0,
        about=about, early_list=True,
    )  # fmt: skip
    keys = dict(enumerate(one.key for one in cohort.devices))
    found = tried(cohort, agreed, lambda _: secure_sum.server(terms, keys), 400)
    assert found is None, f"read of device 2: {CODING.decode(found.values[8:10])}"


def test_rows_of_one_device_stay_closed_under_a_minimum_of_one(cohort: Cohort) -> None:
    """All devices are told the same minimum, so they would all agree on it."""
    agreed = update_terms(cohort, minimum=1)
    privacy = Privacy.of("index", min_contributors=1)
    plan = MEAN.layout({"item": UNION}).plan(agreed.name, tuple(range(5)), privacy, CODING, 1)
    terms = plan.terms(4, colluding=1, early_list=True)
    keys = dict(enumerate(one.key for one in cohort.devices))
    found = tried(cohort, agreed, lambda _: openings.server(plan, terms, keys), 8 * plan.length)
    assert found is None, f"{found.opened.sum()} rows were opened, also those of one device"


@pytest.mark.parametrize(
    ("union", "trained"),
    [([1], 1), ([3], 1), ([0, 1], 2), ([0, 1, 3], 4)],  # devices whose rows are all in it
    ids=str,
)
def test_a_made_up_union_shows_no_numbers_of_one_device(
    cohort: Cohort, union: list[int], trained: int
) -> None:
    """Devices that lack a row of it send zeros, so the weight and the loss would be one's alone."""
    rows = np.array(union)
    agreed = update_terms(cohort, rows)
    mean = WeightedMean({"item": 2}, {}, 4.0, True, {"item": Values()})
    layout = mean.layout({"item": rows})
    plan = layout.plan(agreed.name, tuple(range(5)), Privacy.of("index"), CODING, 1)
    terms = plan.terms(4, colluding=1, early_list=True)
    keys = dict(enumerate(one.key for one in cohort.devices))
    found = tried(cohort, agreed, lambda _: openings.server(plan, terms, keys), 8 * plan.length)
    opened = layout.opened(found.rows.reshape(-1), found.opened, found.extra, CODING)
    assert opened.extra == pytest.approx([trained, trained / 2] if trained > 1 else 0, abs=1e-4)


@pytest.mark.parametrize(
    "change",
    [
        {"openers": 0},
        {"openers": 1, "colluding": 0},
        {"openers": 1.5},
        {"minimum": 1},
        {"minimum": 0},
        {"minimum": None},
        {"minimum": "2"},
        {"minimum": 1.5},
        {"minimum": 6},
        {"round": -1},
        {"round": 0.5},
        {"round": "1"},
        {"colluding": 0},
        {"colluding": -1},
        {"losses": 5},
        {"losses": None},
        {"range": -4.0},
        {"range": "4"},
        {"range": 0},
        {"lr": None},
        {"lr": "1"},
        {"dense": [{"name": "item", "shape": "2"}]},
        {"dense": None},
        {"tables": None},
        {"tables": [None]},
        {"parties": None},
        {"parties": ["00"] * 5},
        {"parties": 5},
        {"coding": None},
        {"coding": {"range": 4.0, "fraction": 20, "bits": 16}},
        {"coding": {"range": 4.0, "fraction": 1023, "bits": 64}},
        {"coding": {"range": 4.0, "fraction": 40, "bits": 32}},
        {"coding": {"range": 4.0, "fraction": -5, "bits": 32}},
        {"coding": {"range": 4.0, "fraction": 20.5, "bits": 32}},
        {"coding": {"range": 1e300, "fraction": 20, "bits": 64}},
        {"coding": {"range": "4", "fraction": 20, "bits": 32}},
    ],
    ids=str,
)
def test_terms_that_no_honest_gateway_makes_are_refused(
    cohort: Cohort, change: dict[str, Any]
) -> None:
    """The device says nothing, tells its user why, and is there for the next sum."""
    agreed = update_terms(cohort, **change)
    if "parties" in change:  # which `terms` has filled in
        about = unpack(agreed.message).facts | change
        agreed = AgreedTerms(agreed.sum, pack(Message("terms", about, {})))
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert "this device takes no part" in cohort.news[1][-1]
    assert not silent(cohort.ask(1, first_of(update_terms(cohort), 1)))


@pytest.mark.parametrize("use", ["heat", "union"])
def test_the_threshold_is_a_share_that_devices_choose(cohort: Cohort, use: str) -> None:
    """As a node's policy has it: above half of the devices and colluders is not enough for 9."""
    eleven = [*cohort.devices, *(SumDevice("", "", bytes([i]) * 32) for i in range(6))]
    facts = cohort.facts(use, threshold=6)
    assert not silent(cohort.ask(1, first_of(cohort.sums.terms(eleven[:9], facts, {}), 1)))
    agreed = cohort.sums.terms(eleven, cohort.facts(use, threshold=7), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert "share" in cohort.news[1][-1]


def test_heat_is_counted_so_often_over_one_version_of_the_data(cohort: Cohort) -> None:
    """The differences of counts over changing cohorts would be index sets."""
    for _ in range(3):
        agreed = cohort.sums.terms(cohort.devices, cohort.facts("heat"), {})
        assert not silent(cohort.ask(1, first_of(agreed, 1)))
    agreed = cohort.sums.terms(cohort.devices, cohort.facts("heat"), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    assert "counted 3 times" in cohort.news[1][-1]
    cohort.reload = {1: 0}  # another tab of the same device knows it, too
    agreed = cohort.sums.terms(cohort.devices, cohort.facts("heat"), {})
    assert silent(cohort.ask(1, first_of(agreed, 1)))
    union = cohort.sums.terms(cohort.devices, cohort.facts("union"), {})
    assert not silent(cohort.ask(1, first_of(union, 1)))


@pytest.mark.parametrize("use", ["union", "update"])
def test_sums_of_a_day_outlive_a_tab(script: BrowserRounds, tmp_path: Path, use: str) -> None:
    """Each sum shows a little, and the difference of two may show one device's part."""
    cohort = Cohort(script, tmp_path / "gate", sumsPerDay=2)

    def answered() -> bool:
        made = {"union": cohort.sums.terms(cohort.devices, cohort.facts("union"), {})}
        agreed = made.get(use) or update_terms(cohort)
        return not silent(cohort.ask(1, first_of(agreed, 1)))

    assert [answered() for _ in range(3)] == [True, True, False]
    assert "begun 2 private sums" in cohort.news[1][-1]
    cohort.reload = {1: 0}
    assert not answered()


def test_a_device_of_private_runs_takes_no_part_in_the_clear(script: BrowserRounds) -> None:
    """A gateway that calls its next run clear would be sent index sets and single updates."""
    given = {"ids": {"item": [1]}, "label": [1]}
    script.ask(device="once", manifest=MANIFEST, given=given)  # it registers for a private run
    script.ask(device="once", run="private")
    with pytest.raises(BrowserRefuses, match="takes part in private runs only"):
        script.ask(device="once", run="clear")
    with pytest.raises(BrowserRefuses, match="takes part in private runs only"):
        script.ask(device="never", run="clear", policy={"privateOnly": True})
    script.ask(device="never", run="clear")
