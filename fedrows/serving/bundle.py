"""A bundle: a trained model in one file, with all that is needed to feed it with new data.

    bundle.json           the format, what was trained, the encoder, the schema, the metrics
    vocabulary.json       the values of every vocabulary, in the order of their rows
    weights.safetensors   the numbers, by the names of the module
    model.onnx            the scores as a graph, if the extra onnx was installed

The file is a plain zip archive without compression. Its comment is the SHA-256 of all bytes before
it, so a file that was cut short or changed is recognised. Nothing in it is a pickle, and opening it
runs no code.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from fedrows import catalogue
from fedrows.data.encoder import WORDS as VOCABULARY
from fedrows.data.encoder import Encoder
from fedrows.data.values import NUMBER, TIME, text_of
from fedrows.errors import BundleError
from fedrows.files.whole import Json, as_json, reason, write_whole
from fedrows.lifting.lifted import Lifted
from fedrows.lifting.relift import lifting_of
from fedrows.model import LOSSES
from fedrows.runs.export import ExportError, Trained, check_format, save
from fedrows.serving.check_bundle import check_encoder, check_facts, check_vocabulary
from fedrows.version import __version__

FORMAT, SUFFIX = 2, ".fedrows"
FACTS, WORDS, WEIGHTS, ONNX = "bundle.json", "vocabulary.json", "weights.safetensors", "model.onnx"
_DIGEST = 64  # letters of a SHA-256 in hexadecimal
_END = b"PK\x05\x06"  # how the last record of a zip archive begins, 22 bytes before its comment


@dataclass(frozen=True, eq=False)
class Bundle:
    """What a bundle holds, read and checked."""

    path: Path
    facts: Json
    encoder: Encoder
    vocabulary: Mapping[str, np.ndarray]
    weights: Mapping[str, Tensor]
    onnx: bytes | None

    @property
    def metrics(self) -> Json | None:
        """What the model was worth when it was last evaluated."""
        return self.facts["metrics"]

    @property
    def model(self) -> Json:
        """How the model is made again: its name, or the reference of its builder."""
        return self.facts["model"]


def save_bundle(
    trained: Trained, path: Path, *, module: str | None = None, onnx: bool | None = None
) -> list[str]:
    """Writes a trained model as a bundle; gives what is worth knowing about it.

    module: the reference of a function `build(data, seed)` that makes the module again, such as
    recommender.py:build; without it the module is given when the bundle is loaded. onnx: whether
    the scores are written as ONNX too; None: if the packages for it are installed.
    """
    check_format("safetensors")
    if trained.data.encoder is None:
        raise BundleError(f"{trained.data.name} does not say how it was encoded: make it again.")
    notes: list[str] = []
    files = {
        FACTS: as_json(_facts(trained, module), indent=1),
        WORDS: as_json(_words(trained)),
        WEIGHTS: importlib.import_module("safetensors.torch").save(trained.state_dict()),
    }
    if onnx or (onnx is None and _has_onnx(notes)):
        try:
            files[ONNX] = _onnx(trained)
        except ExportError as error:
            if onnx:
                raise
            notes.append(f"The bundle has no ONNX file: {error}")
    try:
        write_whole(path, _archive(files))
    except OSError as error:
        raise BundleError(
            f"{path} cannot be written ({reason(error)}): make room, or name another file."
        ) from error
    for table in sorted(trained.data.local):
        notes.append(f"The rows of {table} stay with their clients: they are as they started.")
    return notes


def open_bundle(path: str | Path) -> Bundle:
    """The content of a bundle; a BundleError unless it is whole, unchanged and of this format."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BundleError(f"{path} cannot be read ({reason(error)}): name a bundle.") from error
    if content[-_DIGEST - 22 :][:4] != _END:
        raise BundleError(
            f"{path} is cut short or no bundle of fedrows: write it again with fedrows export."
        )
    if hashlib.sha256(content[:-_DIGEST]).hexdigest().encode() != content[-_DIGEST:]:
        raise BundleError(
            f"{path} was changed after it was written, for its digest is another: write it again "
            "with fedrows export."
        )
    files = _files(path, content)
    facts = _checked(path, files)
    safetensors = importlib.import_module("safetensors")
    try:
        check_facts(facts)
        encoder = Encoder.from_facts(facts["encoder"])
        tensors = importlib.import_module("safetensors.torch").load(files[WEIGHTS])
        check_encoder(encoder, tensors)
        texts = json.loads(files[WORDS])
        check_vocabulary(encoder, texts)
        words = _vocabulary(encoder, texts)
    except (
        KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError,
        safetensors.SafetensorError,
    ) as error:  # fmt: skip
        raise BundleError(
            f"{path} has parts that do not fit together ({type(error).__name__}: {error}): write "
            "it again with fedrows export."
        ) from error
    return Bundle(path, facts, encoder, words, tensors, files.get(ONNX))


def _files(path: Path, content: bytes) -> dict[str, bytes]:
    """The parts of a bundle. The digest is its writer's own, so a writer may lie about all else.

    A bundle is not compressed: nothing in it can become larger than the file.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if not stored or sum(entry.file_size for entry in entries) > len(content):
                raise BundleError(
                    f"{path} is compressed, and bundles of fedrows are not: name a bundle."
                )
            return {entry.filename: archive.read(entry) for entry in entries}
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise BundleError(
            f"{path} is damaged ({error}): write it again with fedrows export."
        ) from error


def _checked(path: Path, files: Mapping[str, bytes]) -> Json:
    """The facts of a bundle that this version can read."""
    check_format("safetensors")
    try:
        facts = json.loads(files[FACTS])
        format_, version = facts["format"], facts["fedrows"]
    except (KeyError, ValueError, TypeError, RecursionError):
        raise BundleError(
            f"{path} is an archive, but no bundle of fedrows: name a bundle."
        ) from None
    if format_ != FORMAT:
        raise BundleError(
            f"{path} has format {format_!r} of fedrows {version}, but this is fedrows "
            f"{__version__} with format {FORMAT}: use that version, or export the run again."
        )
    return dict(facts)


def _facts(trained: Trained, module: str | None) -> Json:
    """What bundle.json says."""
    data, schema, model = trained.data, trained.model.schema, trained.model
    assert data.encoder is not None
    made: Json = {"name": None, "reference": module, "class": type(model).__name__}
    builder = module or trained.built_by
    if builder is not None and (":" in builder or builder.endswith(".py")):
        made |= {"reference": builder, "code": catalogue.code_of(catalogue.builder(builder))}
    elif builder is not None:
        made["name"] = builder
    if isinstance(model, Lifted):
        made |= {"class": type(model.module).__name__, **lifting_of(model)}
    return {
        "format": FORMAT,
        "fedrows": __version__,
        "about": {"data": data.name, **trained.about},
        "model": {
            **made,
            "options": dict(model.options),
            "own_loss": model.loss is not LOSSES[data.labels],
        },
        "schema": {
            "tables": {name: [x.rows, x.width] for name, x in schema.tables.items()},
            "dense": {name: list(shape) for name, shape in schema.dense.items()},
        },
        "encoder": _encoder(data.encoder).as_facts(),
        "metrics": None if trained.metrics is None else dict(trained.metrics),
    }


def _encoder(encoder: Encoder) -> Encoder:
    """The encoder of a bundle: clients that are new read a start row of the local tables.

    All rows of those are as they started, so where there is none for unknown values any will do.
    """
    tables = dict(encoder.tables)
    for name in encoder.local:
        table = tables[name]
        if table.how == VOCABULARY and table.unknown is None:
            tables[name] = replace(table, unknown=int(name in encoder.padded))
    return replace(encoder, tables=tables)


def _words(trained: Trained) -> Json:
    encoder = trained.data.encoder
    assert encoder is not None
    kinds = {column.table: column.kind for column in encoder.features.values()}
    return {
        table: [text_of(word, kinds[table]) for word in words]
        for table, words in trained.data.vocabulary.items()
    }


def _vocabulary(encoder: Encoder, texts: Mapping[str, list[str]]) -> dict[str, np.ndarray]:
    """The vocabularies with values of their kind: whole numbers, fractions, times or text."""
    kinds = {column.table: column.kind for column in encoder.features.values()}
    words: dict[str, np.ndarray] = {}
    for table, own in texts.items():
        if kinds[table] == TIME:
            words[table] = np.array(own, dtype="M8[ns]")
        elif kinds[table] == NUMBER:
            integers = all(text.lstrip("-").isdigit() for text in own)
            words[table] = np.array([(int if integers else float)(text) for text in own])
        else:
            words[table] = np.array(own, dtype=object)
    return words


def _has_onnx(notes: list[str]) -> bool:
    """Whether ONNX can be written; if not, the notes say so."""
    try:
        check_format("onnx")
        return True
    except ExportError as error:
        notes.append(f"The bundle has no ONNX file: {error}")
        return False


def _onnx(trained: Trained) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        save(trained, Path(folder) / ONNX, "onnx")
        return (Path(folder) / ONNX).read_bytes()


def _archive(files: Mapping[str, bytes]) -> bytes:
    """A zip archive that ends with the digest of itself; the same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
        archive.comment = b"0" * _DIGEST
    body = out.getvalue()[:-_DIGEST]
    return body + hashlib.sha256(body).hexdigest().encode()
