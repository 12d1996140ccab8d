"""`fedrows predict`: the scores of new rows, by the model of a bundle."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.data.encoder import Encoder
from fedrows.errors import FedrowsError
from fedrows.files.whole import placing, reason, write_whole
from fedrows.serving.read_frame import FORMATS, read_frame, reader
from fedrows.serving.recommend import Predictions
from fedrows.serving.served_model import ServedModel, load


def main(words: Sequence[str]) -> int:
    parser = _parser()
    typed = parser.parse(words)
    if None in (typed["bundle"], typed["data"], typed["out"]):
        raise UsageError(
            "Name a bundle, its data and a file to write, as in: fedrows predict model.fedrows "
            "--data new.csv --out scores.csv."
        )
    out = Path(typed["out"])
    _check_place(out, typed["overwrite"])
    served = load(typed["bundle"], typed["module"], onnx=typed["onnx"])
    frame = read_frame(Path(typed["data"]), served.bundle.encoder)
    predictions = served.predict(frame)
    _write(out, _columns(served.bundle.encoder, frame, predictions))
    tell_unused(served, frame)
    for note in predictions.notes:
        say(note)
    say(f"{len(predictions.scores):,} rows: {out}")
    return 0


def add_bundle_flags(parser: Parser) -> None:
    add = parser.add_argument
    add("bundle", metavar="BUNDLE", nargs="?", help="The bundle that fedrows export has written.")
    add("--data", metavar="FILE", help="The rows: a .csv or a .parquet file.")
    add(
        "--module", metavar="REFERENCE", help="What builds the module of the bundle: file.py:build."
    )
    add("--onnx", action="store_true", help="Score by the ONNX file in the bundle.")


def tell_unused(served: ServedModel, frame: Any) -> None:
    """Says which columns of a file were not used."""
    encoder = served.bundle.encoder
    used = {*encoder.features, *encoder.numbers, encoder.client, encoder.label, encoder.weight}
    names = frame.columns if hasattr(frame, "columns") else frame
    if unused := [str(name) for name in names if str(name) not in used]:
        say(f"Not used: {', '.join(unused)}.")


def _columns(encoder: Encoder, frame: Any, predictions: Predictions) -> dict[str, list[Any]]:
    """What is written: the client and the target of every row, its score and its probability."""
    target = None if encoder.target is None or encoder.target[1] is not None else encoder.target[0]
    names = [str(name) for name in (frame.columns if hasattr(frame, "columns") else frame)]
    columns = {n: list(frame[n]) for n in (encoder.client, target) if n in names and n is not None}
    return (
        columns
        | _flat("score", predictions.scores)
        | _flat("probability", predictions.probabilities)
    )


def _flat(name: str, numbers: np.ndarray | None) -> dict[str, list[Any]]:
    """A column of numbers, or one for each class."""
    if numbers is None:
        return {}
    if numbers.ndim == 1:
        return {name: numbers.tolist()}
    return {f"{name}_{i}": column.tolist() for i, column in enumerate(numbers.T)}


def _write(out: Path, columns: dict[str, list[Any]]) -> None:
    try:
        if out.suffix.lower() == ".csv":
            text = io.StringIO()
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(zip(*columns.values(), strict=True))
            write_whole(out, text.getvalue().encode())
            return
        name, library = reader(out)
        frame = library.DataFrame(columns)
        with placing(out) as part:
            frame.write_parquet(part) if name == "polars" else frame.to_parquet(part)
    except OSError as error:
        raise FedrowsError(
            f"{out} cannot be written ({reason(error)}): name another file."
        ) from error


def _check_place(out: Path, overwrite: bool) -> None:
    """Raises now rather than after the work if the file cannot be written."""
    if out.suffix.lower() not in FORMATS:
        raise UsageError(f"--out is {out}, but must end with .csv or .parquet.")
    if out.exists() and not overwrite:
        raise UsageError(f"{out} exists already: name another file, or replace it: --overwrite.")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out} cannot be written, because {out.parent} is no folder.")


def _parser() -> Parser:
    parser = Parser("predict", "Writes the score of every row of a file, by the model of a bundle.")
    add_bundle_flags(parser)
    parser.add_argument("--out", metavar="FILE", help="The .csv or .parquet file to write.")
    parser.add_argument("--overwrite", action="store_true", help="Replace a file that exists.")
    return parser
