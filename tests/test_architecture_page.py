"""docs/architecture.md: its map is drawn from the code, and its walks happen in that order."""

import ast
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import make_architecture
import pytest
from private_runs import run, synthetic

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
STEP = re.compile(r"^\d+\. `(fedrows/[\w/]+\.py)`, (.*?):", re.MULTILINE)
A_PAGE = 45  # lines


class Step(NamedTuple):
    """A function that a walk names."""

    file: str
    name: str


def walks() -> dict[str, str]:
    """The sections that walk through a round, by their titles."""
    sections = re.split(r"^## ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    found = {title: text for title, _, text in (part.partition("\n") for part in sections)}
    return {title: text for title, text in found.items() if STEP.search(text)}


def steps(text: str) -> list[Step]:
    return [
        Step(file, name)
        for file, names in STEP.findall(text)
        for name in re.findall(r"`([\w.]+)`", names)
    ]


def defined(file: Path) -> set[str]:
    """The functions and methods of a file, as `function` and `Class.method`."""
    names = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef):
                names.add(prefix + child.name)
            elif isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(file.read_text("utf-8")), "")
    return names


def called(work: Callable[[], Any]) -> list[Step]:
    """What is called in fedrows/ while something works, in order, in all threads."""
    names: dict[CodeType, Step | None] = {}
    events: list[Step] = []

    def look(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if code not in names:
            path = Path(code.co_filename)
            inside = path.is_relative_to(ROOT / "fedrows")
            names[code] = Step(str(path.relative_to(ROOT)), code.co_qualname) if inside else None
        if (step := names[code]) is not None:
            events.append(step)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return events


def first_missing(wanted: list[Step], events: Iterator[Step]) -> Step | None:
    """The first step that does not come after those before it; None if all of them do."""
    return next((step for step in wanted if step not in events), None)


def test_the_map_is_drawn_from_the_code(tmp_path: Path) -> None:
    page = tmp_path / "architecture.md"
    shutil.copy(PAGE, page)
    make_architecture.main(page)
    same = page.read_text("utf-8") == PAGE.read_text("utf-8")
    assert same, "run python docs/make_architecture.py"


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "architecture.md"
    page.write_text("# Architecture\n")
    with pytest.raises(SystemExit, match="put both lines back"):
        make_architecture.main(page)
    assert page.read_text() == "# Architecture\n"


def test_every_walk_fits_on_a_page() -> None:
    for title, text in walks().items():
        assert len(text.strip().splitlines()) <= A_PAGE, title


@pytest.mark.parametrize("title", walks())
def test_every_step_names_a_function_of_a_file(title: str) -> None:
    named = steps(walks()[title])
    assert len(named) >= 8
    for file, name in named:
        assert (ROOT / file).is_file(), file
        assert name in defined(ROOT / file), f"{file} has no {name}"


def test_a_simulated_round_goes_as_it_is_written() -> None:
    simulation = run(synthetic())
    rounds = iter(simulation)
    next(rounds)  # the first one also chooses chunks
    events = called(lambda: next(rounds))
    assert first_missing(steps(walks()["A simulated round"]), iter(events)) is None


def test_the_tracer_sees_order() -> None:
    a, b = Step("fedrows/a.py", "f"), Step("fedrows/b.py", "g")
    assert first_missing([a, b], iter([b, a, b])) is None
    assert first_missing([b, a, b], iter([a, b, a])) == b
