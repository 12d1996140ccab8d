"""Writes the tables of docs/results.md from a folder that `fedrows paper --out DIR` has made.

    python docs/make_results.py DIR

A table stands between `<!-- table: KEY columns rows PATTERN -->` and `<!-- end -->`; only that part
is written. A table that DIR does not have stays as it is, and is named. `columns` are the places of
those that are shown, counted from 0; without them all are. Rows are shown whose first cell begins
with the pattern, a regular expression; without it, all.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

from fedrows.report.artefact import ResultTable, from_dict
from fedrows.report.markdown import table_lines

PAGE = Path(__file__).with_name("results.md")
PART = re.compile(
    r"(<!-- table: (\S+)((?: \d+)*)(?: rows (\S+))? -->\n).*?(<!-- end -->)", re.DOTALL
)


def main(folder: Path, page: Path = PAGE) -> None:
    """Rewrites every table of the page."""
    tables = {table.key: table for table in _tables(folder)}

    def write(part: re.Match[str]) -> str:
        begin, key, places, pattern, end = part.groups()
        if key not in tables:
            print(f"{folder} has no table {key!r}, which stays as it is.")
            return part.group()
        shown = [int(place) for place in places.split()] or None
        rows = tuple(x for x in tables[key].rows if re.match(pattern or "", x[0].text))
        return f"{begin}\n{table_lines(replace(tables[key], rows=rows), shown)}\n\n{end}"

    page.write_text(PART.sub(write, page.read_text("utf-8")), "utf-8")


def _tables(folder: Path) -> list[ResultTable]:
    tables = []
    for path in sorted((folder / "artefacts").glob("*.json")):
        tables += from_dict(json.loads(path.read_bytes())["artefact"]).tables
    return tables


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Give the folder that `fedrows paper` has made: python docs/make_results.py DIR")
    main(Path(sys.argv[1]))
