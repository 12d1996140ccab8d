"""`fedrows bench`: measurements, each a file in fedrows/bench with a `main` of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from fedrows.cli.flags import UsageError
from fedrows.cli.show import say
from fedrows.errors import UnknownNameError

FOLDER = Path(__file__).parent.parent / "bench"


def main(words: Sequence[str]) -> int:
    """Hands the rest of the command line to the measurement."""
    names = sorted(path.stem for path in FOLDER.glob("*.py") if "\ndef main(" in path.read_text())
    known = ", ".join(names) or "none yet"
    if words and words[0] in ("-h", "--help"):
        say(f"usage: fedrows bench NAME [options]\n\nNAME is one of {known}.")
        return 0
    if not words:
        raise UsageError(f"Name what to measure: one of {known}.")
    if words[0] not in names:
        raise UnknownNameError("benchmark", words[0], names)
    try:
        importlib.import_module(f"fedrows.bench.{words[0]}").main(list(words[1:]))
    except SystemExit as stop:  # argparse's way to end after --help or an error
        return int(stop.code or 0)
    return 0
