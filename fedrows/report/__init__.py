"""The report of a run or a comparison: one HTML page that needs nothing but a browser."""

from __future__ import annotations

from pathlib import Path

from fedrows.report.folder import read_json, read_metrics, write_summary, write_whole

__all__ = ["read_json", "read_metrics", "write", "write_summary", "write_whole"]


def write(folder: Path) -> Path:
    """`folder/report.html`, made from the files of the folder; written whole or not at all."""
    from fedrows.report.page import render  # needs jinja2, which the core does not

    return write_whole(folder / "report.html", render(folder))
