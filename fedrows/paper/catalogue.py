"""The experiments by name: each is a module of this room that defines `EXPERIMENT`."""

from __future__ import annotations

import ast
import hashlib
import importlib
import re
from pathlib import Path

from fedrows import paper
from fedrows.errors import UnknownNameError
from fedrows.paper.experiment import Experiment

DEFINES = re.compile(r"^EXPERIMENT\b", re.MULTILINE)
# The order of the page, by how a name begins, then by the task that it ends with.
ORDER = (
    *("claims", "table1", "figure1", "example1", "table2", "table3", "table4", "table5"),
    *("conditioning", "convergence", "criterion", "overhead"),
)
TASKS = ("movielens", "sent140", "amazon", "taobao")
LAST = "claims"  # to be made: it is drawn from the others' runs


def experiments() -> dict[str, Experiment]:
    """All experiments by name, in the order of the page."""
    return {its.name: its for its in sorted(map(_defined, _modules()), key=_place)}


def chosen(names: list[str]) -> list[Experiment]:
    """The experiments of these names, in this order, or all of them if none is named."""
    known = experiments()
    for name in names:
        if name not in known:
            raise UnknownNameError("experiment", name, known)
    wanted = names or sorted(known, key=LAST.__eq__)
    return [known[name] for name in dict.fromkeys(wanted)]


def code_of(experiment: Experiment) -> str:
    """A hash of the module that defines it, of what that imports of this room, and of its JSON.

    A kept artefact whose experiment has changed is made anew; a change elsewhere in fedrows counts
    by its version.
    """
    digest = hashlib.sha256()
    for place in (*_reached(experiment), *_files("json").values()):
        digest.update(place.read_bytes())
    return digest.hexdigest()


def asks_for_runs(experiment: Experiment) -> bool:
    """Whether it calls for the results of a study anywhere."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "results"
        for place in _reached(experiment)
        for node in ast.walk(ast.parse(place.read_text("utf-8")))
    )


def _reached(experiment: Experiment) -> list[Path]:
    """The module that defines an experiment, and those of this room that it imports."""
    files = _files("py")
    [module] = [name for name in _modules() if _defined(name).name == experiment.name]
    seen, left = set[str](), [module]
    while left:
        name = left.pop()
        if name in files and name not in seen:
            seen.add(name)
            left += _imported(files[name].read_text("utf-8"))
    return [files[name] for name in sorted(seen)]


def _files(ending: str) -> dict[str, Path]:
    """The files of this room by name, without their ending."""
    found = (place for folder in paper.__path__ for place in Path(folder).glob(f"*.{ending}"))
    return {place.stem: place for place in sorted(found)}


def _modules() -> list[str]:
    """The modules that define an experiment; none of them is imported."""
    files = _files("py").items()
    return [name for name, place in files if DEFINES.search(place.read_text("utf-8"))]


def _defined(module: str) -> Experiment:
    found: Experiment = importlib.import_module(f"fedrows.paper.{module}").EXPERIMENT
    return found


def _imported(text: str) -> list[str]:
    """The modules of this room that a text imports, and words that are none."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedrows.paper"):
            whole = [node.module or "", *(f"{node.module}.{part.name}" for part in node.names)]
            found += [name.split(".")[2] for name in whole if name.count(".") > 1]
    return found


def _place(experiment: Experiment) -> tuple[int, int, str]:
    name = experiment.name
    part = (number for number, word in enumerate(ORDER) if name.startswith(word))
    task = (number for number, word in enumerate(TASKS) if name.endswith(word))
    return next(part, len(ORDER)), next(task, len(TASKS)), name
