"""`fedrows evaluate`: what the model of a bundle is worth on rows with labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.predict import add_bundle_flags, tell_unused
from fedrows.cli.show import print_table
from fedrows.serving.read_frame import read_frame
from fedrows.serving.served_model import load


def main(words: Sequence[str]) -> int:
    parser = Parser("evaluate", "Measures the model of a bundle on the rows of a file.")
    add_bundle_flags(parser)
    typed = parser.parse(words)
    if None in (typed["bundle"], typed["data"]):
        raise UsageError(
            "Name a bundle and its data, as in: fedrows evaluate model.fedrows --data new.csv."
        )
    served = load(typed["bundle"], typed["module"], onnx=typed["onnx"])
    frame = read_frame(Path(typed["data"]), served.bundle.encoder)
    measured = served.evaluate(frame)
    tell_unused(served, frame)
    before = served.metrics or {}
    rows = [[name, _shown(x), _shown(before.get(f"test_{name}"))] for name, x in measured.items()]
    print_table(["metric", "here", "in its run"], rows)
    return 0


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6f}"
