"""Where a user's files are kept that can be had again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """fedrows in $XDG_CACHE_HOME, or in ~/.cache; a RuntimeError if there is no home."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    return (Path(chosen) if chosen else Path.home() / ".cache") / "fedrows"
