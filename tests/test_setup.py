"""What the set-up promises: what the core imports, what is pinned, what is never committed."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fedrows

ROOT = Path(__file__).parent.parent
BEYOND_CORE = {"cli", "report", "live", "flower", "privacy", "__main__"}
EXTRAS = ["rich", "jinja2", "safetensors", "pandas", "polars", "pyarrow", "flwr", "cryptography"]
EXTRAS += ["datasets", "wandb"]
EXTRAS += ["dp_accounting", "tensorboard", "mlflow", "onnx", "onnxscript", "matplotlib", "scipy"]


def core_modules() -> list[str]:
    """Everything that a box with torch and numpy only must be able to import."""
    paths = [path.relative_to(ROOT).with_suffix("") for path in ROOT.glob("fedrows/**/*.py")]
    paths += [Path("benchmarks", "speed", path.stem) for path in ROOT.glob("benchmarks/speed/*.py")]
    paths += [Path("benchmarks", "gpu"), Path("benchmarks", "paper")]
    return sorted(
        ".".join(path.parts).removesuffix(".__init__")
        for path in paths
        if path.parts[1] not in BEYOND_CORE
        and path.parts[1:3] != ("device", "onnx_loops")  # imported where ONNX is written
        and path.parts[1:3] != ("nn", "kernels")  # they need triton, which comes with a GPU's torch
    )


def test_core_imports_without_the_extras() -> None:
    script = (
        "import importlib, sys\n"
        f"sys.modules.update(dict.fromkeys({EXTRAS}))\n"  # None: importing it is an ImportError
        f"for name in {core_modules()}: importlib.import_module(name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert fedrows.__version__ == project["version"]
    assert f"\nversion: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()


def test_a_plain_install_brings_run_folders_pages_and_the_terminal() -> None:
    """What the core may not import, the command line may: so `pip install fedrows` has it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.match(r"[\w-]+", line)[0] for line in project["dependencies"]}
    assert names == {"torch", "numpy", "jinja2", "rich", "safetensors"}


def test_every_extra_is_in_the_readme() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = re.findall(r"^\| `fedrows\[.*", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    listed = set(re.findall(r"`fedrows\[(\w+)\]`", "\n".join(rows)))
    assert listed == extras.keys() - {"test", "dev"}
    named = r"fedrows\[([\w,]+)\]"
    for path in [
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("fedrows/**/*.py"),
        *ROOT.glob("examples/**/*"),
    ]:
        if path.suffix in (".md", ".py", ".toml"):
            found = re.findall(named, path.read_text("utf-8"))
            assert {name for names in found for name in names.split(",")} <= extras.keys(), path


def test_constraints_are_exact_pins() -> None:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert "torch==2.13.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []


def test_no_file_names_a_path_of_someones_machine() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    machine_path = re.compile(rb"(?<![\w.~-])/(?:home|root|Users|work|farm|opt|srv)/\w")
    container_path = rb"/(opt/fedrows|srv/(project|shard))\b"  # of our own images, in deploy/
    leaks = {
        name.decode(): found[0].decode()
        for name in listed.stdout.split(b"\0")
        if (path := ROOT / name.decode()).is_file()
        and (found := machine_path.search(re.sub(container_path, b"", path.read_bytes())))
    }
    assert leaks == {}


@pytest.mark.slow
@pytest.mark.parametrize("forbidden", ["1", ""])
def test_a_forbidden_skip_fails(tmp_path: Path, forbidden: str) -> None:
    """Where skips are forbidden, only a missing GPU is a reason."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.skip(reason='needs a GPU')\ndef test_gpu(): pass\n"
        "@pytest.mark.skip(reason='needs data: set FEDROWS_DATA')\ndef test_data(): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", tmp_path],
        cwd=tmp_path,
        env=os.environ | {"FEDROWS_NO_SKIP": forbidden, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == int(forbidden == "1"), done.stdout
    failed = re.findall(r"^(?:ERROR|FAILED) test_it.py::(\w+)", done.stdout, re.MULTILINE)
    assert failed == (["test_data"] if forbidden else []), done.stdout
    assert ("1 skipped" if forbidden else "2 skipped") in done.stdout


@pytest.mark.slow
def test_what_takes_long_to_make_is_made_by_one_worker(tmp_path: Path) -> None:
    """Tests of a file that conftest.py names stay together; all others go where there is room."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    text = (
        "import os, time, pytest\n"
        "@pytest.mark.parametrize('number', range(6))\n"
        "def test_it(number):\n"
        "    time.sleep(0.2)\n"
        "    open(f'{__name__}-' + os.environ['PYTEST_XDIST_WORKER'], 'w').close()\n"
    )
    for name in ("test_site", "test_other"):
        (tmp_path / f"{name}.py").write_text(text)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    [spread] = re.findall(r"-m slow -n \d (--dist .*?) \\", makefile)
    words = ["-p", "no:cacheprovider", "-q", "-n", "2", *spread.split()]
    subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        check=True,
    )
    assert len(list(tmp_path.glob("test_site-gw*"))) == 1
    assert len(list(tmp_path.glob("test_other-gw*"))) == 2
