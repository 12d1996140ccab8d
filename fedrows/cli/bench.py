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
    known = measurements()
    if words and words[0] in ("-h", "--help"):
        lines = "\n".join(f"  {name:9} {what}" for name, what in known.items())
        say(f"usage: fedrows bench NAME [options]\n\n{lines}")
        return 0
    if not words:
        raise UsageError(f"Name what to measure: one of {', '.join(known)}.")
    if words[0] not in known:
        raise UnknownNameError("benchmark", words[0], known)
    try:
        importlib.import_module(f"fedrows.bench.{words[0]}").main(list(words[1:]))
    except SystemExit as stop:  # argparse's way to end after --help or an error
        return int(stop.code or 0)
    return 0


def measurements() -> dict[str, str]:
    """Every name, and the first line of its file."""
    texts = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.py"))}
    return {
        name: text.split("\n")[0].strip('".')
        for name, text in texts.items()
        if "\ndef main(" in text
    }
