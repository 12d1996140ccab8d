"""The house: imports point one way, and a name, a file and a room have one meaning each."""

import ast
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from import_graph import ORDER, between_units, imports, in_cycles, modules, named, unit

ROOT = Path(__file__).parent.parent
FILES = modules()
GRAPH = imports(FILES)
UNITS = between_units(GRAPH, FILES)
TRANSPORTS = {"flwr", "grpc", "http", "httpx", "requests", "socket", "ssl", "starlette", "urllib"}

# What does not hold yet. Nothing may be added; an entry that holds again goes.
KNOWN: set[str] = {
    "long: tests/test_paper_theory.py",
}


def check(offences: Iterable[tuple[str, str]], kind: str) -> None:
    """Fails on an offence that is not known."""
    where = defaultdict(list)
    for offence, file in offences:
        where[f"{kind}: {offence}"].append(file)
    new = [f"{line} ({', '.join(files)})" for line, files in where.items() if line not in KNOWN]
    assert not new, "\n".join(new)


def test_no_cycle_between_modules() -> None:
    check(((f"{a} -> {b}", a) for a, b in in_cycles(GRAPH)), "module cycle")


def test_no_cycle_between_packages() -> None:
    check(((f"{a} -> {b}", a) for a, b in in_cycles(UNITS)), "package cycle")


def test_every_unit_has_its_layer() -> None:
    missing = sorted(set(UNITS) - set(ORDER))
    assert missing == [], "name its layer in docs/import_graph.py"


def test_every_import_points_down() -> None:
    level = {name: index for index, name in enumerate(ORDER)}
    upward = (
        (f"{unit(module, FILES)} -> {unit(name, FILES)}", f"{module} imports {name}")
        for module, imported in GRAPH.items()
        for name in imported
        if name and level[unit(name, FILES)] > level[unit(module, FILES)]
    )
    check(upward, "upward")


def test_nothing_imports_the_command_line_or_the_facade() -> None:
    above = (
        (unit(module, FILES), f"{module} imports {name or 'fedrows'}")
        for module, imported in GRAPH.items()
        for name in imported
        if name == ""
        or (unit(name, FILES) == "cli" and unit(module, FILES) not in ("cli", "__main__"))
    )
    check(above, "above all")


def test_few_modules_at_the_top() -> None:
    top = [name for name, path in FILES.items() if path.parent == ROOT / "fedrows"]
    assert len(set(top) - {"__main__"}) <= 15, sorted(top)


def test_a_public_class_name_has_one_meaning() -> None:
    homes = defaultdict(list)
    for module, path in FILES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(module)
    twice = (
        (name, module) for name, places in homes.items() if len(places) > 1 for module in places
    )
    check(twice, "class")


def test_no_file_is_long() -> None:
    endings = {".py", ".js", ".css", ".html", ".cu", ".cpp", ".sh"}
    long = (
        (str(path.relative_to(ROOT)), "over 400 lines")
        for folder in ("fedrows", "tests", "benchmarks", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings and len(path.read_text("utf-8").splitlines()) > 400
    )
    check(long, "long")


def test_algorithms_do_not_import_each_other() -> None:
    assert [
        (module, name)
        for module, imported in GRAPH.items()
        for name in imported
        if module.startswith("algorithms.") and name.startswith("algorithms")
    ] == []


def test_privacy_knows_no_transport() -> None:
    assert [
        (module, name)
        for module, path in FILES.items()
        if unit(module, FILES).startswith("privacy")
        for name in named(path, f"fedrows.{unit(module, FILES)}")
        if name.split(".")[0] in TRANSPORTS or name.startswith("fedrows.flower")
    ] == []


def test_imports_are_read_wherever_they_are(tmp_path: Path) -> None:
    """The reader itself: imports in functions, under TYPE_CHECKING, relative ones, and cycles."""
    sources = {
        "a.py": "def late():\n    from fedrows.room import b\n",
        "room/__init__.py": "from .b import thing",
        "room/b.py": "if TYPE_CHECKING:\n    from .. import a\nimport torch, fedrows",
    }
    for name, text in sources.items():
        (tmp_path / "fedrows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fedrows" / name).write_text(text)
    files = modules(tmp_path)
    graph = imports(files)
    assert graph == {"a": {"room.b"}, "room": {"room.b"}, "room.b": {"a", ""}}
    assert in_cycles(graph) == [("a", "room.b"), ("room.b", "a")]
    assert between_units(graph, files) == {"a": {"room"}, "room": {"a"}}
