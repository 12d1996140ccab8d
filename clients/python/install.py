"""Installs the light client into a folder of its own, with what it runs of numpy and ONNX Runtime.

    python clients/python/install.py client
    PYTHONPATH=client python -m fedrows_device --help

pip downloads the two wheels and checks them against the hashes in requirements.txt. Tests, tools
for developers, headers, type stubs, parts of numpy that the client does not import, and the second
copy of ONNX Runtime, which Python does not load, are not unpacked.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from pathlib import Path

HERE = Path(__file__).parent
UNUSED = (
    "*.pyi",
    "*/tests/*",
    "numpy/_core/_*tests*.so",
    "numpy/_core/_simd*.so",
    "numpy/_core/include/*",
    "numpy/_core/lib/*",
    "numpy/distutils/*",
    "numpy/f2py/*",
    "numpy/fft/*",
    "numpy/polynomial/*",
    "numpy/random/*",
    "numpy/testing/*",
    "numpy/typing/*",
    "numpy*.data/*",
    "onnxruntime/backend/*",
    "onnxruntime/capi/libonnxruntime.so*",
    "onnxruntime/datasets/*",
    "onnxruntime/quantization/*",
    "onnxruntime/tools/*",
    "onnxruntime/transformers/*",
    "onnxruntime*.data/*",
)


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(x.stat().st_size for x in folder.rglob("*") if x.is_file() and not x.is_symlink())


def unpack(wheel: Path, folder: Path) -> None:
    """Unpacks what is used of a wheel."""
    with zipfile.ZipFile(wheel) as packed:
        names = [x for x in packed.namelist() if not any(fnmatch(x, odd) for odd in UNUSED)]
        packed.extractall(folder, names)


def install(folder: Path) -> None:
    """Installs the client into a folder that is not there yet."""
    if folder.exists():
        raise SystemExit(f"{folder} is there already: name a folder that is not.")
    with tempfile.TemporaryDirectory() as work:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        pinned = ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
        pinned += ["-r", str(HERE / "requirements.txt"), "--dest", work]
        if subprocess.run([*pip, *pinned], check=False).returncode:
            raise SystemExit("pip could not download the wheels: its own message says why.")
        part = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        for wheel in sorted(Path(work).glob("*.whl")):
            unpack(wheel, part)
        client = part / "fedrows_device"
        shutil.copytree(
            HERE / "fedrows_device", client, ignore=shutil.ignore_patterns("__pycache__")
        )
        part.rename(folder)


def main(words: list[str]) -> int:
    """Installs, and says how large it is."""
    if len(words) != 1 or words[0].startswith("-"):
        raise SystemExit("Name the folder: python clients/python/install.py client")
    install(Path(words[0]))
    print(f"{words[0]} has {size_of(Path(words[0])) / 1e6:.0f} MB.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
