"""The documentation is true: its Python runs, its commands work, its links lead somewhere.

Python blocks run in order, page by page, each page in a module and a folder of its own. A block
that begins with "# fedrows/FOLDER/NAME.py" is also put where the catalogue looks, so the page's
commands find it. Lines that begin with `fedrows` are run on tiny data, with a hundredth of the
rounds. What is not run is listed in tests/doc_blocks.py, with the reason.
"""

import configparser
import importlib
import json
import re
import runpy
import shlex
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import yaml
from doc_blocks import (
    DATA,
    NOT_RUN,
    OTHERS,
    PAGES,
    PYTHON_NOT_RUN,
    ROOT,
    SHELL,
    Block,
    blocks,
    reason_not_to_run,
)

from fedrows import catalogue, cli
from fedrows.data.federation import FederatedData
from fedrows.files import fetch
from fedrows.task import Task

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
    "devices",
)  # pages whose commands take several seconds
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
each_page_some_slow = pytest.mark.parametrize(
    "page",
    [pytest.param(x, marks=[pytest.mark.slow] if x.stem in LONG else []) for x in PAGES],
    ids=[page.stem for page in PAGES],
)


def python(page: Path) -> list[str]:
    """The Python of a page that is run."""
    texts = [block.text for block in blocks(page) if block.language == "python"]
    return [text for text in texts if not any(part in text for part in PYTHON_NOT_RUN)]


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
    for number, text in enumerate(python(page), start=1):
        if named := re.match(r"# fedrows/(\w+/\w+\.py)\n", text):
            (folder / named[1]).write_text(text, "utf-8")
            importlib.invalidate_caches()
        code = compile(text, f"{page.name}, block {number}", "exec", dont_inherit=True)
        exec(code, vars(module))


def tiny(task: Task) -> Task:
    """A task of the same options whose data are small and need no file."""
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(120), 6)
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
    """The words after `fedrows` of every command of a page that is run."""
    lines = [command for block in blocks(page) for command in block.commands()]
    lines = [re.sub(r"^(\w+=\S* )+", "", x) for x in lines if reason_not_to_run(x) is None]
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
    assert python(ROOT / "README.md") == [example]
    assert len(example.splitlines()) <= 30


def test_every_command_is_explained() -> None:
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    for name in cli.COMMANDS:
        assert f"\n## fedrows {name}\n" in page, name


EVERY_BLOCK = [block for page in PAGES + OTHERS for block in blocks(page)]


def test_every_line_of_a_shell_is_run_or_has_a_reason_not_to() -> None:
    """A block for a shell has commands of known programs only; each is run, or listed."""
    for block in EVERY_BLOCK:
        if block.language == "bash":
            joined = re.sub(r"\\\n\s*", "", block.text)
            assert len(block.commands()) == len(list(filter(str.strip, joined.splitlines()))), block
        for command in block.commands():
            known = command.startswith("fedrows ") or reason_not_to_run(command)
            assert known, f"{block}: list {command!r} in tests/doc_blocks.py"
            assert block.page in PAGES or reason_not_to_run(command), f"{block}: not run"


def test_every_reason_not_to_run_something_is_needed() -> None:
    text = "\n".join(command for block in EVERY_BLOCK for command in block.commands())
    code = "\n".join(block.text for block in EVERY_BLOCK if block.language == "python")
    for start in NOT_RUN:
        assert re.search(rf"^(?:{start})", text, re.MULTILINE), f"nothing begins with {start!r}"
    for part in PYTHON_NOT_RUN:
        assert part in code, f"no block has {part!r}"


def test_commands_that_are_not_run_name_what_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for block in EVERY_BLOCK:
        for command in block.commands():
            if script := re.search(r"\bpython ((?:benchmarks|docs|tests)/\S+)", command):
                assert (ROOT / script[1]).exists(), f"{block}: there is no {script[1]}"
            if command.startswith("make "):
                names = shlex.split(command, comments=True)[1:]
                assert {x for x in names if "=" not in x} <= set(targets), f"{block}: {command}"
            if extras := re.search(r"fedrows\[([\w,]+)\]", command):
                assert set(extras[1].split(",")) <= set(project["optional-dependencies"]), command


@pytest.mark.parametrize("block", EVERY_BLOCK, ids=str)
def test_blocks_of_data_can_be_read(block: Block) -> None:
    """Every block has a language that is known here, and is what it says it is."""
    assert block.language in ("python", *SHELL, *DATA), f"{block}: what is {block.language!r}?"
    if block.language == "json":
        for line in block.text.splitlines():
            json.loads(line)
    elif block.language == "yaml":
        assert yaml.safe_load(block.text)
    elif block.language == "toml":
        assert tomllib.loads(block.text)
    elif block.language == "ini":
        parser = configparser.ConfigParser(strict=False, interpolation=None)
        parser.read_string(block.text)
        assert parser.sections()
