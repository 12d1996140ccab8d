"""The documentation site: it builds, no link is broken, every public name is in its reference."""

from __future__ import annotations

import ast
import functools
import http.server
import importlib
import inspect
import os
import re
import subprocess
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

import make_reference
import pytest
from website.public_names import CHAPTERS, NAMES

import fedrows

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def found(name: str) -> Any:
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def imported_by_the_docs() -> Iterator[tuple[str, str, Any]]:
    """What the Python of pages and notebooks takes from fedrows: page, name, thing."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    texts = [(page.name, text) for page in pages for text in BLOCK.findall(page.read_text("utf-8"))]
    for page, text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedrows"):
                for alias in node.names:
                    module = importlib.import_module(str(node.module))
                    if hasattr(module, alias.name):
                        yield page, f"{node.module}.{alias.name}", getattr(module, alias.name)


def test_every_public_name_is_in_the_reference() -> None:
    """What `fedrows` exports and what the pages import is listed, once."""
    listed = [found(name) for name in NAMES]
    assert len(set(NAMES)) == len(NAMES)
    for name in fedrows.__all__:
        assert f"fedrows.{name}" in NAMES or name == "__version__", f"public_names.py lacks {name}"
    for page, name, thing in imported_by_the_docs():
        if not isinstance(thing, types.ModuleType):
            assert any(thing is x for x in listed), (
                f"public_names.py lacks {name}: {page} imports it"
            )


@pytest.mark.parametrize("name", NAMES)
def test_public_names_have_docstrings(name: str) -> None:
    thing = found(name)
    assert make_reference.first_line(name, *make_reference.found(name))
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            plain = getattr(value, "__func__", getattr(value, "fget", value))
            if not attribute.startswith("_") and inspect.isfunction(plain):
                parents = [getattr(x, attribute, None) for x in thing.__mro__]
                assert any(x is not None and x.__doc__ for x in parents), f"{name}.{attribute}"


def test_the_overview_of_the_reference_is_current() -> None:
    page = (ROOT / "docs" / "reference.md").read_text("utf-8")
    assert page == make_reference.page(), "run python docs/make_reference.py"


class _Page(HTMLParser):
    """The links, the sources and the ids of a page, and the text of its headings of the API."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        self.ids |= {values[key] for key in ("id", "name") if key in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "canonical" not in values.get("rel", ""):
            self.loads.append(values.get("href", ""))
        elif "src" in values:
            self.loads.append(values["src"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a warning is an error."""
    pytest.importorskip("mkdocs", reason="needs mkdocs: install fedrows[docs]")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow(minutes=1)
def test_no_link_of_the_site_is_broken(site: Path) -> None:
    pages = {path: _Page(path) for path in site.rglob("*.html")}
    assert len(pages) > 60
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":
            continue  # its links begin at the root of a server
        for link in page.links + page.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not link:
                if link in page.loads and not link.startswith("data:"):
                    broken.append(f"{path.name} loads {link}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target = target / "index.html"
            if not target.exists():
                broken.append(f"{path.relative_to(site)} → {link}")
            elif target in pages and unquote(parts.fragment) not in {"", *pages[target].ids}:
                broken.append(f"{path.relative_to(site)} → {link}: no such anchor")
    assert not broken, broken[:20]


@pytest.mark.slow
def test_the_reference_has_exactly_the_public_names(site: Path) -> None:
    documented = set()
    for chapter in CHAPTERS:
        html = (site / chapter.page).with_suffix(".html").read_text("utf-8")
        headings = re.findall(r'<h2 id="([\w.]+)" class="doc doc-heading">', html)
        assert headings == list(chapter.names)
        documented |= set(headings)
    assert documented == set(NAMES)


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The site behind a server on this machine."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_site_in_a_browser(served: str, chromium: str, width: int, scheme: Any) -> None:
    """Navigation and search lead to pages, and no request fails or leaves the machine."""
    reason = "needs a browser: install playwright"
    sync_api = pytest.importorskip("playwright.sync_api", reason=reason)
    wrong: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(200_000)  # the search indexes all pages; only a failure takes this
        page.on("request", lambda x: x.url.startswith((served, "data:")) or wrong.append(x.url))
        # What the next page has cut short is no failure.
        page.on("requestfailed", lambda x: "ABORTED" in (x.failure or "") or wrong.append(x.url))
        page.on("response", lambda x: x.status >= 400 and wrong.append(f"{x.status}: {x.url}"))
        page.on("pageerror", lambda x: wrong.append(str(x)))
        page.goto(served)
        tabs = page.eval_on_selector_all(
            ".md-nav--primary .md-nav__link[href]", "all => all.map(x => x.getAttribute('href'))"
        )
        inner = [x for x in dict.fromkeys(tabs) if not x.startswith("#")]
        assert len(inner) > 40
        for link in inner[:: len(inner) // 8]:
            page.goto(urljoin(served, link))
            assert page.locator("h1").first.inner_text().strip()
            overflow = "document.documentElement.scrollWidth - window.innerWidth"
            assert page.evaluate(overflow) <= 0, f"{link} is wider than the window"
        page.goto(served)
        colour = page.evaluate("document.body.dataset.mdColorScheme")
        assert colour == {"light": "default", "dark": "slate"}[scheme]
        if width < 600:
            page.locator("label.md-header__button[for=__search]").click()
        found = page.locator("a.md-search-result__link").first
        for _ in range(10):  # the theme does not hear what is typed before its script listens
            page.locator("input.md-search__input").fill("")
            page.locator("input.md-search__input").fill("FederatedData")
            with suppress(sync_api.TimeoutError):
                found.wait_for(timeout=20_000)
                break
        found.click()
        page.wait_for_function("location.pathname != '/' ")
        browser.close()
    assert not wrong, wrong
