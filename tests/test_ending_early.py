"""Commands that end before they begin: nothing is left behind, and no stack trace is shown."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from commands import COMPARE, RUN, Capture
from commands import own_folder as own_folder

from fedrows.cli import main
from fedrows.simulator import cpu_threads

pytestmark = pytest.mark.usefixtures("own_folder")
ROOT = Path(__file__).parent.parent
FEW = ["--rounds", "2"]


@pytest.mark.parametrize(
    ("package", "words"),
    [
        ("safetensors", [*RUN, *FEW]),
        ("safetensors", [*COMPARE, *FEW, "--seeds", "0"]),
        ("dp_accounting", [*RUN, *FEW, "--algorithm", "fedavg", "--privacy", "full"]),
        ("dp_accounting", [*COMPARE, *FEW, "--algorithms", "fedavg", "--privacy", "full"]),
        ("torch.utils.tensorboard", [*RUN, *FEW, "--tensorboard", "board"]),
    ],
)
def test_a_missing_extra_leaves_no_half_made_folder(
    package: str, words: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*words, "--out", "made"]) == 2
    assert "pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_missing_cryptography_leaves_no_half_made_folder(tmp_path: Path) -> None:
    """In a process of its own: whatever has been imported here holds on to the package."""
    code = "import sys; sys.modules['cryptography'] = None; import fedrows.cli as cli; "
    code += "sys.exit(cli.main(sys.argv[1:]))"
    words = [*COMPARE, *FEW, "--algorithms", "fedavg", "--privacy", "index", "--out", "made"]
    process = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 2
    assert "pip install" in process.stderr
    assert list(tmp_path.iterdir()) == []


def started(*words: str, **more: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedrows", *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        **more,  # type: ignore[call-overload]
    )


def test_a_closed_stdout_is_no_stack_trace(tmp_path: Path) -> None:
    process = started("data", "list", preexec_fn=lambda: os.close(1))
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")


def test_what_a_run_writes_does_not_go_where_a_closed_stdout_was(tmp_path: Path) -> None:
    process = started(*RUN, "--rounds", "1", "--out", "made", preexec_fn=lambda: os.close(1))
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, b"")
    assert main(["run", "--resume", "made", "--rounds", "2"]) == 0  # all its files can be read


def test_ctrl_c_while_packages_are_imported_is_no_stack_trace(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "numpy.py").write_text(
        "import pathlib, time\n"
        "pathlib.Path('importing').touch()\n"
        "try:\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    raise ImportError('interrupted')\n"  # as NumPy does
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "fedrows", *RUN],
        env=os.environ | {"PYTHONPATH": f"{slow}{os.pathsep}{ROOT}"},
        stderr=subprocess.PIPE,
    )
    until = time.monotonic() + 60
    while not Path("importing").exists() and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (130, b"Stopped.\n")


def test_as_many_threads_as_break_pytorch_are_refused(tmp_path: Path, capsys: Capture) -> None:
    assert main([*RUN, "--threads", "100000"]) == 2
    assert "threads is 100000, but must be at most 1024" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("busy", "wanted"), [(0, 4), (2, 4), (5, 3), (40, 1), (None, 4)])
def test_a_run_has_the_threads_that_are_free(
    busy: int | None, wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name in cpu_threads.GIVEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cpu_threads, "busy_elsewhere", lambda: busy)
    assert cpu_threads.usual_threads() == wanted
    monkeypatch.setenv("OMP_NUM_THREADS", "4")  # somebody has chosen
    assert cpu_threads.usual_threads() == 4


def test_a_machine_says_how_busy_it_is() -> None:
    busy = cpu_threads.busy_elsewhere()
    assert busy is None or busy >= 0
