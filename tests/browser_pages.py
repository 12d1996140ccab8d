"""What the browser tests share: the built client, Chromium, and a page that sees only files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = Path(__file__).parent.parent / "clients" / "browser"
DIST = BROWSER / "dist"
TYPES = {".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html"}


@pytest.fixture(scope="session")
def dist() -> Path:
    """The folder of the built client, which must be newer than what it is built from."""
    sources = [*BROWSER.glob("*.js"), *BROWSER.glob("src/*"), *BROWSER.glob("page/*")]
    page = DIST / "index.html"
    newest = max(path.stat().st_mtime for path in sources)
    if not page.is_file() or page.stat().st_mtime < newest:
        pytest.skip("needs the browser's client: run make browser")
    return DIST


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """The system's Chromium."""
    reason = "needs a browser: install playwright"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def bare_page(browser: Any, dist: Path) -> Iterator[Any]:
    """A page of the client's own origin, without a server: it reads the built files, no others."""
    context = browser.new_context()
    page = context.new_page()

    def answer(route: Any) -> None:
        path = dist / (route.request.url.removeprefix("http://localhost/") or "index.html")
        if path.name == "empty.html":
            route.fulfill(body="<!doctype html><title>empty</title>", content_type="text/html")
        elif path.is_file():
            route.fulfill(path=path, content_type=TYPES.get(path.suffix))
        else:
            route.abort()

    page.route("**/*", answer)
    page.goto("http://localhost/empty.html")
    yield page
    context.close()
