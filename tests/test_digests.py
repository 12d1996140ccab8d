"""The same seed gives the same bits, from one version of fedrows to the next."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs the instructions of x86-64")
def test_every_algorithm_gives_the_bits_that_it_gave() -> None:
    fixed = {"ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1", "MKL_CBWR": "COMPATIBLE"}
    done = subprocess.run(
        [sys.executable, HERE / "digests.py"],
        env=os.environ | fixed,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((HERE / "digests.json").read_text())
