"""Writes the map in docs/architecture.md, and docs/files.md, from the code of fedrows/.

    python docs/make_architecture.py

The map is made from imports and docstrings. Only what stands between the two markers of its page is
written: the walks below are written by hand. tests/test_architecture_page.py holds all to the code.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path

from import_graph import LAYERS, ROOT, between_units, imports, modules, unit
from page_parts import filled

PAGE = ROOT / "docs" / "architecture.md"
LIST = ROOT / "docs" / "files.md"
INTRODUCTION = """# All files

Every file of `fedrows/`, with the first line of its docstring. The packages are in the order of
[the map](architecture.md#the-map), the highest first.
[Contributing](../CONTRIBUTING.md#where-things-go) says where new code belongs.
`docs/make_architecture.py` writes this page.
"""


def main(page: Path) -> None:
    """Rewrites the map of a page."""
    page.write_text(filled(page, page.read_text("utf-8"), {"map": f"{drawn()}\n"}), "utf-8")


def drawn() -> str:
    """Returns the layers as a drawing, the top one first, and a table of what is in each."""
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
    head = ["| package or module | what is inside | imports |", "|---|---|---|"]
    return "\n".join(["```", *drawing, "```", "", *head, *table])


def listed() -> str:
    """Returns the page that names every file: those at the top, then a table for each package."""
    files = modules()
    top = {name: path for name, path in files.items() if path.parent == ROOT / "fedrows"}
    page = [INTRODUCTION, "## At the top\n", *table_of(top)]
    for package in reversed([name for _, names in LAYERS for name in names if name not in top]):
        inside = {
            module: path
            for module, path in files.items()
            if unit(module, files) == package and path.name != "__init__.py"
        }
        page += [f"## {package}\n", f"{first_line(files[package])}.\n", *table_of(inside)]
    return "\n".join(page)


def table_of(files: Mapping[str, Path]) -> list[str]:
    """Returns a table of some files."""
    lines = [
        f"| [`{path.name}`](../{path.relative_to(ROOT).as_posix()}) | {first_line(path)} |"
        for _, path in sorted(files.items())
    ]
    return ["| file | what it has |", "|---|---|", *lines, ""]


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
    main(PAGE)
    LIST.write_text(listed(), "utf-8")
