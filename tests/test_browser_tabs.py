"""Tabs as devices: they train through a real gateway, and lose nothing when they are reloaded."""

from __future__ import annotations

import hashlib
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
from meddled_wire import meddled
from mixed_devices import POINTS, FragileTab

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


@pytest.mark.slow(minutes=0.5)
@pytest.mark.parametrize("algorithm", ["fedsubavg", "scaffold"])
def test_tabs_train_as_simulated_and_one_is_reloaded(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
    algorithm: str,
) -> None:
    data = films()
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=4))
    asked: list[str] = []
    config = {**CONFIG, "algorithm": algorithm}
    if algorithm != "fedsubavg":
        del config["cap"]
    with served(task, config, data, tmp_path, dist) as it:
        it.start()
        context = browser.new_context()
        context.on("request", lambda request: asked.append(request.url))
        fragile = FragileTab(it, context, 1, POINTS)
        tabs = [it.open(context, client) for client in (0, 2, 3)]
        tabs.insert(1, fragile.tab)
        errors = fragile.errors
        for tab in tabs:
            tab.on("pageerror", lambda error: errors.append(str(error)))
        while fragile.points or fragile.broken:
            assert not it.failed, it.failed
            fragile.tab.wait_for_timeout(20)
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
            keys = [int(key.rpartition("/")[2]) for key in memory]
            accepted = {x.name: x.accepted for x in it.fleet.registry.clients}
            assert accepted[name] in keys  # what the server counts on is there
            kept = tab.evaluate(STORED, [name, f"memory/{it.fleet.run}/{accepted[name]}"])["kept"]
            assert (kept is not None) == (algorithm == "scaffold")
        assert errors == []
        assert [url for url in asked if not url.startswith((it.url, "data:", "blob:"))] == []
        context.close()


@pytest.mark.slow(minutes=0.3)
def test_a_download_goes_on_at_the_byte_where_it_broke(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    """Chromium drops bytes that a page has not read before the break, so it gets a second."""
    data = films(1)
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=64))
    config = {**CONFIG, "clients-per-round": 1, "rounds": 2}
    asked: dict[str, list[int]] = {}

    def before(line: str) -> int | None:
        method, target, _ = line.split()
        if method != "GET" or "/v1/work/" not in target:
            return None
        path, offset = target.split("?offset=")
        asked.setdefault(path, []).append(int(offset))
        return {1: 700, 2: 500}.get(len(asked[path]))

    with served(task, config, data, tmp_path, dist) as it, meddled(it.url, before, 1.0) as it.url:
        it.start()
        context = browser.new_context()
        tab = it.open(context, 0, more=f"&program={'0' * 64}")  # the tab runs no other one
        tab.locator("#trouble").get_by_text("not the pinned one").wait_for(timeout=300_000)
        assert it.store.devices()[0][2] is None, "it has registered"
        [manifest] = (tmp_path / "gate" / "programs").glob("*/manifest.json")
        pinned = hashlib.sha256(manifest.read_bytes()).hexdigest()
        tab.goto(f"{it.url}/?device=device-00000&program={pinned}")
        found, wanted = it.wait(tab), simulated(it.fleet, data)
        assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-5
        context.close()
    assert len(asked) == 2
    assert all(len(offsets) == 3 for offsets in asked.values())
    assert {700, 1200} & {offset for offsets in asked.values() for offset in offsets}


@pytest.mark.slow(minutes=0.3)
def test_a_browser_without_room_shows_one_sentence_and_loses_nothing(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    """Chromium's own quota has room for the program, and none for an update of 400 kB."""
    data = films(2)
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=8192))
    config = {**CONFIG, "clients-per-round": 2, "rounds": 3}
    quota = "Storage.overrideQuotaForOrigin"
    with served(task, config, data, tmp_path, dist) as it:
        it.start()
        context = browser.new_context()
        other_context = browser.new_context()
        page = context.new_page()
        chromium = context.new_cdp_session(page)
        chromium.send(quota, {"origin": it.url, "quotaSize": 250_000})
        tab, other = it.open(context, 0, page), it.open(other_context, 1)
        tab.locator("#trouble").get_by_text("no room left").wait_for(timeout=300_000)
        assert tab.locator("#trouble").text_content().count(".") == 1
        assert tab.locator("#state").text_content() == "stopped"
        name = "device-00000"
        kept = tab.evaluate(STORED, [name, None])
        assert {"identity", "given", "program"} <= set(kept)
        assert not {"upload", "history"} & set(kept)
        chromium.send(quota, {"origin": it.url})
        tab.reload()
        found, wanted = it.wait(other), simulated(it.fleet, data)
        assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-5
        assert [line["round"] for line in lines_of(tab, name)] == [1, 2, 3]
        context.close()
        other_context.close()


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
