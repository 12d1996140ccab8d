"""The losses of every evaluated round in a CSV file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.watch import RoundReport, RunInfo


def opened(text: str) -> CsvFile:
    """The writer; text: what follows the = in `--writer csv=FILE`."""
    return CsvFile(Path(text or "losses.csv"))


class CsvFile:
    """Adds a line per evaluated round."""

    def __init__(self, path: Path) -> None:
        self._path, self._run = path, ""
        path.write_text("run,round,train_loss,test_loss\n", encoding="utf-8")

    def begin(self, run: RunInfo) -> None:
        self._run = run.name

    def round(self, report: RoundReport) -> None:
        pass

    def measured(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{self._run},{line['round']},{line['train_loss']},{line['test_loss']}\n")

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        pass

    def end(self, done: bool) -> None:
        pass

    def close(self) -> None:
        pass
