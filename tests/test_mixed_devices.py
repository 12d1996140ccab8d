"""Tabs, processes and threads behind one gateway: reloaded, closed or killed, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from browser_federation import served
from browser_pages import browser, dist  # noqa: F401
from deployed import simulated, task_of
from mixed_devices import mixed_run
from test_browser_tabs import CONFIG, films

from fedrows.models import mf


@pytest.mark.slow(minutes=0.5)
def test_devices_of_all_kinds_lose_nothing(
    tmp_path: Path,
    browser: Any,  # noqa: F811
    dist: Path,  # noqa: F811
) -> None:
    data = films(7)
    task = task_of(data, lambda data, seed: mf.build(data, seed, factors=4))
    config = {**CONFIG, "clients-per-round": 7, "min-answers": 7}
    with served(task, config, data, tmp_path, dist) as it:
        happened = mixed_run(it, browser, tabs=2, processes=2)
        [found], wanted = it.found, simulated(it.fleet, data)
        assert it.fleet.last is not None
        assert (it.fleet.last.round, it.fleet.last.tries) == (6, 1)
        assert not it.fleet.last.dropped
        assert not it.fleet.rejected
    assert float((found.params.tables["item"] - wanted.tables["item"]).abs().max()) < 1e-5
    assert happened["tabs reloaded"] == 3
    assert happened["tabs closed and opened again"] == 1
    assert happened["processes killed"] == 6
