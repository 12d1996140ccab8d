"""Writes the map in docs/architecture.md from the imports and docstrings of fedrows/.

    python docs/make_architecture.py

Only what stands between the two markers of the page is written. The walks below it are written by
hand, and tests/test_architecture_page.py holds them to the code.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

from import_graph import LAYERS, ROOT, between_units, imports, modules

BEGIN, END = "<!-- map: begin -->", "<!-- map: end -->"
PAGE = ROOT / "docs" / "architecture.md"


def main(page: Path) -> None:
    """Rewrites the map of a page."""
    before, begin, rest = page.read_text("utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the line {BEGIN} or {END}: put both lines back.")
    page.write_text(f"{before}{BEGIN}\n{drawn()}\n{END}{after}", "utf-8")


def drawn() -> str:
    """Returns the layers as a drawing, the top one first, and a table of what is in each room."""
    files = modules()
    units = between_units(imports(files), files)
    needs = {name: sorted(direct(name, units)) for name in units}
    there = [(title, [name for name in names if name in units]) for title, names in LAYERS]
    wide = max(len(title) for title, _ in there)
    drawing = [f"{title:{wide}}   {'  '.join(names)}" for title, names in reversed(there) if names]
    table = [
        f"| `{where(name, files)}` | {first_line(files[name])} | {' '.join(needs[name])} |"
        for _, names in reversed(there)
        for name in reversed(names)
    ]
    head = ["| room | what is inside | stands on |", "|---|---|---|"]
    return "\n".join(["```", *drawing, "```", "", *head, *table])


def direct(name: str, units: Mapping[str, set[str]]) -> set[str]:
    """Returns what a unit imports, without what those units stand on themselves."""
    below: set[str] = set()
    for imported in units[name]:
        below |= reached(imported, units)
    return units[name] - below


def reached(name: str, units: Mapping[str, set[str]]) -> set[str]:
    """Returns everything that a unit stands on."""
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        new = units[ahead.pop()] - seen
        seen |= new
        ahead.extend(new)
    return seen


def where(name: str, files: Mapping[str, Path]) -> str:
    """Returns the path of a package or module, as one types it from fedrows/."""
    return name.replace(".", "/") + ("/" if files[name].name == "__init__.py" else ".py")


def first_line(path: Path) -> str:
    """Returns the first line of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return text.split("\n")[0].rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]) if sys.argv[1:] else [PAGE])
