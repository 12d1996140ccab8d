"""Tables in Markdown, and the parts of a page that scripts write: those between two markers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def table(head: Sequence[str], rows: Iterable[Sequence[str]], words: int | None = None) -> str:
    """A table; the columns after the first `words`, which are all if not given, are numbers."""
    words = len(head) if words is None else words
    lines = [head, ["---"] * words + ["---:"] * (len(head) - words), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def filled(page: Path, text: str, parts: Mapping[str, str]) -> str:
    """The text of a page with its parts made anew, by the names in their markers."""
    for name, part in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, _, rest = text.partition(begin)
        _, marker, after = rest.partition(end)
        if not marker:
            raise SystemExit(
                f"{page} has no part between {begin!r} and {end!r}: put both lines back."
            )
        text = f"{before}{begin}{part}{end}{after}"
    return text
