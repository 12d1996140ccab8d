"""`fedrows export`: the trained model of a run folder, for use without fedrows."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from fedrows import catalogue
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import print_table, say
from fedrows.errors import RunFolderError
from fedrows.measure.evaluation import Evaluator
from fedrows.rows.params import Params
from fedrows.runs import checkpoint, export
from fedrows.runs.export import Trained, check_format, format_of, onnx_inputs, save, save_vocabulary
from fedrows.runs.folder import CHECKPOINT, CONFIG, FILES, RUNS, TABLES, RunFolder
from fedrows.runs.settings import Settings, from_config
from fedrows.server import Progress, begin
from fedrows.tables import SavePoint, whole


def main(words: Sequence[str]) -> int:
    """Writes the model, and the vocabulary if it is wanted."""
    parser = _parser()
    if any(word in ("-h", "--help") for word in words):
        parser.print_help()
        return 0
    typed = parser.parse(words)
    if typed["run"] is None or typed["to"] is None:
        raise UsageError(
            "Name a run and a file, as in: fedrows export runs/NAME --to model.safetensors."
        )
    folder, path = Path(typed["run"]), Path(typed["to"])
    vocabulary = None if typed["vocabulary"] is None else Path(typed["vocabulary"])
    format = check_format(typed["format"] or format_of(path))
    for file in filter(None, (path, vocabulary)):
        _check_place(file, typed["overwrite"])
    if vocabulary is not None and vocabulary.absolute() == path.absolute():
        raise UsageError(f"--to and --vocabulary both say {path}: name two files.")
    trained = read(folder)
    if vocabulary is not None:
        export.check_vocabulary(trained.data)
    save(trained, path, format)
    _tell(trained, path, format)
    if vocabulary is not None:
        kept_none = save_vocabulary(trained.data, vocabulary)
        which = f"; {', '.join(kept_none)} keeps no values" if kept_none else ""
        say(f"Vocabulary: {vocabulary}{which}")
    return 0


def read(path: Path) -> Trained:
    """The trained model of a run folder, every row up to date."""
    folder = RunFolder.open(path)
    if folder.config["kind"] != "run":
        runs = sorted(p for p in (path / RUNS).glob("*") if p.is_dir())
        such = f", such as {runs[0]}" if runs else ""
        raise RunFolderError(f"{path} is a comparison: name one of its runs{such}.")
    saved = path / CHECKPOINT
    standing = checkpoint.standing(saved)  # so that a bad one is found before the data are read
    [settings] = from_config(folder.config, path).values()
    settings = replace(settings, plan=replace(settings.plan, device="cpu"))
    data = settings.task.load(settings.options)
    plan = settings.plan
    model = catalogue.model(settings.task.model)(data, plan.seed)
    progress = begin(model, settings.algorithm, plan, data.local, path / TABLES)
    with folder.locked() if progress.table_folder is not None else nullcontext():
        _fill_(progress, saved, standing.tables)
        progress.round = standing.round
        params = progress.whole()
        params = Params({table: whole(x) for table, x in params.tables.items()}, params.dense)
    model.calibrate(params, Evaluator(model, data, plan).train)
    return Trained(model, params, data, _about(settings, standing.round))


def _fill_(progress: Progress, saved: Path, tables: SavePoint | None) -> None:
    """Puts a checkpoint's numbers, and the algorithm's state, where a run begins."""
    safe_open = importlib.import_module("safetensors").safe_open
    with safe_open(saved, framework="pt", device="cpu") as file:
        for key, tensor in progress.tensors().items():
            stored = file.get_tensor(key) if key in file.keys() else None  # noqa: SIM118
            if stored is None or stored.shape != tensor.shape:
                raise RunFolderError(
                    f"{saved} does not fit its run, look at {key!r}: the data or the model "
                    "have changed since."
                )
            tensor.copy_(stored)
    if progress.table_folder is not None and tables is not None:
        progress.table_folder.restore(tables, read_only=True)


def _about(settings: Settings, round_: int) -> dict[str, str]:
    return {
        "task": settings.task.name,
        "algorithm": settings.algorithm.name,
        "seed": str(settings.plan.seed),
        "round": str(round_),
    }


def _check_place(path: Path, overwrite: bool) -> None:
    """Raises now rather than after the work if a file cannot be written."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a file in it.")
    if path.name in FILES and (path.parent / CONFIG).exists():
        raise UsageError(f"{path} is a file of a run folder's own: name another file.")
    if path.exists() and not overwrite:
        raise UsageError(f"{path} exists already: name another file, or replace it: --overwrite.")
    above = path.absolute().parent
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise UsageError(
            f"{path} cannot be written, because {above} is not a folder that may be written: "
            "name another."
        )


def _tell(trained: Trained, path: Path, format: str) -> None:
    """Says what is in the file."""
    if format == "onnx":
        titles = ["input", "shape"]
        rows = [[name, _shape(dims)] for name, dims in onnx_inputs(path).items()]
    else:
        titles = ["name", "shape", "type"]
        rows = [
            [name, _shape(x.shape), str(x.dtype).removeprefix("torch.")]
            for name, x in trained.state_dict().items()
        ]
    print_table(titles, rows)
    for table in sorted(trained.data.local):
        say(f"The rows of {table} stay with their clients: the file has them as they started.")
    say(f"Model after round {trained.about['round']}: {path}")


def _shape(dims: Iterable[int | str]) -> str:
    return f"({', '.join(map(str, dims))})"


def _parser() -> Parser:
    parser = Parser("export", "Writes the trained model of a run for use without fedrows.")
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="The folder of the run.")
    add("--to", metavar="FILE", help="The file to write.")
    formats = "|".join(export.WRITERS)
    add("--format", metavar=formats, help="What to write (default: by the end of FILE's name).")
    add("--vocabulary", metavar="FILE", help="Also write which value has which row (JSON lines).")
    add("--overwrite", action="store_true", help="Replace files that exist.")
    return parser
