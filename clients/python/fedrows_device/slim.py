"""Makes an installation small: drops what numpy and onnxruntime bring beside what a device runs.

    pip install --no-compile --target client clients/python
    python client/fedrows_device/slim.py client

The folder is one that `pip install --target` made for this client alone. Tests, tools for
developers, headers and type stubs go, and a second copy of ONNX Runtime that Python does not load.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

UNUSED = (
    "bin",
    "google",  # protobuf, which only tools for developers read
    "numpy/**/tests",
    "numpy/_core/_*tests*.so",
    "numpy/_core/include",
    "numpy/_core/lib",
    "numpy/distutils",
    "numpy/f2py",
    "numpy/random/lib",
    "numpy/typing",
    "numpy/**/*.pyi",
    "onnxruntime/backend",
    "onnxruntime/datasets",
    "onnxruntime/quantization",
    "onnxruntime/tools",
    "onnxruntime/transformers",
    "onnxruntime/capi/libonnxruntime.so*",
)


def size_of(folder: Path) -> int:
    """The bytes of all files in a folder."""
    return sum(x.stat().st_size for x in folder.rglob("*") if x.is_file() and not x.is_symlink())


def slim(folder: Path) -> None:
    """Drops what is not used from a folder that was installed for this client alone."""
    if not (folder / "onnxruntime").is_dir() or not (folder / "numpy").is_dir():
        raise SystemExit(
            f"{folder} is no installation of this client: make one by pip install --target."
        )
    if (folder.parent / "pyvenv.cfg").exists() or folder.name in ("site-packages", "dist-packages"):
        raise SystemExit(f"{folder} belongs to others too: install into a folder of its own.")
    for pattern in UNUSED:
        for path in list(folder.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.exists():
                path.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("Name the folder: python client/fedrows_device/slim.py client")
    own = Path(sys.argv[1])
    before = size_of(own)
    slim(own)
    print(f"{before / 1e6:.0f} MB before, {size_of(own) / 1e6:.0f} MB now.")
