"""`fedrows report`: the report.html of a folder, made again from its files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedrows import report
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.errors import FedrowsError
from fedrows.files.whole import reason
from fedrows.runs.folder import RunFolder


def main(words: Sequence[str]) -> int:
    parser = Parser("report", "Makes the report.html of a run or comparison again.")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="The folder of the run.")
    parser.add_argument(
        "--private", action="store_true", help="Also what no ε covers, under privacy full."
    )
    typed = parser.parse(words)
    folder = typed["folder"]
    if folder is None:
        raise UsageError("Name the folder of a run or comparison, as in: fedrows report runs/NAME.")
    path = RunFolder.open(Path(folder)).path
    try:
        say(f"Report: {report.write(path, typed['private'])}")
    except FedrowsError:
        raise
    except OSError as error:
        raise FedrowsError(f"{path} cannot be written ({reason(error)}).") from error
    return 0
