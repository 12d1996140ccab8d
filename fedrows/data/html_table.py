"""Data in a notebook: a small table of HTML."""

from __future__ import annotations

from html import escape
from typing import Any


def shown(data: Any) -> str:
    """The size of a federation, part by part and table by table, as HTML."""
    rows = [("clients", f"{data.clients:,}")]
    for name, title in (("train", "training"), ("validation", "validation"), ("test", "test")):
        rows.append((f"{title} examples", f"{len(getattr(data, name)):,}"))
    for table, size in data.tables.items():
        fields = ", ".join(name for name, read in data.fields.items() if read == table)
        rows.append((f"table {table}", f"{size:,} rows, read by {fields}"))
    rows += [("labels", data.labels), *(("note", note) for note in data.notes)]
    body = "".join(f"<tr><td>{escape(a)}</td><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table><caption>{escape(data.name)}</caption><tbody>{body}</tbody></table>"
