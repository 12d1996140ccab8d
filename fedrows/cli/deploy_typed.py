"""What the actions of `fedrows deploy` share: reading what was typed, and whom to trust."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fedrows.cli.flags import UsageError
from fedrows.errors import FedrowsError
from fedrows.files.whole import make_private


def needed(typed: dict[str, Any], name: str, otherwise: str) -> str:
    if not typed[name]:
        raise UsageError(f"{otherwise}.")
    return str(typed[name])


def comma_list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def number(text: str, flag: str, low: int, high: int) -> int:
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{flag} is {text!r}, but must be a whole number from {low} to {high}.")
    return int(text)


def positive(text: str, flag: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 3600:
        raise UsageError(f"{flag} is {text!r}, but must be a number from 0.05 to 3600.")
    return value


def writable(folder: Path, flag: str) -> Path:
    """The folder, made if need be; raises if it cannot be written."""
    folder = folder.absolute()
    try:
        make_private(folder)
        ok = os.access(folder, os.W_OK | os.X_OK)
    except OSError:
        ok = False
    if not ok:
        raise FedrowsError(f"{folder} is not a folder that can be written: choose one with {flag}.")
    return folder


def trust(typed: dict[str, Any]) -> Path | None:
    """The folder of certificates; None if it was asked to do without."""
    if typed["insecure"] and typed["certificates"]:
        raise UsageError("--insecure and --certificates contradict each other: choose one.")
    if not typed["insecure"] and not typed["certificates"]:
        raise UsageError(
            "Name the folder of certificates with --certificates, or ask to do without TLS with "
            "--insecure."
        )
    return Path(typed["certificates"]) if typed["certificates"] else None


def authority(certificates: Path) -> Path:
    from fedrows.flower.launch.certificates import CA

    return (certificates / CA if certificates.is_dir() else certificates).absolute()
