"""A run folder: written whole or not at all, and cleared of nothing but its own."""

import errno
import fcntl
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fedrows.errors import RunFolderError
from fedrows.files.whole import placing, write_whole
from fedrows.runs import folder as folders
from fedrows.runs.folder import RunFolder, check_free, clear, read_config


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_created_folder_can_be_opened(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "deep" / "run", "run", {"plan": {"lr": float("nan")}})
    opened = RunFolder.open(made.path, "run")
    assert opened.config["plan"] == {"lr": None}
    assert opened.config["format"] == folders.FORMAT
    assert opened.lines() == []


def test_lines_come_back_and_a_cut_one_does_not(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    line = {"algorithm": "fedavg", "seed": 0, "round": 1, "buckets": [{"auc": 0.5}]}
    for round_ in (1, 2):
        made.append({**line, "round": round_, "train_loss": float("inf")})
    with (made.path / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "tr')
    assert [line["round"] for line in made.lines()] == [1, 2]
    assert made.lines()[0] == {**line, "train_loss": None}


def test_a_line_that_does_not_fit_is_taken_back(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    made.append({"round": 1})
    before = (made.path / "metrics.jsonl").read_bytes()
    script = (
        "import resource, sys, pathlib\n"
        "from fedrows.runs.folder import RunFolder\n"
        "folder = RunFolder.open(pathlib.Path(sys.argv[1]))\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 9}, {len(before) + 9}))\n"
        "try:\n    folder.append({'round': 2, 'text': 'x' * 99})\n"
        "except OSError as error:\n    print(error.errno)\n"
    )
    assert run_python(script, str(made.path)) == f"{errno.EFBIG}\n"
    assert (made.path / "metrics.jsonl").read_bytes() == before


def run_python(script: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_file_that_does_not_fit_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    made.write_json("summary.json", {"old": 1})
    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space"):
        made.write_json("summary.json", {"new": 2})
    assert json.loads((made.path / "summary.json").read_text()) == {"old": 1}
    assert sorted(p.name for p in made.path.iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "summary.json",
    ]


def test_overwriting_removes_its_own_files_only(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "all", "compare", {})
    child = RunFolder.create(made.path / "runs" / "fedavg-seed0", "run", {})
    (child.path / "mine.txt").write_text("mine")
    stranger = made.path / "runs" / "notes"
    stranger.mkdir()
    (stranger / "config.json").write_text("{}")
    RunFolder.create(made.path / "runs" / "fedprox-seed0", "run", {})
    clear(made.path)
    left = sorted(str(p.relative_to(made.path)) for p in made.path.rglob("*"))
    assert left == [
        "runs",
        "runs/fedavg-seed0",
        "runs/fedavg-seed0/mine.txt",
        "runs/notes",
        "runs/notes/config.json",
    ]


def test_overwriting_on_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    made.append({"round": 1})
    before = {p.name: p.read_bytes() for p in made.path.iterdir()}
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunFolderError, match="No space"):
        RunFolder.create(made.path, "run", {}, overwrite=True)
    assert {p.name: p.read_bytes() for p in made.path.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ({}, "no config.json"),
        ({"config.json": "{}"}, "not one of fedrows"),
        ({"config.json": '{"format": 1, "fed'}, "cut short"),
        ({"config.json": "[1]"}, "not one of fedrows"),
    ],
)
def test_what_is_not_a_run_folder_is_refused_and_left_alone(
    tmp_path: Path, content: dict[str, str], wanted: str
) -> None:
    (tmp_path / "other.txt").write_text("precious")
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    before = {p.name: p.read_text() for p in tmp_path.iterdir()}
    with pytest.raises(RunFolderError, match=wanted):
        read_config(tmp_path)
    with pytest.raises(RunFolderError, match="recognisably"):
        check_free(tmp_path, overwrite=True)
    with pytest.raises(RunFolderError, match="recognisably"):
        RunFolder.create(tmp_path, "run", {}, overwrite=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == before


def test_other_formats_and_kinds_are_refused(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    with pytest.raises(RunFolderError, match="fedrows run"):
        RunFolder.open(made.path, "compare")
    made.write_json("config.json", made.config | {"format": 99, "fedrows": "7.0"})
    with pytest.raises(RunFolderError, match=r"format 99 of fedrows 7\.0"):
        RunFolder.open(made.path)


def test_two_processes_cannot_work_in_one_folder(tmp_path: Path) -> None:
    made = RunFolder.create(tmp_path / "run", "run", {})
    with (
        made.locked(),
        pytest.raises(RunFolderError, match="Another fedrows"),
        RunFolder.open(made.path).locked(),
    ):
        pass
    with made.locked(), pytest.raises(RunFolderError, match="Another fedrows"):
        RunFolder.create(made.path, "run", {}, overwrite=True)
    with made.locked():
        pass


def test_an_empty_folder_is_free_and_a_file_is_not(tmp_path: Path) -> None:
    check_free(tmp_path)
    (tmp_path / ".config.json.123.part").write_text("{")  # its process was killed
    check_free(tmp_path)
    RunFolder.create(tmp_path, "run", {})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "metrics.jsonl"]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="not a folder"):
        check_free(tmp_path / "file")
    with pytest.raises(RunFolderError, match="not a folder"):
        check_free(tmp_path / "file" / "run")


# What killed writers leave


def gone() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_what_a_killed_writer_leaves_goes_with_the_next_file(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path\n"
        "from fedrows.files.whole import placing\n"
        "with placing(Path(sys.argv[1])) as part:\n"
        "    part.write_text('half')\n"
        "    part.with_name('.tmpAbc').write_text('of a library')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.json")])
    (tmp_path / f".b.json.{gone()}.part").write_text("a file, of an older version")
    assert len(list(tmp_path.iterdir())) == 2
    write_whole(tmp_path / "c.json", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["c.json"]


def test_what_is_being_written_stays(tmp_path: Path) -> None:
    """By another process here, by another thread, and, as its lock says, on another machine."""
    script = (
        "import sys; from pathlib import Path\n"
        "from fedrows.files.whole import placing\n"
        "with placing(Path(sys.argv[1])) as part:\n"
        "    part.write_text('theirs'); print(flush=True); sys.stdin.read()\n"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "a")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdout is not None
    assert other.stdin is not None
    other.stdout.readline()
    locked = tmp_path / f".b.{gone()}.part"
    locked.mkdir()
    handle = os.open(locked, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_SH)
    with placing(tmp_path / "d") as part, ThreadPoolExecutor() as threads:
        part.write_text("ours")
        threads.submit(write_whole, tmp_path / "d", b"a thread's").result()
        assert (tmp_path / "d").read_text() == "a thread's"
    assert (tmp_path / "d").read_text() == "ours"
    other.stdin.close()
    assert other.wait() == 0
    other.stdout.close()
    assert (tmp_path / "a").read_text() == "theirs"
    assert locked.is_dir()
    os.close(handle)
    write_whole(tmp_path / "e", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "d", "e"]


def test_other_files_of_such_names_stay(tmp_path: Path) -> None:
    names = ["film.part", ".film.part", "film.1.part", ".film.x1.part"]
    for name in names:
        (tmp_path / name).write_text("")
    write_whole(tmp_path / "new", b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "new"])
