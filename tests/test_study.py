"""Studies: only what is missing is run, nothing damaged is trusted, the same numbers every time."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedrows import cli
from fedrows.algorithms.fedadam import FedAdam
from fedrows.errors import PlanError, RunFolderError, UnknownNameError
from fedrows.runs.folder import RunFolder
from fedrows.study import Results, Setting, Study, StudyError
from fedrows.study.finished import path_of

DATA = {"clients": 30, "items": 20, "examples_per_client": 8}
PLAN = {"rounds": 6, "evaluate_every": 3, "clients_per_round": 5}


def small(
    algorithms: tuple[str, ...] = ("fedavg", "fedsubavg"), seeds: tuple[int, ...] = (0, 1)
) -> Study:
    return Study.grid("synthetic", algorithms, seeds, plan=PLAN, data=DATA)


def numbers(results: Results) -> list[Any]:
    """All lines but for the seconds, which no two runs share."""
    return [
        [{key: line[key] for key in line if key != "seconds"} for line in run.lines]
        for run in results.runs
    ]


def stamps(folder: Path) -> dict[str, int]:
    return {place.name: place.stat().st_mtime_ns for place in (folder / "runs").iterdir()}


def test_what_a_setting_leaves_open_is_the_tasks() -> None:
    made = Setting("synthetic", "fedadam", {"rounds": 7}, {"tau": 0.5}).planned(3).settings
    assert (made.plan.rounds, made.plan.clients_per_round, made.plan.seed) == (7, 50, 3)
    assert made.algorithm == FedAdam(tau=0.5, server_lr=0.1)


@pytest.mark.parametrize(
    ("setting", "kind", "words"),
    [
        (Setting("synthetic", "fedavg", {"round": 7}), UnknownNameError, "did you mean rounds?"),
        (Setting("synthetic", "fedavg", {}, {"tau": 1}), UnknownNameError, "option of fedavg"),
        (Setting("synthetic", "fedavg", data={"user": 1}), UnknownNameError, "of task synthetic"),
        (Setting("synthetic", "fedavg", {"seed": 1}), PlanError, "which a study decides"),
        (Setting("synthetic", "fedavg", {"rounds": 0}), PlanError, "at least 1"),
        (Setting("nothing", "fedavg"), UnknownNameError, "no task called 'nothing'"),
        (Setting("synthetic", "fedavg", model={"width": 1}), UnknownNameError, "of model logistic"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(
    setting: Setting, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        setting.planned(0)


def test_an_id_is_made_of_what_decides_the_numbers() -> None:
    plain = Setting("synthetic", "fedavg", PLAN, data=DATA)
    id_ = plain.planned(0).id
    assert Setting("synthetic", "fedavg", PLAN, data=DATA, label="again").planned(0).id == id_
    assert Setting("synthetic", "fedavg", {**PLAN, "lr": 0.1}, data=DATA).planned(0).id == id_
    others = [
        plain.planned(1),
        Setting("synthetic", "fedprox", PLAN, data=DATA).planned(0),
        Setting("synthetic", "fedavg", {**PLAN, "dtype": "float64"}, data=DATA).planned(0),
        Setting("synthetic", "fedavg", PLAN, data={**DATA, "seed": 1}).planned(0),
    ]
    assert len({id_, *(other.id for other in others)}) == 5


def test_options_of_the_model_are_part_of_a_setting() -> None:
    """They go into the id, travel to other processes, and stand in the command."""
    plain = Setting("movielens-mf", "fedavg")
    some = Setting.of("movielens-mf", "fedavg", model={"factors": 4, "ridge": 0.5})
    run = some.planned(0)
    assert (run.settings.model.factors, run.settings.model.ridge) == (4, 0.5)
    assert run.id != plain.planned(0).id
    assert Setting(**some.as_dict()).planned(0).id == run.id
    assert "--factors 4 --ridge 0.5" in run.command("cpu", None)
    study = Study.grid("movielens-mf", ["fedavg"], [0], model={"ridge": 0.5},
                       vary={"factors": [4, 8]})  # fmt: skip
    assert [one.model for one in study.settings] == [
        {"ridge": 0.5, "factors": 4}, {"ridge": 0.5, "factors": 8}
    ]  # fmt: skip
    assert [one.name for one in study.settings] == ["fedavg factors=4", "fedavg factors=8"]


def test_an_id_is_made_of_the_data_files_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path))
    (tmp_path / "movielens-1m").mkdir()
    file = tmp_path / "movielens-1m" / "ml-1m.zip"
    file.write_bytes(b"one")
    first = Setting("movielens", "fedavg").planned(0).id
    os.utime(file, (1, 1))
    assert Setting("movielens", "fedavg").planned(0).id == first
    file.write_bytes(b"two")
    assert Setting("movielens", "fedavg").planned(0).id != first


def test_a_grid_varies_what_an_algorithm_has() -> None:
    vary = {"clients_per_round": [5, 6], "tau": [0.1, 0.2], "skew": [1.0]}
    study = Study.grid("synthetic", ["fedavg", "fedadam"], [0], vary=vary)
    assert [(its.algorithm, its.label) for its in study.settings] == [
        ("fedavg", "clients_per_round=5 skew=1.0"),
        ("fedavg", "clients_per_round=6 skew=1.0"),
        ("fedadam", "clients_per_round=5 tau=0.1 skew=1.0"),
        ("fedadam", "clients_per_round=5 tau=0.2 skew=1.0"),
        ("fedadam", "clients_per_round=6 tau=0.1 skew=1.0"),
        ("fedadam", "clients_per_round=6 tau=0.2 skew=1.0"),
    ]
    assert study.settings[3].options == {"tau": 0.2}
    assert study.settings[3].data == {"skew": 1.0}
    with pytest.raises(UnknownNameError, match="'cohort'"):
        Study.grid("synthetic", ["fedavg"], [0], vary={"cohort": [1]}).settings[0].planned(0)


def test_a_study_needs_settings_and_seeds() -> None:
    with pytest.raises(PlanError, match="at least one seed, but has none"):
        small(seeds=())


def test_only_what_is_missing_is_run(tmp_path: Path) -> None:
    told: list[tuple[int, int, str, int]] = []
    first = small().run(tmp_path, 1)
    before = stamps(tmp_path)
    second = small(seeds=(0, 1, 2)).run(tmp_path, 1, progress=lambda *event: told.append(event))
    after = stamps(tmp_path)
    assert len(before) == 4
    assert {name: after[name] for name in before} == before
    assert len(after) == 6
    assert {event[2] for event in told} == {
        "fedavg on synthetic, seed 2",
        "fedsubavg on synthetic, seed 2",
    }
    assert told[-1][:2] == (6, 6)
    kept = [run for run in second.runs if run.seed < 2]
    assert kept == first.runs
    assert [run.seed for run in second.of(small().settings[1])] == [0, 1, 2]


def test_settings_that_differ_in_their_label_share_a_run(tmp_path: Path) -> None:
    two = [Setting("synthetic", "fedavg", PLAN, data=DATA, label=label) for label in ("a", "b")]
    results = Study(two, [0]).run(tmp_path, 1)
    assert len(stamps(tmp_path)) == 1
    assert [run.setting.label for run in results.runs] == ["a", "b"]
    assert len(results.of(two[1])) == 1


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    content = json.loads(gzip.decompress(data))
    content["lines"][0]["train_loss"] += 1e-9
    return gzip.compress(json.dumps(content).encode())


def unreadable(data: bytes) -> bytes:
    return b"\x1f\x8b" + bytes(len(data))


@pytest.mark.parametrize("damage", [cut, changed, unreadable, lambda data: b"", lambda data: b"{}"])
def test_a_damaged_run_is_made_again(tmp_path: Path, damage: Any) -> None:
    study, said = small(("fedavg",)), list[str]()
    first = study.run(tmp_path, 1)
    place = path_of(tmp_path, first.runs[0].id)
    place.write_bytes(damage(place.read_bytes()))
    again = study.run(tmp_path, 1, said.append)
    assert numbers(again) == numbers(first)
    assert len(said) == 1
    assert said[0].endswith("fedavg on synthetic, seed 0 is run again.")
    assert study.run(tmp_path, 1, said.append).runs == again.runs
    assert len(said) == 1


def test_a_run_that_fails_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    wrong = Setting("synthetic", "fedavg", {**PLAN, "clients_per_round": 31}, data=DATA)
    study = Study([wrong, *small(("fedsubavg",)).settings], [0, 1])
    with pytest.raises(StudyError) as error:
        study.run(tmp_path, 1)
    assert str(error.value) == (
        "fedavg on synthetic, seed 0, and 1 more like it, could not be run (clients-per-round is "
        "31, but only 30 clients of synthetic have training data: ask for at most 30): 2 other "
        f"runs were made and are kept in {tmp_path}."
    )
    assert len(stamps(tmp_path)) == 2


def test_a_folder_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="file/study cannot be written"):
        small().run(tmp_path / "file" / "study", 1)


SCRIPT = """
from fedrows.study import Study
study = Study.grid("synthetic", ["fedavg", "fedsubavg"], [0, 1, 2], plan={"rounds": 120,
    "evaluate_every": 60, "clients_per_round": 5}, data={"clients": 30, "items": 20})
results = study.run("FOLDER", WORKERS)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_study_that_was_killed_goes_on_to_the_same_numbers(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SCRIPT.replace("WORKERS", str(workers))
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(script.replace("FOLDER", "killed"))  # without a main guard
    process = subprocess.Popen(
        [sys.executable, "script.py"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    runs = tmp_path / "killed" / "runs"
    while process.poll() is None and not list(runs.glob("*.gz")):
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < len(list(runs.glob("*.gz"))) < 6
    again, fresh = dict[str, Any](), dict[str, Any]()
    exec(script.replace("FOLDER", "killed"), again)
    exec(SCRIPT.replace("WORKERS", "1").replace("FOLDER", "fresh"), fresh)
    assert numbers(again["results"]) == numbers(fresh["results"])


def test_the_command_of_a_run_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    setting = Setting(
        "synthetic",
        "fedadam",
        {**PLAN, "clip": None},
        {"lazy": True, "tau": 0.01},
        {**DATA, "seed": 4},
    )
    run = Study([setting], [7]).run("study", 1).runs[0]
    program, *words = run.command.split()
    assert program == "fedrows"
    assert cli.main([*words, "--out", "repeated"]) == 0
    lines = RunFolder.open(Path("repeated")).lines()
    assert [{**line, "seconds": 0} for line in lines] == [{**x, "seconds": 0} for x in run.lines]


def test_a_study_has_a_page(tmp_path: Path) -> None:
    study = small()
    results = study.run(tmp_path / "study", 1)
    page = results.page(tmp_path / "page", "My study")
    text = page.read_text("utf-8")
    assert "My study" in text
    for run in results:
        assert run.id in text
