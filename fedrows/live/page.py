"""The live page as one text: the look of the reports, its own script, and the policy for both."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fedrows.report.page import content_hash, read


@cache
def page() -> str:
    """The page; style and script are inside, so it asks for nothing but its stream of events."""
    return _own("live.html").replace("/*style*/", _style()).replace("/*script*/", _script())


@cache
def policy() -> str:
    """The Content-Security-Policy: this style and this script may act, and ask this server only."""
    style, script = content_hash(_style()), content_hash(_script())
    return (
        f"default-src 'none'; style-src '{style}'; script-src '{script}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


@cache
def _style() -> str:
    return read("page.css") + _own("live.css")


@cache
def _script() -> str:
    return _own("chart.js") + _own("live.js")


def _own(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")
