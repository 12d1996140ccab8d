"""The notebooks of examples/notebooks: stored without outputs, and every cell runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import run_notebooks
from website.notebook_page import page_of

PATHS = sorted(run_notebooks.NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)


@each_notebook
def test_notebooks_are_stored_without_outputs(path: Path) -> None:
    cells = json.loads(path.read_text("utf-8"))["cells"]
    assert cells[0]["cell_type"] == "markdown"
    for cell in cells:
        assert not cell.get("outputs"), f"{path.name}: clear the outputs"
        assert cell.get("execution_count") is None, f"{path.name}: clear the outputs"


def test_the_page_of_a_notebook_has_its_outputs(tmp_path: Path) -> None:
    """Text, a table and a picture; but not the outputs of another version of the notebook."""
    stored = {"cells": [{"cell_type": "code", "source": ["1 + 1"], "outputs": []}]}
    outputs = [
        {"output_type": "stream", "text": ["two\n"]},
        {"output_type": "display_data", "data": {"text/html": ["<table></table>"]}},
        {"output_type": "display_data", "data": {"image/svg+xml": ["<svg/>"]}},
    ]
    ran = {"cells": [{"cell_type": "code", "source": ["1 + 1"], "outputs": outputs}]}
    path, executed = tmp_path / "stored.ipynb", tmp_path / "executed.ipynb"
    path.write_text(json.dumps(stored))
    executed.write_text(json.dumps(ran))
    page = page_of(path, executed)
    assert "```python\n1 + 1\n```" in page
    for part in ("two", "<table></table>", "data:image/svg+xml;base64,PHN2Zy8+"):
        assert part in page
        assert part not in page_of(path)
    path.write_text(json.dumps(stored).replace("1 + 1", "1 + 2"))
    assert "two" not in page_of(path, executed)


@pytest.mark.slow(minutes=1)
@each_notebook
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    """In a process of its own, as `make docs` runs it."""
    pytest.importorskip("nbclient", reason="needs nbclient: install fedrows[docs]")
    script = [sys.executable, run_notebooks.__file__, "--out", str(tmp_path), path.stem]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / path.name).read_text("utf-8"))["cells"]
    kinds = {kind for cell in cells for x in cell.get("outputs", []) for kind in x.get("data", {})}
    assert {"text/html", "image/svg+xml"} <= kinds  # data frames and pictures
