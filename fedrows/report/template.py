"""A page in one file: its style and its script inside, and a policy that lets nothing else act."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup


def fill(page: str, css: str, script: str, **values: Any) -> str:
    """The page as text; every value is escaped, and the style and script are named by hash."""
    environment = Environment(
        loader=BaseLoader(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.from_string(page).render(
        css=Markup(css),
        script=Markup(script),
        css_hash=_hash(css),
        script_hash=_hash(script),
        **values,
    )


def read(name: str, package: str = __package__) -> str:
    """A file of a package, as text: a template, a style sheet or a script."""
    return files(package).joinpath(name).read_text("utf-8")


def _hash(text: str) -> str:
    """The text's hash for the Content-Security-Policy: this style and script may act, no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
