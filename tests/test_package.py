"""The package as a user gets it: the wheel runs the first command, the sdist passes its tests."""

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest

pytest.importorskip("build", reason="needs build: install fedrows[test]")
pytest.importorskip("hatch_fancy_pypi_readme", reason="needs a package: install fedrows[test]")

ROOT = Path(__file__).parent.parent
HOME = "https://github.com/fedrows/fedrows"
FEW = ["--rounds=4", "--seeds=0", "--clients=60", "--items=40", "--evaluate-every=2"]
SAMPLE = ["setup", "help", "architecture", "architecture_page", "params", "options"]
pytestmark = pytest.mark.slow(minutes=1)


def call(*words: str | Path, cwd: Path, **more: str) -> str:
    """What a command prints; it must work, and sees nothing of this checkout."""
    hidden = ("PYTHONPATH", "FEDROWS_NO_SKIP", "PYTEST_ADDOPTS")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    done = subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=env | more)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sdist, and of the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def bare(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a venv that has the wheel, what the wheel asks for, and nothing else.

    What it asks for is linked from here: nobody wants to download torch in a test.
    """
    venv = tmp_path_factory.mktemp("bare") / "venv"
    call(sys.executable, "-m", "venv", "--without-pip", venv, cwd=venv.parent)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    call(*pip, "--no-deps", "--no-index", next(built.glob("*.whl")), cwd=venv.parent)
    site = next(venv.glob("lib/python*/site-packages"))
    [metadata] = site.glob("fedrows-*.dist-info/METADATA")
    for found in needed(metadata.read_text("utf-8")).values():
        for top in {path.parts[0] for path in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return venv / "bin"


def needed(metadata: str) -> dict[str, Distribution]:
    """The packages that a package asks for without extras, and those that they ask for."""
    found: dict[str, Distribution] = {}
    ahead = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    while ahead:
        line = ahead.pop()
        name = re.match(r"[\w.-]+", line)[0]
        if ";" in line or name in found:
            continue
        found[name] = distribution(name)
        ahead += found[name].requires or []
    return found


def test_a_plain_install_runs_the_first_command(bare: Path, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    first = re.search(r"^    pip install fedrows\n    (fedrows .*)$", readme, re.MULTILINE)[1]
    for extra in ("pandas", "pyarrow", "flwr", "pytest"):  # the venv is bare
        with pytest.raises(AssertionError):
            call(bare / "python", "-c", f"import {extra}", cwd=tmp_path)
    printed = call(bare / "fedrows", *first.split()[1:], *FEW, cwd=tmp_path)
    page = tmp_path / "runs" / "synthetic-compare" / "report.html"
    assert f"Report: {page.relative_to(tmp_path)}" in printed
    assert "<svg" in page.read_text("utf-8")
    runs = list((page.parent / "runs").iterdir())
    assert len(runs) == 13
    assert all((run / "checkpoint.safetensors").is_file() for run in runs)


def test_the_metadata_are_for_a_package_index(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        [name] = [name for name in file.namelist() if name.endswith("/METADATA")]
        metadata = file.read(name).decode()
    for what in ("Documentation", "Repository", "Changelog"):
        assert f"Project-URL: {what}, {HOME}" in metadata
    links = re.findall(r"\]\(([^)\s]*)\)", metadata.partition("\n\n")[2])
    assert len(links) > 30
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    files = [link.split("/main/")[1].partition("#")[0] for link in links if "/main/" in link]
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_sdist_passes_its_own_tests(built: Path, tmp_path: Path) -> None:
    [archive] = built.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(tmp_path, filter="data")
    [root] = tmp_path.iterdir()
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
        missing = [name for name in listed.stdout.split("\n") if not (root / name).exists()]
        assert missing == []
    tests = [f"tests/test_{name}.py" for name in SAMPLE]
    pages = "tests/test_docs.py::test_links_lead_somewhere"
    words = ["-q", "-p", "no:cacheprovider", "-m", "not slow", *tests, pages]
    printed = call(sys.executable, "-m", "pytest", *words, cwd=root, PYTHONPATH=str(root))
    assert re.search(r"\d+ passed", printed)
