"""Rates to keep: a file of values by algorithm, which `fedrows run` and `compare` read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.errors import PlanError
from fedrows.files.whole import as_json, reason, write_whole

KIND, FORMAT = "fedrows rates", 1
PLAIN = (bool, int, float, str, type(None))


def write_rates(path: Path, name: str, by: str, rates: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes the file. name: the task or the data that they are for; by: how they were chosen."""
    content = {"kind": KIND, "format": FORMAT, "task": name, "by": by, "rates": rates}
    write_whole(path, as_json(content, indent=1))


def read_rates(path: str | Path) -> tuple[str, dict[str, dict[str, Any]]]:
    """The name of the task, and the values by algorithm; a PlanError if it is no such file."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"The rates in {path} cannot be read ({reason(error)}).") from error
    except ValueError:
        content = None
    wrong = PlanError(f"{path} is no file of rates: name a rates.json that `fedrows tune` wrote.")
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise wrong
    if content.get("format") != FORMAT:
        raise PlanError(
            f"{path} has format {content.get('format')!r}, but this fedrows reads {FORMAT}: "
            "tune again."
        )
    rates = content.get("rates")
    if not isinstance(rates, dict) or not all(
        isinstance(values, dict) and all(isinstance(value, PLAIN) for value in values.values())
        for values in rates.values()
    ):
        raise wrong
    return str(content.get("task", "")), rates
