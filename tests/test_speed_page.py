"""docs/speed.md is made from what was measured, and from nothing else."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.speed import models
from benchmarks.speed.bars import at_most, contest

ROOT = Path(__file__).parent.parent

MACHINE = {
    "command": "fedrows bench x", "cpu": "Abacus", "cores": 2, "threads": 2,
    "memory_gib": 8.0, "torch": "2.13.0+cpu", "fedrows": "0.1", "date": "2026-11-05T10:00:00+00:00",
}  # fmt: skip


def results() -> dict[str, Any]:
    """Of every benchmark, numbers that are easy to find again."""
    two = contest({"fedrows": [0.5], "centralised": [0.25], "Flower": [8.0]}, models.BARS["lr"])
    return {
        "peers": {
            **MACHINE,
            "lr": two,
            "peers": {
                "flower": {"versions": {"f": "1"}, "how": "So.", "loss": {"lr": [0.7, 0.6]}},
                "pfl": {"missing": "It rained."},
            },
        },
        "din": {**MACHINE, **contest({"fedrows": [0.001], "centralised": [1.0]}, [])},
        "gpu": {"gpu": "G", "torch": "2", "lr, TF32 off": {"fedrows": 4321.0, "centralised": 1.5}},
        "cohort": {
            **MACHINE,
            "rows": [{"clients": 10, "microseconds_per_client": 1.25, "peak_bytes": 2**20,
                      "bytes_down": 11, "bytes_up": 22}],
            "bars": [at_most("K", 1.2, 1.1)],
        },
        "scale": {
            **MACHINE, "small": 10, "width": 16, "mebibytes_beyond_the_table": {"1000": 3.0},
            "growth": {"1000": {"same": 1.01, "spread": 1.4, "bare": 2.8}},
        },
        "billion": {
            **MACHINE, "rows": 10**9, "width": 16, "rounds": 100,
            "fedadam": {
                "touched": 1234, "milliseconds": 5.5, "resident": 2**30, "disk_per_row": 99,
                "saving_milliseconds": 0.75, "disk_per_row_with_log": 123,
            },
        },
        "ranks": {**MACHINE, "lr": contest({"fedrows": [0.5], "fedrows, 2 processes": [0.25]}, [])},
        "memory": {**MACHINE, "every": 100, "resident_bytes": {"lr": [2**20, 2**21]}, "bars": []},
    }  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, found in results().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return runpy.run_path(str(ROOT / "docs" / "make_speed.py"))


def test_the_page_shows_what_was_measured(tmp_path: Path, made: dict[str, Any]) -> None:
    page, picture = tmp_path / "speed.md", tmp_path / "speed.svg"
    markers = [f"<!-- measured: {word} -->" for word in ("begin", "end")]
    page.write_text(f"# Speed\n{markers[0]}\nold\n{markers[1]}\nthe end\n")
    made["main"](tmp_path, page, picture)
    text = page.read_text("utf-8")
    assert text.startswith("# Speed\n")
    assert text.endswith("\nthe end\n")
    assert "old" not in text
    for words in ("Abacus, 2 cores", "5 November 2026", "| Flower | 0.125 (16.0 ×) |",
                  "pfl-research was not there: It rained.", "LR from 0.700 to 0.600",
                  "| **fedrows**, FedSubAvg | 4,321 |", "| 10 | 1.25 | 1 | 11 | 22 |",
                  "| LR | 1.0 | 2.0 |", "| 1,000 | 1.01 × | 1.40 × | 2.80 × | 3 |",
                  "| fedadam | 1,234 | 5.50 | 0.750 | 1,024 | 99 | 123 |",
                  "| fedrows, 2 processes | 4.00 |", "| `cohort` | K | 1.2 | ≤ 1.1 | **no** |",
                  "| `peers` | lr, times centralised | 0.5 | ≥ 1.5 | **no** |"):  # fmt: skip
        assert words in text, words
    made["main"](tmp_path, page, picture)
    assert page.read_text("utf-8") == text  # made again, it is the same
    svg = ElementTree.parse(picture).getroot()
    shown = "".join(svg.itertext())
    assert "4,321" in shown
    assert "prefers-color-scheme: dark" in shown


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path, made: dict[str, Any]) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n")
    with pytest.raises(SystemExit, match="put both lines back"):
        made["main"](tmp_path, page, tmp_path / "speed.svg")
    assert page.read_text() == "# Speed\n"


def test_the_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in benchmarks/results is what docs/speed.md and its picture show."""
    page, picture = tmp_path / "speed.md", tmp_path / "speed.svg"
    shutil.copy(ROOT / "docs" / "speed.md", page)
    command = [sys.executable, str(ROOT / "docs" / "make_speed.py")]
    folder = ROOT / "benchmarks" / "results"
    subprocess.run([*command, str(folder), str(page), str(picture)], check=True)
    assert page.read_text("utf-8") == (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert picture.read_text("utf-8") == (ROOT / "docs" / "speed.svg").read_text("utf-8")
    sweeps = "speed-sweeps.svg"
    assert (tmp_path / sweeps).read_text("utf-8") == (ROOT / "docs" / sweeps).read_text("utf-8")
