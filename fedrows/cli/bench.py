"""`fedrows bench`: runs a measurement of benchmarks/speed, which is in the repository only."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from fedrows.cli.flags import HELP, UsageError
from fedrows.errors import UnknownNameError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "speed"  # each file has a `main` of its own


def main(words: Sequence[str]) -> int:
    known = measurements()
    if not known:
        raise UsageError(
            f"There are no benchmarks in {FOLDER}: they come with the repository, not with the "
            "package, so run fedrows bench in a clone of it (pip install -e .)."
        )
    if words and words[0] in HELP:
        lines = "\n".join(f"  {name:9} {text}" for name, text in known.items())
        print(f"usage: fedrows bench NAME [options]\n\n{lines}")
        return 0
    if not words:
        raise UsageError(f"Name what to measure: one of {', '.join(known)}.")
    if words[0] not in known:
        raise UnknownNameError("benchmark", words[0], known)
    if (root := str(FOLDER.parents[1])) not in sys.path:
        sys.path.insert(0, root)
    importlib.import_module(f"benchmarks.speed.{words[0]}").main(list(words[1:]))
    return 0


def measurements() -> dict[str, str]:
    """Returns every name with the first line of its file; none where there is no repository."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py"))}
    return {
        name: text.split("\n")[0].strip('".')
        for name, text in texts.items()
        if re.search(r"^(def main\(|main = )", text, re.MULTILINE)
    }
