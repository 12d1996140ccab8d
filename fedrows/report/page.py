"""Builds a page in one file: style, script and data inside, and a policy that lets no other act.

Every page extends `page.html` and shares `page.css` and `page.js`: the report of a run, a study and
the paper.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup


def build(template: str, figures_json: str, runs_json: str = "[]", **values: Any) -> str:
    """The page as text; every value is escaped, and the style and script are named by hash."""
    environment = Environment(
        loader=FunctionLoader(read),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    css, script = read("page.css"), read("page.js")
    return environment.get_template(template).render(
        css=Markup(css),
        script=Markup(script),
        css_hash=content_hash(css),
        script_hash=content_hash(script),
        figures_json=Markup(figures_json),
        runs_json=Markup(runs_json),
        **values,
    )


def read(name: str) -> str:
    """A file beside this one, as text: a template, the style sheet or the script."""
    return files(__package__).joinpath(name).read_text("utf-8")


def content_hash(text: str) -> str:
    """The text's hash for the Content-Security-Policy: this style and script may act, no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
