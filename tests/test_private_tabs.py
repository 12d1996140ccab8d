"""Tabs in a private run: their masks are made in Chromium, and the model is the simulation's."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography")
pytest.importorskip("starlette")

from browser_federation import STORED, Served, lines_of
from browser_pages import browser, dist  # noqa: F401
from deployed import simulated
from private_devices import private_run
from test_browser_tabs import CONFIG, films

from fedrows.flower.gateway.web import GatewayLimits
from fedrows.flower.gateway.work import NewWork, WorkStore
from fedrows.flower.wire.message import Message, pack
from fedrows.models import mf

PRIVATE: dict[str, Any] = CONFIG | {
    "privacy": "index", "index-epsilon": "", "index-epsilon-for-ever": "", "min-contributors": 1,
    "rounds": 2, "clients-per-round": 8,
}  # fmt: skip
PRIVATE = {name: x for name, x in PRIVATE.items() if name not in ("row-clip", "weight-quantile")}


@pytest.mark.slow(minutes=0.5)
def test_tabs_in_a_private_run_train_as_simulated(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    data = films(8)

    def model(data: Any, seed: int) -> Any:
        return mf.build(data, seed, factors=4)

    limits = GatewayLimits(after=0.05)
    with private_run(data, PRIVATE, tmp_path, 5, model=model, page=dist, limits=limits) as it:
        run = Served(it.url, it.store, it.fleet, it.shard, tmp_path)
        context = browser.new_context()
        errors: list[str] = []
        tabs = [run.open(context, client, more="&contributors=1") for client in range(5)]
        for tab in tabs:
            tab.on("pageerror", lambda error: errors.append(str(error)))
        run.data = data
        run.start()
        found, wanted = run.wait(tabs[0]), simulated(it.fleet, data)
        assert errors == []
        assert [tab.locator("#trouble").text_content() for tab in tabs] == [""] * 5
        assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 2e-5
        assert float(wanted.tables["item"].abs().max()) > 0.01
        for client, tab in enumerate(tabs):
            name = f"device-{client:05d}"
            assert [line["round"] for line in lines_of(tab, name)] == [1, 2]
            key = tab.evaluate(STORED, [name, "signing"])
            assert key["public"]
        # A gateway that asks for work in the clear, in a run that it called private, gets none.
        program = it.store.fact("program")
        first = it.store.registered(program)[0]
        facts = {"run": "0" * 16, "program": program, "registration": first.version, "tag": 1}
        work = NewWork(first.device, "{}", pack(Message("work", facts, {})))
        WorkStore(it.store).put("0" * 16, 1, time.time() + 60, [work])
        tabs[0].locator("#trouble").get_by_text("another kind of work").wait_for(timeout=60_000)
        context.close()
