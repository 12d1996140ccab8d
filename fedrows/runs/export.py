"""What leaves the house: a trained model as a state dict or ONNX, and the vocabulary beside it.

    trained = export.Trained.of(fedrows.simulate(data, module, rounds=100), data)
    export.save(trained, Path("model.safetensors"))       # or model.pt, model.onnx
    export.save_vocabulary(data, Path("vocabulary.jsonl"))

A state dict has the names of the user's own module and loads into it. A model that is not a module,
such as logistic regression, has a tensor for each table and each dense parameter, by its name. Rows
that stay with their clients are not the server's to give away: they are as they started.

Files are written beside their place and moved into it in one step.
"""

from __future__ import annotations

import copy
import importlib
import json
import logging
import os
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedrows.data.federation import FederatedData
from fedrows.data.personal import PERSONAL
from fedrows.data.vocabulary import value_of
from fedrows.errors import FedrowsError
from fedrows.files.whole import placing, reason
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.nn import GRU, LSTM
from fedrows.rows.params import Params
from fedrows.rows.ragged import Ragged
from fedrows.version import __version__

SUFFIXES = {
    "": "safetensors",
    ".safetensors": "safetensors",
    ".pt": "torch",
    ".pth": "torch",
    ".onnx": "onnx",
}
LARGEST = 2**31 - 2**20  # bytes in an ONNX file: protobuf ends at 2 GiB


class ExportError(FedrowsError, ValueError):
    """A model that cannot be written as was asked."""


class TrainedResult(Protocol):
    """A trained model as `fedrows.simulate` returns it."""

    model: Model
    params: Params

    @property
    def metrics(self) -> dict[str, Any] | None: ...


@dataclass
class Trained:
    """A trained model with the data it was trained on."""

    model: Model
    params: Params
    data: FederatedData
    about: Mapping[str, str] = field(default_factory=dict)  # what a file says of itself
    metrics: Mapping[str, Any] | None = (
        None  # of its round, or of the last one before that was evaluated
    )
    built_by: str | None = None  # the name or the reference of the model's builder

    @classmethod
    def of(cls, result: TrainedResult, data: FederatedData) -> Trained:
        """The model of a finished simulation: of what `fedrows.simulate` returned."""
        return cls(result.model, result.params, data, metrics=result.metrics)

    def shared(self) -> Params:
        """The numbers that may leave: rows that stay with their clients are as they started."""
        if not self.data.local:
            return self.params
        start = self.model.start()
        own = {name: start.tables[name].to(self.params.tables[name]) for name in self.data.local}
        return Params({**self.params.tables, **own}, self.params.dense)

    def state_dict(self) -> dict[str, Tensor]:
        """The numbers by the names of the module, each with memory of its own."""
        params = self.shared()
        if isinstance(self.model, Lifted):
            numbers = self.model.export(params)
        else:
            numbers = {**params.tables, **params.dense}
        state: dict[str, Tensor] = {}
        seen = set()
        for name, x in numbers.items():
            own = x.detach().cpu().contiguous()
            address = own.untyped_storage().data_ptr() if own.numel() else None
            state[name] = own.clone() if address in seen else own  # tied weights have two names
            seen.add(address if own.numel() else object())
        return state

    def module(self) -> nn.Module:
        """A plain module that scores `module(*columns)`, in the order of `inputs`."""
        names = list(self.inputs())
        if not isinstance(self.model, Lifted):
            return _Scorer(self.model, self.shared(), names).eval()
        module = copy.deepcopy(self.model.module).cpu()
        module.load_state_dict(self.state_dict())
        return _Named(_with_own_layers(module), names).eval()

    def inputs(self) -> dict[str, Tensor]:
        """Two examples as the module takes them, by field: a list has at least two places.

        A model that ranks takes candidates in the place of its target, here two of each example.
        """
        data = self.data
        some = torch.arange(2, device=data.train.label.device) % len(data.train)
        columns = {}
        hidden = {PERSONAL} if isinstance(self.model, Lifted) and self.model.personal else set()
        for name, column in data.train.fields(some).items():
            if name in hidden:
                continue
            column = column.cpu()
            if name in self.lists() and column.shape[1] < 2:
                column = nn.functional.pad(column, (0, 2 - column.shape[1]))
            columns[name] = column if name in data.train.ids else column.to(self._dtype())
        for name in self.candidates():
            columns[name] = columns[name].unsqueeze(1).repeat(1, 2)  # (2, 2)
        return columns

    def lists(self) -> set[str]:
        """The fields that hold lists, which may have any length."""
        return {name for name, x in self.data.train.ids.items() if isinstance(x, Ragged)}

    def candidates(self) -> set[str]:
        """The field that holds candidates, of which an example may have any number."""
        target = self.data.target
        return {target[0]} if self.data.labels == "ranking" and target else set()

    def _dtype(self) -> torch.dtype:
        if isinstance(self.model, Lifted):
            return next(x.dtype for x in self.model.module.parameters() if x.is_floating_point())
        return next(iter(self.params.tables.values())).dtype


def name_of(model: Model) -> str:
    """The name of a model's class, or of the module's that was lifted."""
    return type(model.module if isinstance(model, Lifted) else model).__name__


def format_of(path: Path) -> str:
    """The format that a file's name asks for; an ExportError if it asks for none."""
    format = SUFFIXES.get(path.suffix.lower())
    if format is None:
        raise ExportError(
            f"The name of {path} does not say what to write: end it in "
            f"{', '.join(filter(None, SUFFIXES))}, or say which format."
        )
    return format


def save(trained: Trained, path: Path, format: str | None = None) -> None:
    """Writes a model as `safetensors`, `torch` (a plain dict of tensors) or `onnx`."""
    WRITERS[check_format(format or format_of(path))](trained, path)


def check_format(format: str) -> str:
    """The format, if it exists and what it needs is installed."""
    if format not in WRITERS:
        raise ExportError(
            f"There is no format {format!r} to export to: choose one of {', '.join(WRITERS)}."
        )
    needs = {"safetensors": ["safetensors"], "onnx": ["onnx", "onnxscript"]}.get(format, [])
    extra = "cli" if format == "safetensors" else format
    for package in needs:
        try:
            importlib.import_module(package)
        except ImportError:
            raise ExportError(
                f"Exporting to {format} needs the package {package}: pip install fedrows[{extra}]."
            ) from None
    return format


def onnx_inputs(path: Path) -> dict[str, list[int | str]]:
    """What an ONNX file takes: the shape of each field, with names for what may vary."""
    graph = importlib.import_module("onnx").load(str(path)).graph
    return {
        x.name: [d.dim_param or d.dim_value for d in x.type.tensor_type.shape.dim]
        for x in graph.input
    }


def save_vocabulary(data: FederatedData, path: Path) -> list[str]:
    """Writes which value has which row, as JSON lines; gives the tables that keep no values.

    A line has a table, a row and its value; the row that means nothing and the one for unknown
    values have none, and say what they are for.
    """
    check_vocabulary(data)
    with _placed(path) as part, part.open("w", encoding="utf-8", newline="\n") as file:
        for table in data.vocabulary:
            for line in _rows_of(data, table):
                file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return [table for table in data.tables if table not in data.vocabulary]


def check_vocabulary(data: FederatedData) -> None:
    """Raises if no table of the data keeps its values."""
    if not data.vocabulary:
        raise ExportError(
            f"{data.name} keeps no vocabulary, for its ids are rows already or hashes: leave it "
            "out."
        )


def _rows_of(data: FederatedData, table: str) -> Iterator[dict[str, Any]]:
    first, words = int(table in data.padded), data.vocabulary[table]
    for row in range(data.tables[table]):
        if row < first:
            yield {"table": table, "row": row, "value": None, "means": "nothing here"}
        elif row < first + len(words):
            value = value_of(data.vocabulary, table, bool(first), row)
            yield {"table": table, "row": row, "value": getattr(value, "item", lambda v=value: v)()}
        else:
            yield {"table": table, "row": row, "value": None, "means": "every other value"}


def _save_safetensors(trained: Trained, path: Path) -> None:
    safetensors = importlib.import_module("safetensors")
    files = importlib.import_module("safetensors.torch")
    about = {"format": "pt", "fedrows": __version__, **trained.about}
    with _placed(path) as part:
        try:
            files.save_file(trained.state_dict(), part, about)
        except safetensors.SafetensorError as error:  # the disk's own errors arrive like that
            raise OSError(str(error)) from error
        part.chmod(0o644)  # the library makes it for its owner alone


def _save_torch(trained: Trained, path: Path) -> None:
    with _placed(path) as part, part.open("wb") as file:
        torch.save(trained.state_dict(), file)


def _save_onnx(trained: Trained, path: Path) -> None:
    """The scores of the whole model: fields go in by name, any number of examples."""
    module, inputs = trained.module(), trained.inputs()
    size = sum(x.nbytes for x in module.state_dict().values())
    if size > LARGEST:
        raise ExportError(
            f"The model has {size:,} bytes, but an ONNX file holds 2 GiB: export it as safetensors."
        )
    with quiet_exporter(), torch.no_grad():
        try:
            try:
                program = _program(module, inputs, trained.lists() | trained.candidates())
            except Exception:  # a module may be made for lists of one length
                program = _program(module, inputs, trained.candidates())
        except Exception as error:  # whatever the exporter meets in the user's code
            raise ExportError(
                f"{name_of(trained.model)} cannot be exported to ONNX ({last_line(error)}): "
                "export it as safetensors."
            ) from error
        with _placed(path) as part:
            program.save(part, external_data=False)


def _program(module: nn.Module, inputs: Mapping[str, Tensor], varied: Collection[str]) -> Any:
    """The module in ONNX, for any number of examples, and of entries in the fields `varied`."""
    shapes = [{0: "examples", **({1: f"{n}_length"} if n in varied else {})} for n in inputs]
    return torch.onnx.export(
        module,
        tuple(inputs.values()),
        input_names=list(inputs),
        output_names=["score"],
        dynamic_shapes={"columns": tuple(shapes)},
        dynamo=True,
        verbose=False,
    )


WRITERS: dict[str, Callable[[Trained, Path], None]] = {
    "safetensors": _save_safetensors,
    "torch": _save_torch,
    "onnx": _save_onnx,
}


class _Scorer(nn.Module):
    """A model that is no module, as one."""

    def __init__(self, model: Model, params: Params, names: list[str]) -> None:
        super().__init__()
        self._model, self._names = model, names
        self._tables, self._dense = list(params.tables), list(params.dense)
        for number, x in enumerate([*params.tables.values(), *params.dense.values()]):
            self.register_buffer(f"number_{number}", x.detach().cpu())

    def forward(self, *columns: Tensor) -> Tensor:
        numbers = list(self.buffers())
        split = len(self._tables)
        params = Params(
            dict(zip(self._tables, numbers[:split], strict=True)),
            dict(zip(self._dense, numbers[split:], strict=True)),
        )
        return self._model.scores(params, dict(zip(self._names, columns, strict=True)))


class _Named(nn.Module):
    """A module that takes its fields by place."""

    def __init__(self, module: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module, self._names = module, names

    def forward(self, *columns: Tensor) -> Any:
        return self.module(**dict(zip(self._names, columns, strict=True)))


def _with_own_layers(module: nn.Module) -> nn.Module:
    """The module with PyTorch's own recurrent layers, which other formats know, for ours."""
    for path, layer in list(module.named_modules()):
        if isinstance(layer, LSTM | GRU):
            own = (nn.LSTM if isinstance(layer, LSTM) else nn.GRU)(
                layer.input_size,
                layer.hidden_size,
                layer.num_layers,
                layer.bias,
                layer.batch_first,
                layer.dropout,
                layer.bidirectional,
            ).to(next(layer.parameters()).dtype)
            own.load_state_dict(layer.state_dict())
            if not path:
                return own
            module.set_submodule(path, own)
    return module


@contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """A name to write to; what goes wrong is an error that names the file."""
    try:
        with placing(path) as part:
            yield part
    except OSError as error:
        raise ExportError(
            f"{path} cannot be written ({reason(error)}): make room, or name another file."
        ) from error


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Keeps the exporter from talking of what does not concern the user."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


def last_line(error: BaseException) -> str:
    """What an error says in the end, in one line: the exporter wraps causes in causes."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = " ".join(text.split()).rstrip(".:")
    return text if len(text) <= 150 else f"{text[:149]}…"
