"""The names of the files beside the page: one for each table and figure, none twice."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from fedrows.report.artefact import Artefact, Figure, ResultTable


class Files:
    """Where each table and figure is found, relative to the page."""

    def __init__(self, artefacts: Sequence[Artefact]) -> None:
        self.tables: dict[str, ResultTable] = {}
        self.figures: dict[str, Figure] = {}
        self.endings: tuple[str, ...] = ()  # of the pictures that were drawn
        self._names: dict[int, str] = {}
        for artefact in artefacts:
            for figure in artefact.figures:
                self.figures[self._place(artefact, figure)] = figure
        for artefact in artefacts:
            for table in artefact.tables:
                self.tables[self._place(artefact, table)] = table

    def name(self, part: ResultTable | Figure) -> str:
        """The file name without folder and ending."""
        return self._names[id(part)]

    def csv(self, part: ResultTable | Figure) -> str:
        return f"data/{self.name(part)}.csv"

    def pictures(self, figure: Figure) -> list[str]:
        """Where the figure is drawn; empty if it could not be."""
        return [f"figures/{self.name(figure)}.{ending}" for ending in self.endings]

    def _place(self, artefact: Artefact, part: ResultTable | Figure) -> str:
        taken = self.tables.keys() | self.figures.keys()
        kind = "table" if isinstance(part, ResultTable) else "figure"
        key = part.key
        wanted = _free(
            [_safe(key), _safe(f"{key}-{kind}"), _safe(f"{artefact.name}-{key}-{kind}")], taken
        )
        self._names[id(part)] = wanted
        return wanted


def _safe(key: str) -> str:
    """A key as every file system takes it."""
    return re.sub(r"[^\w.-]+", "-", key, flags=re.ASCII).strip("-.")[:100] or "untitled"


def _free(wanted: Sequence[str], taken: Iterable[str]) -> str:
    low = {name.lower() for name in taken}  # some systems do not tell capitals apart
    numbered = (f"{wanted[-1]}-{n}" for n in range(2, len(low) + 3))
    return next(name for name in (*wanted, *numbered) if name.lower() not in low)
