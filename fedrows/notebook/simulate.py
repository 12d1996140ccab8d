"""`fedrows.simulate` as scripts and notebooks call it: with a page, and a result that shows."""

from __future__ import annotations

from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import Any

from fedrows.errors import UnknownKeywordError
from fedrows.options import keywords, options
from fedrows.plan import Plan
from fedrows.runs.folder import CONFIG
from fedrows.runs.simulate import Result
from fedrows.runs.simulate import simulate as simulate_plainly
from fedrows.simulator import process_group


class ShownResult(Result):
    """A run that has ended, which a notebook shows as a table and curves."""

    def _repr_html_(self) -> str | None:
        """The table and the curves; None, which is plain text, where jinja2 is not installed."""
        try:
            from fedrows.report.view import view
        except ImportError:
            return None
        return view(repr(self), self.history)


@wraps(simulate_plainly)
def simulate(*positional: Any, **named: Any) -> ShownResult:
    known = {*keywords(simulate_plainly), *(item.name for item in options(Plan))}
    for name in named:
        if name not in known:
            raise UnknownKeywordError("simulate", name, known)
    result = simulate_plainly(*positional, **named)
    if named.get("out") is not None and process_group.rank() == 0:
        _write_page(Path(named["out"]))
    return ShownResult(**{item.name: getattr(result, item.name) for item in fields(Result)})


def _write_page(folder: Path) -> None:
    """Writes summary.json and report.html, as `fedrows run` does at its end."""
    if not (folder / CONFIG).exists():
        return
    try:
        from fedrows import report
    except ImportError:  # a machine with torch and numpy alone
        return
    report.write_summary(folder)
    report.write(folder)
