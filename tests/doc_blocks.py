"""The blocks of code on the pages of the documentation, and the commands in them.

NOT_RUN and PYTHON_NOT_RUN say what no test of the documentation runs, and why.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OTHERS = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]  # pages without Python
PROGRAMS = (
    r"fedrows|python|make|torchrun|pip|git|gpg|sha256sum|flwr|jq|mike|mkdocs|\.venv/bin/[\w-]+"
)
COMMAND = re.compile(rf"^(?:\$ )?((?:\w+=\S* )*(?:{PROGRAMS})(?: .*)?)$")
SHELL = ("bash", "console", "")  # "": a block that is indented, or that names no language
DATA = ("json", "yaml", "ini", "toml", "text")

# What begins like this is not run by tests/test_docs.py. The reason names the test that runs it.
NOT_RUN = {
    r"fedrows .* /(etc|var)/": "writes into folders of the system: tests/test_deploy_cli.py",
    r"fedrows deploy (?!keys|policy)": "starts or asks real processes: tests/test_deploy.py does",
    r"python clients/python/install.py": "downloads: benchmarks/devices.py does, too",
    r"(\w+=\S+ )*python -m fedrows_device ": "needs a gateway: tests/test_mixed_devices.py has one",
    r"fedrows paper .*--(quick|search|out paper$)": "takes hours on real data: tests/test_paper.py",
    r"fedrows paper --out paper ": "takes minutes on real data: tests/test_paper_theory.py",
    r"fedrows bench (all|billion|din|peers)": "takes minutes: tests/test_bench.py",
    r"fedrows .*\b(data|mine)\.py:": "names files of the reader's: tests/test_plugins.py",
    r"fedrows run coins": "needs the installed example: tests/test_plugin_example.py",
    r"fedrows run amazon-wide": "needs real data: tests/test_recommender_tasks.py",
    r"fedrows predict shop.fedrows --data new.csv --out scores.csv$": "run by the page on serving",
    r"torchrun": "starts several processes: tests/test_torchrun.py",
    r"(\w+=\S+ )*python (benchmarks|docs|tests)/": "takes minutes; that the file exists is checked",
    r"make ": "that the target exists is checked; CI calls lint, test and test-slow",
    r"pip install": "changes the environment; that the extras exist is checked",
    r"\.venv/bin/pre-commit": "changes the checkout",
    r"git |gpg ": "needs a release and a key to sign with: tests/test_release.py",
    r"sha256sum": "needs the files of a release: tests/test_release.py",
    r"fedrows watch |fedrows .* --live": "serves a page: tests/test_live_page.py opens such pages",
    r"jq ": "a program that is not ours",
    r"python -m http.server": "serves until it is stopped",
    r"mike |mkdocs ": "writes a branch, or serves until it is stopped: tests/test_site.py builds",
}
PYTHON_NOT_RUN = {
    "scheduler:8786": "needs a Dask scheduler: tests/test_study_executors.py has one",
    'ray.init("auto")': "needs a Ray cluster: tests/test_study_executors.py has one",
    "Comparison.opened": "needs that cluster too: tests/test_study_executors.py",
}


class Block(NamedTuple):
    """A block of code: fenced, or indented by four spaces after an empty line."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}, line {self.line}"

    def commands(self) -> list[str]:
        """The commands of a block, without prompts; lines that end in a backslash are joined."""
        if self.language not in SHELL:
            return []
        lines = re.sub(r"\\\n\s*", "", self.text).splitlines()
        return [found[1] for found in map(COMMAND.match, lines) if found]


def blocks(page: Path) -> list[Block]:
    lines, found, at = page.read_text("utf-8").splitlines(), [], 0
    while at < len(lines):
        start = at
        if fence := re.match(r"^( *)```(\w*)", lines[at]):
            at = next(i for i in range(at + 1, len(lines)) if lines[i] == f"{fence[1]}```") + 1
            inside = [line.removeprefix(fence[1]) for line in lines[start + 1 : at - 1]]
            found.append(Block(page, start + 1, fence[2], "\n".join(inside) + "\n"))
        elif lines[at].startswith("    ") and at and not lines[at - 1].strip():
            while at < len(lines) and (lines[at].startswith("    ") or not lines[at].strip()):
                at += 1
            text = "\n".join(line[4:] for line in lines[start:at]).rstrip() + "\n"
            found.append(Block(page, start + 1, "", text))
        else:
            at += 1
    return found


def reason_not_to_run(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if re.match(start, command)), None)
