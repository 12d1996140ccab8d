"""The imports of fedrows/, read from its files, and the stated order of its layers.

docs/make_architecture.py draws them; tests/test_architecture.py holds the code to them. Nothing is
imported here: the files are parsed, so an import inside a function or under TYPE_CHECKING counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent

# From the bottom to the top. A unit is a package or a module at the top of fedrows/. It may import
# only units that are named before it, in its own row or in a row above it in this list.
LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("used everywhere", ("version", "errors", "options", "files", "seeds", "plan")),
    ("rows and tables", ("rows", "tables")),
    ("one federation", ("data", "data.stored")),
    ("one client", ("nn.kernels", "nn", "model", "algorithm", "optimizers", "client", "lifting")),
    ("one file per name", ("task", "algorithms", "models", "datasets", "catalogue")),
    ("the round", ("fleet", "robust", "server")),
    ("simulated clients", ("simulator",)),
    ("measuring a model", ("measure",)),
    ("privacy", ("privacy", "privacy.mechanisms")),
    ("one run", ("watch", "watch.writers", "simulation", "runs", "device", "report", "serving")),
    ("many runs", ("study", "notebook", "tuning", "paper.theory", "paper", "live")),
    ("a real network", ("flower.wire", "flower.node", "flower.server", "flower.launch")),
    ("devices, and both apps", ("flower.gateway", "flower")),
    ("the command line", ("cli", "__main__")),
)
ORDER = [unit for _, units in LAYERS for unit in units]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Returns the file of every module by its dotted name, without the leading `fedrows.`.

    The facade `fedrows/__init__.py` is left out: it may point anywhere, and nothing inside imports
    it. So is the project that `fedrows init` copies: it is a user's code.
    """
    package = root / "fedrows"
    paths = (path.relative_to(package) for path in sorted(package.rglob("*.py")))
    return {
        ".".join(path.with_suffix("").parts).removesuffix(".__init__"): package / path
        for path in paths
        if path != Path("__init__.py") and path.parts[:2] != ("cli", "project")
    }


def unit(module: str, files: Mapping[str, Path]) -> str:
    """Returns the package that a module is in, or the module itself where it is at the top."""
    if "." not in module or files[module].name == "__init__.py":
        return module
    return module.rpartition(".")[0]


def named(path: Path, package: str) -> Iterator[str]:
    """Yields what a file imports, absolute and dotted: `from a.b import c` gives `a.b.c`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            prefix = ".".join(parts) + "." if node.level else ""
            home = (prefix + (node.module or "")).strip(".")
            yield from (f"{home}.{alias.name}" for alias in node.names)


def imports(files: Mapping[str, Path]) -> dict[str, set[str]]:
    """Returns which modules each module imports; the facade is the module ''."""
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        is_package = path.name == "__init__.py"
        package = "fedrows." + (module if is_package else module.rpartition(".")[0])
        graph[module] = set()
        for name in named(path, package.strip(".")):
            if name.split(".")[0] != "fedrows":
                continue
            inside = name.removeprefix("fedrows").removeprefix(".")
            while inside and inside not in files:  # the name of a function or class in a module
                inside = inside.rpartition(".")[0]
            graph[module].add(inside)
    return graph


def between_units(
    graph: Mapping[str, Iterable[str]], files: Mapping[str, Path]
) -> dict[str, set[str]]:
    """Returns which units each unit imports."""
    units: dict[str, set[str]] = {unit(module, files): set() for module in graph}
    for module, imported in graph.items():
        here = unit(module, files)
        units[here] |= {there for name in imported if name and (there := unit(name, files)) != here}
    return units


def in_cycles(graph: Mapping[str, Iterable[str]]) -> list[tuple[str, str]]:
    """Returns the imports that are part of a cycle, sorted."""
    reach = {start: _reached(start, graph) for start in graph}
    return sorted(
        (start, end) for start in graph for end in graph[start] if start in reach.get(end, ())
    )


def _reached(start: str, graph: Mapping[str, Iterable[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for end in graph.get(ahead.pop(), ()):
            if end not in seen:
                seen.add(end)
                ahead.append(end)
    return seen
