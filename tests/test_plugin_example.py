"""The example package of plug-ins, installed for real."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SMALL

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of processes that have the example package."""
    folder = tmp_path_factory.mktemp("installed")
    shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    pip += ["--no-index", "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(pip, check=True, capture_output=True)
    return {**os.environ, "PYTHONPATH": f"{folder / 'site'}{os.pathsep}{ROOT}"}


def call(environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_example_package_runs(
    installed: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fedrows = ["-m", "fedrows"]
    assert "coins" in call(installed, *fedrows, "data")
    words = ["--algorithm", "fedavgm", "--momentum", "0.8", "--rounds", "4", "--kinds", "30"]
    call(installed, *fedrows, "run", "coins", *words, "--out", "a", "--writer", "csv=losses.csv")
    assert len(Path("losses.csv").read_text().splitlines()) > 1
    config = json.loads(Path("a/config.json").read_text())
    assert config["algorithm"]["name"] == "fedavgm"
    assert config["algorithm"]["momentum"] == 0.8
    assert config["plan"]["lr"] == 0.1  # what the task presets for that algorithm
    call(installed, *fedrows, "run", "--resume", "a", "--rounds", "5")
    words = ["--privacy", "full", "--mechanism", "allrows", "--dp-noise", "2", "--rounds", "2"]
    call(installed, *fedrows, "run", "coins", *words, "--out", "p")
    config = json.loads(Path("p/config.json").read_text())
    assert config["privacy"]["mechanism"]["name"] == "allrows"
    assert "from" not in config["privacy"]["mechanism"]
    words = ["--algorithms", "fedavg,fedavgm", "--seeds", "0", "--rounds", "3", "--out", "c"]
    call(installed, *fedrows, "compare", "synthetic", *SMALL, *words)
    assert "FedAvgM" in Path("c/report.html").read_text()
    study = (
        "from fedrows import Study\n"
        "if __name__ == '__main__':\n"
        "    study = Study.grid('coins', ['fedavgm'], seeds=[0, 1], plan={'rounds': 2})\n"
        "    print(len(study.run('study', workers=2).runs))\n"
    )
    Path("study.py").write_text(study)
    assert call(installed, "study.py").split() == ["2"]
    shutil.copy(EXAMPLE / "test_plugin.py", "test_plugin.py")
    call(installed, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_plugin.py")
