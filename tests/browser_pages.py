"""What the browser tests share: the built client, Chromium, and a page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import browser as browser
from gateway_devices import serving

from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import application

BROWSER = Path(__file__).parent.parent / "clients" / "browser"
DIST = BROWSER / "dist"


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder of the built client, which must be newer than what it is built from."""
    sources = [*BROWSER.glob("*.js"), *BROWSER.glob("src/**/*.js"), *BROWSER.glob("page/*")]
    page = DIST / "index.html"
    newest = max(path.stat().st_mtime for path in sources)
    if not page.is_file() or page.stat().st_mtime < newest:
        pytest.skip("needs the browser's client: run make browser")
    return DIST


@pytest.fixture(scope="module")
def bare_page(browser: Any, dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A page of a gateway, under its policy, that runs nothing yet; its runtime is loaded once."""
    store = GatewayStore(tmp_path_factory.mktemp("gate"))
    with serving(application(store, dist)) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}/device.css")
        yield page
        context.close()
