"""Writes searched_rates.json from a search: `python benchmarks/save_rates.py DIR`.

DIR is one that `fedrows paper --search --out DIR` has written. The entry of a task whose search is
not there as a whole stays as it is.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedrows.data.federation import FederatedData
from fedrows.errors import DataError
from fedrows.files.whole import write_whole
from fedrows.paper import rates_search
from fedrows.paper.tasks import TASKS
from fedrows.study import Results, Study, finished


class FinishedRuns:
    """Hands over runs that were made before, and makes none."""

    quick, search = False, True

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def load(self, task: str) -> FederatedData:
        """No data: nothing is run."""
        raise DataError(f"The data of {task} are not needed to read its runs.")

    def results(self, study: Study) -> Results:
        """The runs of a study; a DataError if one of them is not there."""
        wanted = study.planned()
        there = finished(self._folder, wanted)
        if len(there) < len(wanted):
            raise DataError(
                f"{self._folder} has {len(there)} of the {len(wanted)} runs of a search: "
                "go on with it first."
            )
        return Results(list(there.values()))

    def say(self, text: str) -> None:
        """Nothing to show."""


def main(words: Sequence[str]) -> int:
    """Writes what was found; gives the exit code."""
    if len(words) != 1:
        print("Give the folder of a search: python benchmarks/save_rates.py DIR")
        return 2
    work = FinishedRuns(Path(words[0]))
    before = json.loads(rates_search.FILE.read_text(encoding="utf-8"))
    for task in TASKS:
        try:
            searched = rates_search.searched(work, task)
        except DataError as error:
            print(f"{task.name}: its rates stay as they are. {error}")
            continue
        before[task.key] = asdict(searched)
        shown = (f"{name} {rates_search.show(own)}" for name, own in searched.rates.items())
        print(f"{task.name}: {'; '.join(shown)}")
    text = json.dumps(before, indent=2, ensure_ascii=False) + "\n"
    write_whole(rates_search.FILE, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
