"""DIN at Amazon's shapes, a history of 100: a simulated round against what one would do instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.speed.one_model import compare

TITLE = (__doc__ or "").strip()


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measures, prints and returns rounds/s and the ratios."""
    return compare("din", TITLE, argv)
