"""Runs the notebooks of examples/notebooks, and writes copies with outputs into build/notebooks.

python docs/run_notebooks.py [--out FOLDER] [NAME...]

The site shows these outputs. A notebook that has not changed since its last run is not run again.
"""

import argparse
import json
import os
from pathlib import Path

from website.notebook_page import sources

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "examples" / "notebooks"
LIMIT = 600  # seconds for one cell


def run(path: Path, out: Path) -> None:
    """Runs a notebook, and writes it with its outputs. The first cell that fails is an error."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=LIMIT, kernel_name="python3").execute(cwd=str(path.parent))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(nbformat.writes(notebook), "utf-8")


def is_current(path: Path, out: Path) -> bool:
    if not out.exists():
        return False
    ran, wanted = (sources(json.loads(x.read_text("utf-8"))) for x in (out, path))
    return ran == wanted


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "notebooks")
    typed = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        out = typed.out / path.name
        if path.stem in (typed.names or [path.stem]) and not is_current(path, out):
            run(path, out)


if __name__ == "__main__":
    main()
