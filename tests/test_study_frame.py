"""The lines of all runs of a study as one data frame."""

import sys
from pathlib import Path

import pytest

from fedrows.errors import UnknownNameError
from fedrows.study import Study, StudyError

DATA = {"clients": 30, "items": 20, "examples_per_client": 8}
PLAN = {"rounds": 6, "evaluate_every": 3, "clients_per_round": 5}


@pytest.mark.parametrize("package", ["polars", "pandas"])
def test_the_frame_is_tidy(package: str, tmp_path: Path) -> None:
    pytest.importorskip(package)
    study = Study.grid(
        "synthetic",
        ["fedavg", "fedadam"],
        [0, 1],
        plan=PLAN,
        data=DATA,
        vary={"tau": [0.1, 0.2]},
    )
    results = study.run(tmp_path, 1)
    frame = results.frame(package)
    assert len(frame) == 3 * 2 * 2  # settings, seeds, evaluated rounds
    assert list(frame.columns)[:4] == ["run", "task", "algorithm", "label"]
    assert list(frame["round"]) == [3, 6] * 6
    assert list(frame["train_loss"]) == [x["train_loss"] for run in results for x in run.lines]
    assert list(frame["tau"])[-1] == 0.2
    assert "buckets" not in frame.columns


def test_a_frame_without_its_package_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = Study.grid("synthetic", ["fedavg"], [0], plan=PLAN, data=DATA)
    results = study.run(tmp_path, 1)
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(StudyError, match="pip install polars"):
        results.frame()
    with pytest.raises(UnknownNameError, match="did you mean pandas"):
        results.frame("panda")
