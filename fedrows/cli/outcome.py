"""How a run or a comparison ends: its summary, its report, and what is said last."""

from __future__ import annotations

from fedrows import report
from fedrows.cli.show import print_table, say
from fedrows.errors import INTERRUPTED
from fedrows.measure.summary import Target, table
from fedrows.runs.folder import RunFolder


def close(
    folder: RunFolder, done: bool, where: str, again: str, target: Target | None = None
) -> int:
    """Writes summary and report of what is done, and gives the exit code."""
    if not done:
        say(f"Stopped {where}, and saved. Go on with: {again}")
        return INTERRUPTED
    summary = report.write_summary(folder.path, target)
    print_table(*table(summary))
    try:
        say(f"Report: {report.write(folder.path)}")
    except ImportError:
        say(f"Metrics: {folder.path}; for a report, pip install fedrows[report].")
    return 0
