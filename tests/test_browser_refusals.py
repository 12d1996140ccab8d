"""What a tab shows if its gateway, clock, key or program is wrong; nothing is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("starlette")

import device_programs
from browser_pages import browser, dist  # noqa: F401
from gateway_devices import GENEROUS, serving

from fedrows.flower.gateway.forms import RegistrationForm, UploadForm
from fedrows.flower.gateway.programs import Programs
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import application
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.message import Message, pack

RUN, TAG = "0" * 16, (3 << 31) + 1
IDS = {"item": [4, 9, 4], "user": [3, 3, 3]}
ALL = """(name) => new Promise((resolve) => {
  const plain = (_, x) => ArrayBuffer.isView(x) ? [...x] : x;
  const opening = indexedDB.open(`fedrows device ${name}`);
  opening.onsuccess = () => {
    const store = opening.result.transaction("things").objectStore("things"), found = {};
    store.openCursor().onsuccess = ({target: {result: at}}) => {
      if (!at) { opening.result.close(); resolve(found); return; }
      found[at.key] = JSON.stringify(at.value, plain);
      at.continue();
    };
  };
})"""

GIVE = """([name, given]) => new Promise((resolve) => {
  const opening = indexedDB.open(`fedrows device ${name}`);
  opening.onsuccess = () => {
    const change = opening.result.transaction("things", "readwrite");
    change.objectStore("things").put(given, "given");
    change.oncomplete = () => { opening.result.close(); resolve(); };
  };
})"""


class Tab:
    """A device in a tab, enrolled at a gateway whose federation has begun no run."""

    def __init__(self, url: str, store: GatewayStore, page: Any, folder: Path) -> None:
        self.url, self.store, self.page = url, store, page
        self.programs, self.work = Programs(store), WorkStore(store)
        self.made = device_programs.program(device_programs.factors())
        examples = folder / "examples.json"
        examples.write_text(json.dumps({"ids": IDS, "label": [1, 0, 1]}))
        page.goto(f"{url}/?device=tablet")
        page.locator("#token").fill(store.make_token())
        page.locator("#file").set_input_files(examples)
        page.get_by_role("button", name="Take part").click()
        page.locator("#enrol").wait_for(state="hidden")

    def says(self, words: str) -> None:
        """Waits for a message of one sentence that has these words."""
        self.page.locator("#trouble").get_by_text(words).wait_for()
        text = self.page.locator("#trouble").text_content()
        assert text.count(". ") == 0, text
        assert text.endswith("."), text

    def stops(self, words: str) -> None:
        """Waits until the tab has stopped with this message."""
        self.says(words)
        assert self.page.locator("#state").text_content() == "stopped"

    def kept(self) -> dict[str, str]:
        """All that is stored."""
        return self.page.evaluate(ALL, "tablet")

    def publish(self, folder: Path, id_: str, **change: Any) -> None:
        """Makes a program the present one."""
        manifest = {**self.made.manifest, **change}
        type(self.made)(self.made.step, manifest, self.made.more).save(folder / id_)
        self.programs.add(id_, folder / id_)
        self.programs.publish(id_, RegistrationForm({"item": device_programs.ITEMS}, 100))

    def registered(self, id_: str) -> str:
        """The registration of the tab for a program, once it has come."""
        until = time.monotonic() + 60
        while not (found := self.store.registered(id_)):
            assert time.monotonic() < until
            self.page.wait_for_timeout(50)
        return found[0].version

    def offer(self, facts: dict[str, Any], parts: dict[str, bytes]) -> str:
        """Leaves work for the tab; returns its id."""
        form = UploadForm(TAG, {"item": 2}, {"item": 5}, {"bias": []}, [], False, 50, None)
        work = pack(Message("work", facts, parts))
        [device] = [one.device for one in self.store.registered(facts["program"])]
        [id_] = self.work.put(RUN, TAG, time.time() + 60, [NewWork(device, form.text(), work)])
        return id_


@pytest.fixture
def tab(browser: Any, dist: Path, tmp_path: Path) -> Iterator[Tab]:  # noqa: F811
    store = GatewayStore(tmp_path / "gate")
    with serving(application(store, dist, limits=GENEROUS)) as url:
        context = browser.new_context()
        yield Tab(url, store, context.new_page(), tmp_path)
        context.close()


@pytest.mark.slow(minutes=0.2)
def test_a_gateway_without_a_federation_is_waited_for(tab: Tab, tmp_path: Path) -> None:
    tab.says("has no program yet, because its federation has begun no run")
    assert tab.kept().keys() == {"identity", "given"}
    tab.publish(tmp_path, "a" * 32)
    tab.registered("a" * 32)
    tab.page.locator("#trouble").wait_for(state="hidden")


@pytest.mark.slow(minutes=0.2)
def test_a_wrong_clock_or_key_costs_nothing(tab: Tab) -> None:
    tab.says("has begun no run")
    before, page = tab.kept(), tab.page
    for off, words in ((4000, "s ahead of the gateway's"), (-4000, "s behind the gateway's")):
        page.clock.set_fixed_time(time.time() + off)
        page.reload()
        tab.stops(words)
        assert tab.kept() == before
    page.clock.set_fixed_time(time.time())
    page.reload()
    tab.says("has begun no run")
    with tab.store.change() as database:
        [(key,)] = database.execute("SELECT key FROM devices").fetchall()
        database.execute("UPDATE devices SET key = ?", [b"k" * 32])
    page.reload()
    tab.stops("The signature is not that of this device's key")
    with tab.store.change() as database:
        database.execute("UPDATE devices SET key = ?", [key])
    page.reload()
    tab.says("has begun no run")
    tab.store.remove_device("tablet")
    page.reload()
    tab.stops("This gateway does not know the device")
    assert tab.kept() == before


@pytest.mark.slow(minutes=0.3)
def test_programs_of_another_version_or_damaged_are_not_used(
    tab: Tab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab.publish(tmp_path, "a" * 32)
    tab.registered("a" * 32)
    before = tab.kept()
    tab.publish(tmp_path, "b" * 32, format=9)
    tab.stops("has format 9, but this page reads 1")
    tab.publish(tmp_path, "c" * 32, step={**tab.made.manifest["step"], "sha256": "0" * 64})
    tab.page.reload()
    tab.stops("step.onnx is not the one that the manifest names")
    tables = json.loads(json.dumps(tab.made.manifest["tables"]))
    tables["user"]["start"]["sha256"] = "0" * 64
    tab.publish(tmp_path, "d" * 32, tables=tables)
    tab.page.reload()
    tab.stops("start-0.f32 is not the one that the manifest names")
    honest = Programs.files

    def of_another(self: Programs, id_: str) -> Any:
        files = honest(self, id_)
        return {**files, "step.onnx": {**files["step.onnx"], "sha256": "0" * 64}}

    monkeypatch.setattr(Programs, "files", of_another)
    tab.publish(tmp_path, "e" * 32)
    tab.page.reload()
    tab.stops("The file step.onnx of the program is not what its sum says")
    assert tab.kept() == before
    tab.programs.publish("a" * 32, RegistrationForm({"item": device_programs.ITEMS}, 100))
    tab.page.reload()
    tab.page.locator("#state").get_by_text("waiting").wait_for()


@pytest.mark.slow(minutes=0.2)
def test_examples_that_do_not_fit_may_be_given_anew(tab: Tab, tmp_path: Path) -> None:
    """What is wrong shows when the gateway has a program; the device stays enrolled."""
    page = tab.page
    lies: list[tuple[dict[str, Any], list[Any], str]] = [
        ({"item": [4]}, [1], "have 0 entries of user and 1 labels"),
        ({**IDS, "item": [4, 9]}, [1, 0, 1], "have 2 entries of item and 3 labels"),
        ({**IDS, "item": [4, "nine", 4]}, [1, 0, 1], 'have the entry "nine" of item'),
        ({**IDS, "item": [4, 4000, 4]}, [1, 0, 1], "have ids of item outside of its 40 rows"),
        ({**IDS, "item": [4, -1, 4]}, [1, 0, 1], "have ids of item outside of its 40 rows"),
        (IDS, [1, None, 1], "need at least one example, and a number as the label of each"),
        ({"item": [], "user": []}, [], "need at least one example"),
    ]
    file = tmp_path / "other.json"
    page.evaluate(GIVE, ["tablet", {"ids": {"item": [4]}, "label": [1], "made": "other"}])
    tab.publish(tmp_path, "a" * 32)
    for ids, label, words in lies:
        file.write_text(json.dumps({"ids": ids, "label": label}))
        if words != lies[0][2]:
            page.locator("#file").set_input_files(file)
            page.get_by_role("button", name="Take part").click()
        page.locator("#trouble").get_by_text(words).wait_for()
        assert page.locator("#token").is_hidden()
        assert tab.store.count_registered("a" * 32) == 0
    page.locator("#file").set_input_files(tmp_path / "examples.json")
    page.get_by_role("button", name="Take part").click()
    tab.registered("a" * 32)
    page.locator("#enrol").wait_for(state="hidden")
    page.locator("#trouble").wait_for(state="hidden")
    assert [name for name, _, _ in tab.store.devices()] == ["tablet"]


@pytest.mark.slow(minutes=0.3)
def test_work_that_makes_no_sense_is_not_done(tab: Tab, tmp_path: Path) -> None:
    tab.publish(tmp_path, "a" * 32)
    facts = {"run": RUN, "program": "a" * 32, "registration": tab.registered("a" * 32)}
    facts |= {"tag": TAG, "accepted": 0, "round": 3, "number": 1, "lr": 0.1}
    rows, bias = np.full((2, 5), 0.25, "<f4"), np.zeros(1, "<f4")
    parts = {"model/item": rows.tobytes(), "model.bias": bias.tobytes()}
    odd = rows.copy()
    odd[1, 2] = np.nan
    lies: list[tuple[dict[str, Any], dict[str, bytes], str]] = [
        ({}, {"model/item": odd.tobytes()}, "number of model/item that is not finite"),
        ({}, {"model.bias": np.full(1, np.inf, "<f4").tobytes()}, "bias that is not finite"),
        ({}, {"model/item": rows[:1].tobytes()}, "The gateway sent 20 bytes of model/item, not 40"),
        ({"lr": "fast"}, {}, "The gateway's work does not say what it is for"),
        ({"round": "3"}, {}, "The gateway's work does not say what it is for"),
        ({"tag": None}, {}, "The gateway's work does not say what it is for"),
    ]
    tab.page.locator("#state").get_by_text("waiting").wait_for()
    before = tab.kept()
    for changed, other, words in lies:
        tab.offer({**facts, **changed}, {**parts, **other})
        tab.stops(words)
        assert tab.kept() == before
        tab.work.collect(TAG)
        tab.page.reload()
        tab.page.locator("#state").get_by_text("waiting").wait_for()
    # A rate at which numbers end as infinite: the gateway refuses them, and the tab keeps none.
    tab.offer({**facts, "lr": 1e308}, parts)
    tab.says("The upload is refused: Numbers came that are not all finite")
    assert not [name for name in tab.kept() if name.startswith("memory/")]
    tab.work.collect(TAG)
    id_ = tab.offer(facts, parts)
    until = time.monotonic() + 60
    while tab.work.open_count(TAG):
        assert time.monotonic() < until
        tab.page.wait_for_timeout(50)
    assert tab.work.collect(TAG).keys() == {id_}
    assert f"memory/{RUN}/{TAG}" in tab.kept()
