"""The files of a run or compare folder: read with helpful errors, written whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fedrows.errors import RunFolderError
from fedrows.summary import Line, Summary, Target, number, summarise


def read_metrics(path: Path) -> list[Line]:
    """The lines of a `metrics.jsonl`; a last line cut short by a killed process is left out."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error.strerror}): name a folder that a run has written."
        ) from error
    numbered = [(n, text) for n, text in enumerate(texts, start=1) if text.strip()]
    lines: list[Line] = []
    for n, text in numbered:
        try:
            line = json.loads(text)
        except ValueError as error:
            if n == numbered[-1][0]:
                break
            raise RunFolderError(
                f"{path}, line {n} is not JSON: delete that line, or run into a new folder."
            ) from error
        if (
            not isinstance(line, dict)
            or not isinstance(line.get("algorithm"), str)
            or not _whole(line.get("seed"))
            or not _whole(line.get("round"))
        ):
            raise RunFolderError(
                f"{path}, line {n} lacks an algorithm (text), a seed or a round (whole numbers): "
                "delete that line, or run into a new folder."
            )
        lines.append(line)
    if not lines:
        raise RunFolderError(
            f"{path} has no evaluated round yet: wait for the first, or run again."
        )
    return lines


def write_whole(path: Path, text: str) -> Path:
    """`path`, holding this text: a temporary file beside it is written, then takes its place."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return path


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one when there is no such file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{path} cannot be read as JSON ({error}): restore the file, or run into a new folder."
        ) from error
    if not isinstance(found, dict):
        raise RunFolderError(
            f"{path} is not a JSON object: restore the file, or run into a new folder."
        )
    return found


def write_summary(folder: Path, target: Target | None = None) -> Summary:
    """The summary of the folder's `metrics.jsonl`, also written to its `summary.json`."""
    full = number(read_json(folder / "data.json").get("bytes_full_model"))
    summary = summarise(read_metrics(folder / "metrics.jsonl"), target, full)
    write_whole(folder / "summary.json", json.dumps(summary, indent=1, allow_nan=False) + "\n")
    return summary


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
