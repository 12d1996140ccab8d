"""Writes docs/reference.md: every public name with the first line of its docstring.

python docs/make_reference.py
"""

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from website.public_names import CHAPTERS

ROOT = Path(__file__).parent.parent
HEAD = """# API reference

These are the public names of fedrows, each with the first line of its docstring. On the
documentation site a name leads to its signature, its options and its whole docstring; `make docs`
builds that site. In the repository a name leads to the file that defines it. Names that are not on
this page may change without notice.

`python docs/make_reference.py` writes this page, from the list in `docs/website/public_names.py`
and the docstrings.
"""


def found(name: str) -> tuple[Any, str]:
    """What a public name stands for, and the module that defines it."""
    module, _, last = name.rpartition(".")
    thing = getattr(importlib.import_module(module), last)
    home = getattr(thing, "__module__", module) if callable(thing) else module
    return thing, home if str(home).startswith("fedrows") else module


def first_line(name: str, thing: Any, home: str) -> str:
    """The first paragraph of a docstring, or the comment behind a constant."""
    if (inspect.isclass(thing) or inspect.isroutine(thing)) and thing.__module__ == home:
        text = (inspect.getdoc(thing) or "").split("\n\n")[0]
    else:
        source = Path(str(importlib.import_module(home).__file__)).read_text("utf-8")
        line = re.search(rf"^{name.rpartition('.')[2]}\b.* = .*# (.*)$", source, re.MULTILINE)
        text = "" if line is None else line[1]
    return " ".join(text.split()).replace("|", "\\|")


def page() -> str:
    parts = [HEAD]
    for chapter in CHAPTERS:
        lines = [f"## {chapter.title}\n\n{chapter.summary}\n\n| name | in one line |\n|---|---|"]
        for name in chapter.names:
            thing, home = found(name)
            file = Path(str(importlib.import_module(home).__file__)).relative_to(ROOT)
            lines.append(f"| [`{name}`](../{file.as_posix()}) | {first_line(name, thing, home)} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "reference.md").write_text(page(), "utf-8")
