"""Tabs as devices: they train through a real gateway, and lose nothing when they are reloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("starlette")

from browser_federation import STORED, lines_of, served
from browser_pages import browser, dist  # noqa: F401
from deployed import simulated, task_of

from fedrows.data.federation import FederatedData
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
        assert it.fleet.last is not None and not it.fleet.last.dropped
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
