"""What a deployed run's rounds.jsonl has to tell: who answered, who did not, what was refused."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMED = 12  # of those whose uploads were refused, in the report


def read_rounds(path: Path) -> list[dict[str, Any]]:
    """The lines of a rounds.jsonl; none without a file, and a last one cut short is left out."""
    try:
        texts = path.read_bytes().split(b"\n")
    except OSError:
        return []
    lines = []
    for text in texts[:-1]:
        with suppress(ValueError):
            lines.append(json.loads(text))
    return lines


def tables(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers, drop-outs and refusals as tables: a title, columns and rows each."""
    if not lines:
        return []
    asked, answered = (sum(line[k] for line in lines) for k in ("asked", "answered"))
    exchanges = sum(line["messages"] for line in lines)
    down, up = (sum(line[k] for line in lines) for k in ("bytes_down", "bytes_up"))
    waited = sum(line["seconds"].get("wait", 0.0) for line in lines)
    spent = sum(sum(line["seconds"].values()) for line in lines) - waited
    rows = [
        ["rounds", f"{len(lines):,}"],
        ["clients asked", f"{asked:,}"],
        ["answers that counted", f"{answered:,} ({answered / max(asked, 1):.1%})"],
        ["messages to nodes", f"{exchanges:,}"],
        ["payload down, a client", f"{down / max(asked, 1):,.0f} B"],
        ["payload up, a client", f"{up / max(asked, 1):,.0f} B"],
        ["rows that nodes had already", f"{sum(x['rows_spared'] for x in lines):,}"],
        ["seconds a round, waiting for nodes", f"{waited / len(lines):.2f}"],
        ["seconds a round, at the server", f"{spent / len(lines):.3f}"],
    ]
    if ages := [age for line in lines if line.get("buffer") for age in line["buffer"]["ages"]]:
        rows.append(["age of an update, in steps", f"{sum(ages) / len(ages):.1f}"])
        rows.append(["age of the oldest update", f"{max(ages):,}"])
    blocks = [{"title": "Exchanges", "columns": ["", ""], "rows": rows}]
    dropped = Counter[str]()
    refused: dict[str, Counter[str]] = {}
    for line in lines:
        dropped.update({why: len(who) for why, who in line["dropped"].items()})
        for why, who in line["refused"].items():
            refused.setdefault(why, Counter()).update(map(str, who))
    if dropped:
        counts = [[why, f"{count:,}"] for why, count in dropped.most_common()]
        blocks.append({"title": "Left out", "columns": ["why", "clients"], "rows": counts})
    if refused:
        counts = [
            [why, f"{who.total():,}", _named(who)]
            for why, who in sorted(refused.items(), key=lambda x: -x[1].total())
        ]
        columns = ["why", "uploads", "of"]
        blocks.append({"title": "Refused uploads", "columns": columns, "rows": counts})
    return blocks


def _named(who: Counter[str]) -> str:
    names = [f"{name} ×{count}" if count > 1 else name for name, count in who.most_common(NAMED)]
    more = len(who) - len(names)
    return ", ".join(names) + (f" and {more} more" if more > 0 else "")
