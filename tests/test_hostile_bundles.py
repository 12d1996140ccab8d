"""Bundles of a writer who lies: their digest is right, and nothing else has to be."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
from ranked import positives

pytest.importorskip("safetensors")

from fedrows import load
from fedrows.errors import BundleError
from fedrows.models import mf
from fedrows.runs.export import Trained
from fedrows.serving.bundle import FACTS, FORMAT, open_bundle, save_bundle


def written(path: Path, files: dict[str, bytes], compression: int) -> Path:
    """An archive with a right digest as its comment."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.comment = b"0" * 64
    content = out.getvalue()[:-64]
    path.write_bytes(content + hashlib.sha256(content).hexdigest().encode())
    return path


def test_a_bundle_that_becomes_larger_than_its_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "bomb", {FACTS: b" " * 2**20}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**13
    with pytest.raises(BundleError, match="is compressed, and bundles of fedrows are not"):
        open_bundle(path)


@pytest.mark.parametrize("encoder", [None, [], {}, {"features": 3}])
def test_facts_that_do_not_fit_are_refused(tmp_path: Path, encoder: object) -> None:
    facts = {"format": FORMAT, "fedrows": "0", **({} if encoder is None else {"encoder": encoder})}
    files = {FACTS: json.dumps(facts).encode()}
    path = written(tmp_path / "odd", files, zipfile.ZIP_STORED)
    with pytest.raises(BundleError, match="has parts that do not fit together"):
        open_bundle(path)


@pytest.mark.parametrize(
    "lie", [{"ridge": "much"}, {"ridge": -1}, {"first": {"item": 99}}, {"first": {"tea": 0}}]
)
def test_a_ridge_that_does_not_fit_is_refused(tmp_path: Path, lie: dict[str, Any]) -> None:
    data = positives()
    start = mf.build(data)
    trained = Trained(start, start.start(), data, built_by="mf")
    save_bundle(trained, tmp_path / "true", onnx=False)
    with zipfile.ZipFile(tmp_path / "true") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    facts = json.loads(files[FACTS])
    facts["model"] |= lie
    files[FACTS] = json.dumps(facts).encode()
    path = written(tmp_path / "odd", files, zipfile.ZIP_STORED)
    with pytest.raises(BundleError, match="has a ridge that does not fit its tables"):
        load(path)
