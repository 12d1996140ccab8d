"""The walks of docs/architecture.md, and what is really called in a round.

python tests/walks.py       holds the walk on a GPU to a round; needs torch and numpy only
"""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

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


def on_a_gpu() -> list[Step]:
    """What is called in a round on a GPU, recording included."""
    from fedrows.algorithms.fedsubavg import FedSubAvg
    from fedrows.datasets.synthetic import TASK
    from fedrows.models.logistic import Logistic
    from fedrows.plan import Plan
    from fedrows.runs.driver import InMemory, drive
    from fedrows.simulation import Simulation

    data = TASK.load(TASK.options())
    plan = Plan(rounds=1, clients_per_round=8, device="cuda")
    return called(lambda: drive(Simulation(data, Logistic(data), FedSubAvg(), plan), InMemory()))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    missing = first_missing(steps(walks()["A round on a GPU"]), iter(on_a_gpu()))
    print("The walk is what happens." if missing is None else f"{missing} does not come then.")
    sys.exit(missing is not None)
