"""The report of a run or a comparison: one HTML page that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path

from fedrows.files.whole import write_private, write_whole
from fedrows.report.folder import write_summary
from fedrows.runs.folder import REPORT

__all__ = ["write", "write_summary"]


def write(folder: Path, private: bool = False) -> Path:
    """`folder/report.html`, made from the files of the folder; written whole or not at all.

    private: also what no ε covers, of a run under privacy full.
    """
    from fedrows.report.run_page import render  # needs jinja2, which the core does not

    path = folder / REPORT
    (write_private if private else write_whole)(path, render(folder, private).encode())
    return path
