"""`fedrows export`: the trained model of a run folder, as a bundle or for use without fedrows."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.run_source import RunSource, deployed_source, simulated_source
from fedrows.cli.show import print_table, say
from fedrows.device.program import build
from fedrows.errors import RunFolderError
from fedrows.measure.evaluation import Evaluator
from fedrows.rows.params import Params
from fedrows.runs import checkpoint, export
from fedrows.runs.export import (
    ExportError,
    Trained,
    check_format,
    format_of,
    onnx_inputs,
    save,
    save_vocabulary,
)
from fedrows.runs.finite import not_finite
from fedrows.runs.folder import BEST, CHECKPOINT, CONFIG, FILES, RUNS, TABLES, RunFolder
from fedrows.runs.release import released_model
from fedrows.server import begin
from fedrows.serving.bundle import SUFFIX, save_bundle
from fedrows.tables import whole

BUNDLE = "bundle"


def main(words: Sequence[str]) -> int:
    parser = _parser()
    typed = parser.parse(words)
    if typed["run"] is None or typed["to"] is None:
        raise UsageError(
            "Name a run and a file, as in: fedrows export runs/NAME --to model.safetensors."
        )
    folder, path = Path(typed["run"]), Path(typed["to"])
    if typed["device"]:
        return _device(typed, folder, path)
    vocabulary = None if typed["vocabulary"] is None else Path(typed["vocabulary"])
    for file in filter(None, (path, vocabulary)):
        _check_place(file, typed["overwrite"])
    format = _format(typed["format"], path)
    if vocabulary is not None and vocabulary.absolute() == path.absolute():
        raise UsageError(f"--to and --vocabulary both say {path}: name two files.")
    trained = read(folder, typed["task"])
    if vocabulary is not None:
        export.check_vocabulary(trained.data)
    if format == BUNDLE:
        notes = save_bundle(trained, path, module=typed["module"], onnx=typed["onnx"])
        _tell_bundle(trained, path, notes)
    else:
        save(trained, path, format)
        _tell(trained, path, format)
    if vocabulary is not None:
        kept_none = save_vocabulary(trained.data, vocabulary)
        which = f"; {', '.join(kept_none)} keeps no values" if kept_none else ""
        say(f"Vocabulary: {vocabulary}{which}")
    return 0


def _device(typed: Mapping[str, Any], path: Path, to: Path) -> int:
    for flag in ("format", "vocabulary", "module", "onnx"):
        if typed[flag] is not None:
            raise UsageError(f"--{flag} does not go with --device: leave one of them out.")
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is a file, but a device program is a folder: name another.")
    if (to / CONFIG).exists():
        raise UsageError(f"{to} is a run folder: name another folder.")
    if to.is_dir() and any(to.iterdir()) and not typed["overwrite"]:
        raise UsageError(f"{to} is not empty: name another folder, or replace it: --overwrite.")
    folder = _run_folder(path)
    mode = (folder.config.get("privacy") or folder.config.get("deploy") or {}).get("privacy")
    if mode not in (None, "none", "clear"):  # simulated and deployed runs say it differently
        raise ExportError(
            f"{path} is a run with privacy {mode}, whose protocols a device program does not have: "
            "export a run without privacy."
        )
    source = _source(folder, typed["task"])
    data, model = source.make()
    program = build(model, data, source.plan, source.algorithm)
    program.save(to)
    shapes = program.manifest["step"]["inputs"]
    print_table(
        ["input", "shape", "type"], [[n, _shape(x["shape"]), x["type"]] for n, x in shapes.items()]
    )
    say(f"Device program of {program.manifest['model']}, {len(program.step):,} bytes: {to}")
    return 0


def _run_folder(path: Path) -> RunFolder:
    folder = RunFolder.open(path)
    if folder.config["kind"] != "run":
        runs = sorted(p for p in (path / RUNS).glob("*") if p.is_dir())
        such = f", such as {runs[0]}" if runs else ""
        raise RunFolderError(f"{path} is a comparison: name one of its runs{such}.")
    return folder


def read(path: Path, task: str | None = None) -> Trained:
    """The trained model of a run folder, every row up to date.

    task: where the task of a deployed run is, if not where its server found it.
    """
    folder = _run_folder(path)
    source = _source(folder, task)
    if source.released:
        return _read_released(folder, source)
    best = path / BEST
    saved = best if best.exists() else path / CHECKPOINT
    standing = checkpoint.standing(saved)  # so that a bad one is found before the data are read
    (data, model), plan = source.make(), source.plan
    progress = begin(model, source.algorithm, plan, data.local, path / TABLES)
    with folder.locked() if progress.table_folder is not None else nullcontext():
        wanted = progress.tensors()
        for name, tensor in checkpoint.read_tensors(saved, wanted).items():
            wanted[name].copy_(tensor)
        if progress.table_folder is not None and standing.tables is not None:
            progress.table_folder.restore(standing.tables, read_only=True)
        progress.round = standing.round
        params = progress.whole()
        params = Params({table: whole(x) for table, x in params.tables.items()}, params.dense)
    _check_finite(params, path)
    model.calibrate(params, Evaluator(model, data, plan).train)
    lines = [line for line in folder.lines() if line["round"] <= standing.round]
    metrics = lines[-1] if lines else None
    return Trained(model, params, data, source.about(standing.round), metrics, source.builder(data))


def _source(folder: RunFolder, task: str | None) -> RunSource:
    if "deploy" in folder.config:
        return deployed_source(folder, task)
    if task is not None:
        raise UsageError(f"--task is for deployed runs, but {folder.path} is a simulated one.")
    return simulated_source(folder)


def _read_released(folder: RunFolder, source: RunSource) -> Trained:
    """The model of a run under privacy full, from what may leave its folder."""
    tensors, round_ = released_model(folder)
    data, model = source.make()
    start = model.start()
    own = {f"table/{name}": x for name, x in start.tables.items() if name not in data.local}
    own |= {f"dense/{name}": x for name, x in start.dense.items()}
    if {k: x.shape for k, x in own.items()} != {k: x.shape for k, x in tensors.items()}:
        raise RunFolderError(
            f"The model in {folder.path} is not that of its run: the data or the model have "
            "changed since."
        )
    tables = {name: tensors.get(f"table/{name}", x) for name, x in start.tables.items()}
    params = Params(tables, {name: tensors[f"dense/{name}"] for name in start.dense})
    _check_finite(params, folder.path)
    # Moments of normalisation stay as they started: measured ones would be exact numbers.
    # Metrics are exact numbers too.
    return Trained(model, params, data, source.about(round_), None, source.builder(data))


def _check_finite(params: Params, path: Path) -> None:
    if odd := not_finite(params):
        raise RunFolderError(
            f"The model in {path} is of no use, for {odd} is not finite: run it with a lower lr."
        )


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


def _tell_bundle(trained: Trained, path: Path, notes: Sequence[str]) -> None:
    """Says what a bundle needs to be loaded."""
    for note in notes:
        say(note)
    builder = trained.built_by
    if builder is not None and ":" not in builder:
        say(f"Load it with fedrows.load({str(path)!r}).")
    else:
        say(f"Load it with fedrows.load({str(path)!r}, module=…), or without the module by ONNX.")
    say(f"Bundle of the model after round {trained.about['round']}: {path}")


def _format(typed: str | None, path: Path) -> str:
    """The format that was asked for, by its name or by that of the file."""
    if typed == BUNDLE or (typed is None and path.suffix.lower() == SUFFIX):
        return BUNDLE
    if typed is not None and typed not in export.WRITERS:
        known = ", ".join([*export.WRITERS, BUNDLE])
        raise UsageError(f"There is no format {typed!r} to export to: choose one of {known}.")
    return check_format(typed or format_of(path))


def _shape(dims: Iterable[int | str]) -> str:
    return f"({', '.join(map(str, dims))})"


def _parser() -> Parser:
    parser = Parser("export", "Writes the trained model of a run for use without fedrows.")
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="The folder of the run.")
    add("--to", metavar="FILE", help="The file to write; with --device, the folder.")
    formats = "|".join([*export.WRITERS, BUNDLE])
    add("--format", metavar=formats, help="What to write (default: by the end of FILE's name).")
    add("--vocabulary", metavar="FILE", help="Also write which value has which row (JSON lines).")
    add("--module", metavar="REFERENCE", help="Of a bundle: what builds its module, file.py:build.")
    add(
        "--onnx",
        action=argparse.BooleanOptionalAction,
        help="Of a bundle: with an ONNX file in it (default: if fedrows[onnx] is installed).",
    )
    add("--device", action="store_true", help="Write the local training as a device program.")
    add("--task", metavar="REFERENCE", help="Of a deployed run: its task, such as task.py:TASK.")
    add("--overwrite", action="store_true", help="Replace files that exist.")
    return parser
