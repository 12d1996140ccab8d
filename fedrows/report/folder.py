"""The files of a run or compare folder: read with helpful errors, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedrows.errors import RunFolderError
from fedrows.files.whole import as_json, write_private, write_whole
from fedrows.measure.metric_choice import Line
from fedrows.measure.summary import Summary, Target, number, summarise
from fedrows.runs.folder import CONFIG, DATA, METRICS, SUMMARY, read_lines


def read_metrics(path: Path) -> list[Line]:
    """The lines of a `metrics.jsonl`, at least one."""
    lines = read_lines(path)
    if not lines:
        raise RunFolderError(
            f"{path} has no evaluated round yet: wait for the first, or run again."
        )
    return lines


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one when there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read as JSON ({error}): restore the file, or run into a new folder."
        ) from error
    if not isinstance(content, dict):
        raise RunFolderError(
            f"{path} is not a JSON object: restore the file, or run into a new folder."
        )
    return content


def write_summary(folder: Path, target: Target | None = None) -> Summary:
    """The summary of the folder's `metrics.jsonl`, also written to its `summary.json`."""
    full = number(read_json(folder / DATA).get("bytes_full_model"))
    summary = summarise(read_metrics(folder / METRICS), target, full)
    write = write_private if read_json(folder / CONFIG).get("privacy") else write_whole
    write(folder / SUMMARY, as_json(summary, indent=1))
    return summary
