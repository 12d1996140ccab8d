"""The live page as one text: the look of the reports, its own script, and the policy for both."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files


@cache
def page() -> str:
    """The page; style and script are inside, so it asks for nothing but its stream of events."""
    html = _read(__package__, "live.html")
    return html.replace("/*style*/", _style()).replace("/*script*/", _script())


@cache
def policy() -> str:
    """The Content-Security-Policy: this style and this script may act, and ask this server only."""
    return (
        f"default-src 'none'; style-src '{_hash(_style())}'; script-src '{_hash(_script())}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@cache
def _style() -> str:
    return _read("fedrows.report", "page.css") + _read(__package__, "live.css")


@cache
def _script() -> str:
    return _read(__package__, "chart.js") + _read(__package__, "live.js")


def _read(package: str | None, name: str) -> str:
    return files(package or "").joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
