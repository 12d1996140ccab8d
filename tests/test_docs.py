"""The documentation is true: its Python runs, its commands work, its links lead somewhere.

Python blocks run in order, page by page, each page in a module and a folder of its own. A block
that begins with "# fedrows/FOLDER/NAME.py" is also put where the catalogue looks, so the page's
commands find it. Lines that begin with `fedrows` are run on tiny data, with a hundredth of the
rounds.
"""

import importlib
import re
import runpy
import shlex
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from fedrows import catalogue, cli
from fedrows.data.federation import FederatedData
from fedrows.files import fetch
from fedrows.task import Task

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)|<(?:img|source)[^>]* src(?:set)?=\"([^\"]*)\"")
EXISTING = {kind: catalogue.names(kind) for kind in catalogue.FOLDERS}

LONG = (
    "privacy",
    "studies",
    "command-line",
    "theory",
    "your-own",
    "paper",
    "serving",
    "operations",
    "results",
    "export",
)  # pages whose commands take several seconds
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
each_page_some_slow = pytest.mark.parametrize(
    "page",
    [pytest.param(x, marks=[pytest.mark.slow] if x.stem in LONG else []) for x in PAGES],
    ids=[page.stem for page in PAGES],
)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text("utf-8")) if kind in languages]


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A fresh folder, fresh data, fresh catalogue folders; what a page has added is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))
    before = set(sys.modules)
    for folder in catalogue.FOLDERS.values():
        (tmp_path / folder).mkdir()
        package = importlib.import_module(f"fedrows.{folder}")
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path / folder)])
    yield
    for name in [name for name in set(sys.modules) - before if _is_below(name, tmp_path)]:
        package, _, last = name.rpartition(".")
        del sys.modules[name]
        delattr(sys.modules[package], last)


def _is_below(name: str, folder: Path) -> bool:
    file = getattr(sys.modules[name], "__file__", None)
    return file is not None and Path(file).is_relative_to(folder)


def run_python(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_page")
    monkeypatch.setitem(sys.modules, "a_page", module)  # dataclasses look their types up there
    for number, text in enumerate(blocks(page, "python"), start=1):
        if named := re.match(r"# fedrows/(\w+/\w+\.py)\n", text):
            (folder / named[1]).write_text(text, "utf-8")
            importlib.invalidate_caches()
        code = compile(text, f"{page.name}, block {number}", "exec", dont_inherit=True)
        exec(code, vars(module))


def tiny(task: Task) -> Task:
    """A task of the same options whose data are small and need no file."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(60), 6)
    features, label = rng.integers(0, 20, (len(owner), 3)), rng.integers(0, 2, len(owner))

    def load(options: Any) -> FederatedData:
        held = np.arange(len(owner)) % 5 == 1
        return FederatedData.build(
            name=task.name,
            client=owner,
            ids={"features": features},
            label=label,
            test=np.arange(len(owner)) % 5 == 0,
            validation=held if getattr(options, "validation", 0) else None,
            tables={"weight": 20},
            fields={"features": "weight"},
        )

    return replace(task, load=load)


def make_tasks_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[[str], Task] = catalogue.task
    small = {name: tiny(real(name)) for name in EXISTING["task"]}
    monkeypatch.setattr(catalogue, "task", lambda name: small.get(name) or real(name))


def shortened(words: list[str]) -> list[str]:
    """The same command with a hundredth of its rounds."""
    if words[0] not in ("run", "compare", "tune") or "--help" in words:
        return words
    words = list(words)
    for flag in ("--rounds", "--target-rounds"):
        if flag in words:
            place = words.index(flag) + 1
            words[place] = str(int(words[place]) // 100)
    fresh = "--resume" not in words
    few = ["--rounds", "3"] if fresh and "--rounds" not in words else []
    often = ["--evaluate-every", "1"] if fresh and "--evaluate-every" not in words else []
    return [*words, *few, *often]


def commands(page: Path) -> list[list[str]]:
    """The words after `fedrows` of every command on a page; a \\ at its end goes on."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    lines = [re.sub(r"^(\w+=\S* )+", "", line) for line in text.splitlines()]
    return [shlex.split(x, comments=True)[1:] for x in lines if x.startswith("fedrows ")]


@each_page_some_slow
def test_python_and_commands_of_a_page_work(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_python(page, tmp_path, monkeypatch)
    make_tasks_tiny(monkeypatch)
    monkeypatch.setattr(fetch, "fetch", lambda source, *_, **__: fetch.Fetched(Path("there")))
    for name in ("one_model", "scale"):
        monkeypatch.setattr(f"benchmarks.speed.{name}.seconds_per_round", _as_if_measured)
    for words in commands(page):
        if words[:2] == ["deploy", "demo"]:
            continue  # a real federation, which tests/test_deploy.py starts
        if words[0] == "watch":
            continue  # it serves until Ctrl-C; tests/test_live_page.py opens it
        code = cli.main(shortened(words))
        assert code == 0, f"fedrows {shlex.join(words)}: {capsys.readouterr().err}"


def _as_if_measured(contenders: dict[str, Any], blocks: int) -> dict[str, list[float]]:
    return {name: [1.0] for name in contenders}


def test_the_readmes_picture_can_be_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tasks_tiny(monkeypatch)
    words = "compare synthetic --algorithms fedavg,fedsubavg,centralsgd --out three"
    assert cli.main(shortened(words.split())) == 0
    drawing = runpy.run_path(str(ROOT / "docs" / "make_picture.py"))
    drawing["main"].__globals__["FEWEST"] = 1
    drawing["main"](Path("three"), Path("picture.svg"))
    for picture in (tmp_path / "picture.svg", *(ROOT / "docs").glob("*.svg")):
        svg = ElementTree.parse(picture).getroot()
        assert svg.tag.endswith("svg")
        assert not re.search(r"(href|src|url)\s*[=(]\s*[\"']?http", picture.read_text("utf-8"))


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor, source in LINK.findall(page.read_text("utf-8")):
        path = path or source
        if re.match(r"\w+:", path):
            continue
        place = (page.parent / path).resolve() if path else page
        assert place.exists(), f"{page.name} links to {path}"
        if anchor:
            titles = re.findall(r"^#+ (.*)$", place.read_text("utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", t.lower()).replace(" ", "-") for t in titles}


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    missing = [page.name for page in PAGES[1:] if f"({page.name})" not in index]
    assert missing == ["index.md"]


def test_the_readme_lists_every_algorithm_and_task() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    for name in EXISTING["algorithm"] + EXISTING["task"]:
        assert f"`{name}`" in readme, name


def test_the_quickstart_is_the_readmes_and_short() -> None:
    example = (ROOT / "examples" / "quickstart.py").read_text("utf-8")
    assert blocks(ROOT / "README.md", "python") == [example]
    assert len(example.splitlines()) <= 30


def test_every_command_is_explained() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    for name in cli.COMMANDS:
        assert f"\n## fedrows {name}\n" in page, name
