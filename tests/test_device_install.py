"""The light client in a folder of its own: what is unpacked, and which wheels are taken."""

from __future__ import annotations

import itertools
import subprocess
import sys
import zipfile
from pathlib import Path

import device_programs
import pytest
from install import main, unpack

ROOT = Path(__file__).parents[1]
LIFE = """
import sys
from pathlib import Path
import fedrows_device.__main__
import numpy as np
from fedrows_device import Examples, Program
from fedrows_device.storage import DeviceStorage
from fedrows_device.wire import ids_from_bytes, ids_to_bytes

state, folder = map(Path, sys.argv[1:])
storage = DeviceStorage(state)
storage.put_memory("run", 5, {"a": np.arange(3.0)})
assert storage.settle("run", 5)["a"].tolist() == [0, 1, 2]
assert ids_from_bytes(ids_to_bytes(np.array([3, 900]))).tolist() == [3, 900]

program = Program.load(folder)
own = Examples.build(program.manifest, {"item": [4, 9, 4], "kind": [4, 3, 4]}, [0, 1, 1])
rows = {"item": np.ones((2, 4), np.float32), "kind": np.ones((2, 3), np.float32)}
inputs = program.manifest["step"]["inputs"]
dense = {
    name.removeprefix("dense/"): np.ones(x["shape"], np.float32)
    for name, x in inputs.items() if name.startswith("dense/")
}
update = program.train(own, rows, dense, round=1, number=0, lr=0.1)
assert np.isfinite(update.rows["item"]).all() and update.rows["item"].any()
print(np.__file__)
"""


def test_what_a_device_never_runs_is_not_unpacked(tmp_path: Path) -> None:
    kept = [
        "numpy/__init__.py",
        "numpy/_core/_multiarray_umath.so",
        "numpy.libs/blas.so",
        "numpy-2.dist-info/LICENSE.txt",
        "onnxruntime/capi/onnxruntime_pybind11_state.so",
    ]
    dropped = [
        "numpy/__init__.pyi",
        "numpy/lib/tests/test_a.py",
        "numpy/_core/_simd.x86.so",
        "numpy/random/mtrand.so",
        "numpy-2.data/scripts/f2py",
        "onnxruntime/capi/libonnxruntime.so.1.31.1",
        "onnxruntime/tools/a/b.py",
    ]
    with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
        for name in kept + dropped:
            wheel.writestr(name, "x")
    unpack(tmp_path / "some.whl", tmp_path / "client")
    found = [x.relative_to(tmp_path / "client") for x in tmp_path.rglob("client/**/*")]
    assert {str(x) for x in found if "." in x.name} >= set(kept)
    assert not {str(x) for x in found} & set(dropped)


def test_an_existing_folder_is_not_touched(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="is there already"):
        main([str(tmp_path)])
    assert list(tmp_path.iterdir()) == []


def test_the_pins_are_those_of_the_lock() -> None:
    lines = (ROOT / "requirements" / "dev.txt").read_text().splitlines(keepends=True)
    wanted, some = [], False
    for line in lines:
        some = line.startswith(("numpy==", "onnxruntime==")) if line[0].isalpha() else some
        wanted += [line] * some
    assert (ROOT / "clients" / "python" / "requirements.txt").read_text() == "".join(wanted)
    assert len([x for x in wanted if x[0].isalpha()]) == 2


def test_the_client_needs_nothing_that_is_not_unpacked(tmp_path: Path) -> None:
    """It stores, packs and trains, in a Python that finds only what `unpack` would leave."""
    import numpy
    import onnxruntime

    for package in (numpy, onnxruntime):
        home = Path(package.__file__).parent
        archive = tmp_path / f"{package.__name__}.whl"
        with zipfile.ZipFile(archive, "w") as wheel:
            beside = home.with_name(f"{home.name}.libs")
            for path in itertools.chain(home.rglob("*"), beside.rglob("*")):
                if (
                    path.is_file()
                    and path.suffix != ".pyc"
                    and "libonnxruntime.so" not in path.name
                ):
                    wheel.write(path, path.relative_to(home.parent))
        unpack(archive, tmp_path / "client")
    device_programs.program(device_programs.plain()).save(tmp_path / "program")
    done = subprocess.run(
        [sys.executable, "-S", "-c", LIFE, str(tmp_path / "state"), str(tmp_path / "program")],
        env={"PYTHONPATH": f"{tmp_path / 'client'}:{ROOT / 'clients' / 'python'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
