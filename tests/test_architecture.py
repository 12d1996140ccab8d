"""The house: imports point one way, and a name, a file and a room have one meaning each."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

from import_graph import ORDER, between_units, imports, in_cycles, modules, named, unit
from website.public_names import NAMES

from fedrows.catalogue import FOLDERS

ROOT = Path(__file__).parent.parent
FILES = modules()
GRAPH = imports(FILES)
UNITS = between_units(GRAPH, FILES)
TRANSPORTS = {"flwr", "grpc", "http", "httpx", "requests", "socket", "ssl", "starlette", "urllib"}

# Who imports modules of fedrows by their names at run time: commands, and finders of plug-ins.
BY_NAME = {"catalogue", "cli"}


def test_no_cycle_between_modules() -> None:
    assert in_cycles(GRAPH) == []


def test_no_cycle_between_packages() -> None:
    assert in_cycles(UNITS) == []


def test_every_unit_has_its_layer() -> None:
    assert sorted(UNITS) == sorted(ORDER), "name every unit once in docs/import_graph.py"


def test_every_import_points_down() -> None:
    level = {name: index for index, name in enumerate(ORDER)}
    assert [
        f"{module} imports {name}, which is above it"
        for module, imported in GRAPH.items()
        for name in imported
        if name and level[unit(name, FILES)] > level[unit(module, FILES)]
    ] == []


def test_nothing_imports_the_command_line_or_the_facade() -> None:
    assert [
        f"{module} imports {name or 'fedrows'}"
        for module, imported in GRAPH.items()
        for name in imported
        if name == ""
        or (unit(name, FILES) == "cli" and unit(module, FILES) not in ("cli", "__main__"))
    ] == []


def test_few_import_by_name() -> None:
    """An import that is spelled in a string is not in the graph, so only finders may have one."""
    found = set()
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            called = node.func.id if isinstance(node.func, ast.Name) else called
            if called in ("import_module", "__import__") and "fedrows" in ast.unparse(node.args[0]):
                found.add(module)
    assert found == BY_NAME


def test_few_modules_at_the_top() -> None:
    top = [name for name, path in FILES.items() if path.parent == ROOT / "fedrows"]
    assert len(set(top) - {"__main__"}) <= 15, sorted(top)


def test_the_name_of_a_public_type_has_one_meaning() -> None:
    """Classes, and other names that are written as those of classes: `Json = dict[str, Any]`."""
    homes = defaultdict(list)
    for module, path in FILES.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            names = [target.id for target in targets if isinstance(target, ast.Name)]
            names += [node.name] if isinstance(node, ast.ClassDef) else []
            for name in names:
                if name[0].isupper() and any(map(str.islower, name)):
                    homes[name].append(module)
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_file_is_long() -> None:
    endings = {".py", ".js", ".css", ".html", ".cu", ".cpp", ".h", ".sh"}
    assert [
        str(path.relative_to(ROOT))
        for folder in ("fedrows", "tests", "benchmarks", "docs", "examples")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings and len(path.read_text("utf-8").splitlines()) > 400
    ] == []


def test_algorithms_do_not_import_each_other() -> None:
    assert [
        (module, name)
        for module, imported in GRAPH.items()
        for name in imported
        if module.startswith("algorithms.") and name.startswith("algorithms")
    ] == []


def test_no_file_elsewhere_knows_an_algorithm() -> None:
    """What others must know of an algorithm is in its attributes; the default is named once."""
    named_once = {("catalogue", name) for name in ("fedsubavg", "fedavg", "centralsgd")}
    algorithms = {path.stem for path in (ROOT / "fedrows" / "algorithms").glob("[a-z]*.py")}
    found = set()
    for module, path in FILES.items():
        if module.split(".")[0] in ("algorithms", "datasets", "paper"):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and str(node.value).lower() in algorithms:
                found.add((module, node.value))
        found |= {(module, name) for name in GRAPH[module] if name.startswith("algorithms.")}
    assert found == named_once


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


CALLED_BY_LIBRARIES = {
    *("_repr_html_", "extra_repr", "setup_context", "handleError", "log_message", "intercept"),
    *("reconcile", "wait_closed", "_unsupported_upgrade_warning", "_should_skip_dynamo"),
}


def test_nothing_in_the_package_is_there_for_tests_alone() -> None:
    """Every function, class and constant is used in the package, or is public."""
    used, defined = Counter(), {}
    for module, path in FILES.items():
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined[node.name] = module
            elif isinstance(node, ast.Name | ast.Attribute):
                assigned = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                used[node.id if isinstance(node, ast.Name) else node.attr] += not assigned
            elif isinstance(node, ast.keyword):
                used[node.arg] += 1
            elif isinstance(node, ast.Constant) and len(str(node.value)) < 60:
                used.update(re.findall(r"\w+", str(node.value)))
        targets = (x.targets for x in tree.body if isinstance(x, ast.Assign))
        defined |= {x.id: module for some in targets for x in some if isinstance(x, ast.Name)}
    public = {name.rpartition(".")[2] for name in NAMES} | {"from_hf", "RANKING_LOSSES"}
    assert {
        name: module
        for name, module in defined.items()
        if not used[name]
        and name not in public | CALLED_BY_LIBRARIES
        and not name.startswith("__")
        and module not in (f"{folder}.{name.lower()}" for folder in FOLDERS.values())
    } == {}
