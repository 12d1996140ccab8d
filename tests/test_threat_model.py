"""The page docs/threat-model.md names a test for every line, and the tests exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "threat-model.md").read_text(encoding="utf-8")
_LINE = re.compile(r"^\|(?! ?-)(?! what is tried)(?! mode \|)(.+)\|$", re.MULTILINE)
_TEST = re.compile(r"`(tests/test_\w+\.py)::(test_\w+)`")


def _section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def _lines() -> list[str]:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    tables = [_section(title) for title in titles if title != "Who is trusted for what"]
    return [line for table in tables for line in _LINE.findall(table) if "|" in line]


def test_every_mode_and_attack_names_a_test_that_exists() -> None:
    for line in _lines():
        named = _TEST.findall(line)
        assert named, f"this line of the threat model names no test: {line}"
        for file, name in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            assert name in functions, f"{file} has no {name}, which the threat model names"
