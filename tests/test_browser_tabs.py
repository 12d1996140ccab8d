"""Tabs as devices: they train through a real gateway, and lose nothing when they are reloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from browser_federation import STORED, lines_of, served
from browser_pages import browser, dist  # noqa: F401
from deployed import simulated, task_of
from gateway_devices import serving

from fedrows.data.federation import FederatedData
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import application
from fedrows.models import mf

CONFIG: dict[str, Any] = {
    "rounds": 6, "clients-per-round": 4, "lr": 0.5, "seed": 3, "local-steps": 5, "batch-size": 4,
    "row-clip": "", "weight-quantile": "", "cap": "", "algorithm": "fedsubavg", "timeout": 60.0,
}  # fmt: skip


def films(clients: int = 4) -> FederatedData:
    """Users and films; a user's row stays in its tab."""
    draw, client = np.random.default_rng(1), np.repeat(np.arange(clients), 12)
    return FederatedData.build(
        client=client,
        ids={"user": client, "item": draw.integers(0, 40, len(client))},
        label=draw.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"user": clients, "item": 40},
        local=["user"],
        target=("item", None),
    )


class Fragile:
    """A tab that is reloaded once at each of the points where most could be lost."""

    def __init__(self, tab: Any) -> None:
        self.tab, self.broken = tab, False
        self.points = ["before the rows come", "before the update goes", "before it hears of it"]
        tab.route("**/v1/work/*", self._pass)

    def _pass(self, route: Any) -> None:
        point, method = self.points[0] if self.points else "", route.request.method
        if not point or self.broken or method != ("GET" if "rows" in point else "PUT"):
            route.continue_()
            return
        if "hears" in point:
            assert route.fetch().json()["state"] == "taken"
        self.points.pop(0)
        self.broken = True  # the request is never answered: the tab goes away meanwhile

    def reload(self) -> None:
        """Reloads the tab if it has come to such a point."""
        if self.broken:
            self.tab.reload()
            self.broken = False


@pytest.mark.slow(minutes=0.5)
def test_tabs_train_as_simulated_and_one_is_reloaded(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    data = films()
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=4))
    asked: list[str] = []
    with served(task, CONFIG, data, tmp_path, dist) as it:
        it.start()
        context = browser.new_context()
        context.on("request", lambda request: asked.append(request.url))
        tabs = [it.open(context, client) for client in range(data.clients)]
        errors: list[str] = []
        for tab in tabs:
            tab.on("pageerror", lambda error: errors.append(str(error)))
        fragile = Fragile(tabs[1])
        while fragile.points or fragile.broken:
            assert not it.failed, it.failed
            tabs[1].wait_for_timeout(20)
            fragile.reload()
        found = it.wait(tabs[0])
        wanted = simulated(it.fleet, data)
        assert it.fleet.last is not None
        assert not it.fleet.last.dropped
        assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-5
        start = it.fleet.contract.model(data).start().tables["item"]
        assert float((wanted.tables["item"] - start).abs().max()) > 0.01
        for client, tab in enumerate(tabs):
            name = f"device-{client:05d}"
            rounds = [line["round"] for line in lines_of(tab, name)]
            assert rounds == list(range(1, 7))
            memory = [key for key in tab.evaluate(STORED, [name, None]) if "memory/" in key]
            assert len(memory) in (1, 2)
        assert errors == []
        assert [url for url in asked if not url.startswith((it.url, "data:", "blob:"))] == []
        context.close()


@pytest.mark.slow(minutes=0.3)
def test_a_full_disk_is_one_sentence_and_loses_nothing(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    """The update that cannot be stored is not sent; with room again, the tab goes on by itself."""
    data = films(2)
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=4))
    config = {**CONFIG, "clients-per-round": 2, "rounds": 3}
    with served(task, config, data, tmp_path, dist) as it:
        it.start()
        context = browser.new_context()
        full = context.new_page()
        full.add_init_script(FULL)
        tab = it.open(context, 0, full)
        other = it.open(context, 1)
        tab.locator("#trouble").get_by_text("no room left").wait_for(timeout=60_000)
        assert tab.locator("#trouble").text_content().count(".") == 1
        assert tab.locator("#state").text_content() == "stopped"
        name = "device-00000"
        kept = tab.evaluate(STORED, [name, None])
        assert {"identity", "given", "program"} <= set(kept)
        assert not {"upload", "history"} & set(kept)
        tab.evaluate("sessionStorage.room = 1")
        tab.reload()
        found, wanted = it.wait(other), simulated(it.fleet, data)
        assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-5
        assert [line["round"] for line in lines_of(tab, name)] == [1, 2, 3]
        context.close()


# What a browser without room does: the write of an update fails, and so does its transaction.
FULL = """
const put = IDBObjectStore.prototype.put;
IDBObjectStore.prototype.put = function (thing, name) {
  if (name === "upload" && !sessionStorage.room) {
    throw new DOMException("no room", "QuotaExceededError");
  }
  return put.call(this, thing, name);
};
"""


@pytest.mark.slow(minutes=0.2)
def test_a_page_of_elsewhere_gets_nothing(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    data = films(2)
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=4))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "index.html").write_text("<!doctype html><title>elsewhere</title>")
    store = GatewayStore(tmp_path / "other")
    with (
        served(task, CONFIG, data, tmp_path, dist) as it,
        serving(application(store, elsewhere)) as address,
    ):
        context = browser.new_context()
        page = context.new_page()
        page.route(  # a page that lets itself ask anybody
            f"{address}/",
            lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"),
        )
        page.goto(f"{address}/")
        token = it.store.make_token()
        body = {"token": token, "key": "ab" * 32}
        for path, how in (
            ("/v1/enrol", {"method": "POST", "body": json.dumps(body)}),
            ("/v1/check-in", {"method": "POST"}),
            ("/v1/program", {}),
            ("/", {}),
            ("/device.js", {}),
        ):
            for mode in ("cors", "no-cors"):
                read = page.evaluate(READ, [it.url + path, {**how, "mode": mode}])
                assert read in ("failed", ""), (path, mode)
        assert it.store.enrol(token, b"k" * 32, None).name  # nobody has used it
        page.evaluate(FRAMED, it.url)
        inside = [frame.url for frame in page.frames if frame != page.main_frame]
        assert inside == ["chrome-error://chromewebdata/"], "the gateway's page is in a frame"
        context.close()


READ = """async ([url, how]) => {
  try { return await (await fetch(url, how)).text(); } catch { return "failed"; }
}"""
FRAMED = """(url) => new Promise((resolve) => {
  const frame = document.createElement("iframe");
  frame.src = url;
  frame.onload = () => resolve();
  document.body.append(frame);
})"""
