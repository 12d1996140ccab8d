"""The command line: every error one sentence, every run resumable to the bit."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fedrows import catalogue, checkpoint, fleet
from fedrows.cli import COMMANDS, main
from fedrows.folder import RunFolder

SMALL = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
RUN = ["run", "synthetic", *SMALL, "--rounds", "12", "--evaluate-every", "5"]
KEYS = {
    *("algorithm", "seed", "round", "bytes_down", "bytes_up", "seconds", "buckets"),
    *("train_loss", "test_loss", "test_accuracy", "test_auc", "test_gauc"),
}
VARIANTS = [
    *([name] for name in catalogue.names("algorithm")),
    ["scaffold", "--lazy"],
    ["scaffoldapprox", "--lazy"],
    ["fedadam", "--lazy"],
]

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDROWS_DATA", str(tmp_path / "data"))


def fedrows(*words: str) -> None:
    assert main(words) == 0


def metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The metric lines of a folder, but for the seconds, which no two runs share."""
    lines = RunFolder.open(Path(folder)).lines()
    return [{key: line[key] for key in line if key != "seconds"} for line in lines]


def assert_same(one: str, other: str) -> None:
    """Two run folders hold the same run, to the bit."""
    assert metrics(one) == metrics(other)
    first, second = (load_file(Path(f) / "checkpoint.safetensors") for f in (one, other))
    assert first.keys() == second.keys()
    for name, x in first.items():
        assert x.numpy().tobytes() == second[name].numpy().tobytes(), name


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "fedrows", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"},
    )


def until(ready: Callable[[], bool]) -> None:
    for _ in range(3000):
        if ready():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


# What it says


def test_help_and_version_need_no_torch() -> None:
    for words in ("['--help']", "['--version']", "['nonsense']", "['bench']"):
        script = f"import sys, fedrows.cli as c; c.main({words}); assert 'torch' not in sys.modules"
        done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent.parent)
        assert done.returncode == 0


def test_help_names_every_command(capsys: Capture) -> None:
    fedrows("--help")
    said = capsys.readouterr().out
    assert all(f"\n  {name} " in said for name in COMMANDS)
    fedrows("--version")
    assert re.fullmatch(r"fedrows \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: Capture) -> None:
    fedrows(command, "--help")
    assert capsys.readouterr().out.startswith(f"usage: fedrows {command}")


def test_help_shows_the_options_of_what_was_named(capsys: Capture) -> None:
    fedrows("run", "synthetic", "--algorithm", "fedadam", "--help")
    said = capsys.readouterr().out
    for part in ("plan:", "algorithm fedadam:", "task synthetic:", "--data-seed", "--no-lazy"):
        assert part in said
    assert "movielens:" not in said
    assert "--mu" not in said
    fedrows("compare", "--help")
    said = capsys.readouterr().out
    for part in ("--mu", "--server-lr", "task movielens:", "--seeds", "default: 0,1,2"):
        assert part in said


# What it refuses

RESUMED = ["run", "--resume", "done"]
BAD: list[tuple[list[str], str]] = [
    (["rnu"], "did you mean run?"),
    (["--hlep"], "did you mean --help?"),
    (["run"], "Name a task"),
    (["run", "movielen"], "did you mean movielens?"),
    ([*RUN, "--algorithm", "fedsubav"], "did you mean fedsubavg?"),
    ([*RUN, "--algorithm", "fedavg,fedprox"], "run takes one: use compare"),
    ([*RUN, "--roundz", "3"], "did you mean --rounds?"),
    (["run", "--roundz", "3", "synthetic"], "did you mean --rounds?"),
    ([*RUN, "--round=3"], "did you mean --rounds?"),
    ([*RUN, "another"], "one word too many"),
    ([*RUN, "--rounds"], "--rounds needs a value"),
    ([*RUN, "--rounds", "many"], "rounds is 'many', but must be a whole number"),
    ([*RUN, "--rounds", "1.5"], "rounds is '1.5'"),
    ([*RUN, "--rounds", "0"], "rounds is 0, but must be at least 1"),
    ([*RUN, "--clients-per-round", "0"], "clients-per-round is 0"),
    ([*RUN, "--clients-per-round", "31"], "clients-per-round is 31, but only 30"),
    ([*RUN, "--clients-per-round", "31", "--algorithm", "centralsgd"], "but only 30"),
    ([*RUN, "--local-steps", "-1"], "local-steps is -1"),
    ([*RUN, "--batch-size", "0"], "batch-size is 0"),
    ([*RUN, "--lr", "0"], "lr is 0.0, but must be above 0"),
    ([*RUN, "--lr", "-0.1"], "lr is -0.1"),
    ([*RUN, "--lr", "nan"], "lr is nan"),
    ([*RUN, "--weighting", "both"], "weighting is 'both'"),
    ([*RUN, "--device", "cuda:99"], "device is 'cuda:99'"),
    ([*RUN, "--device", "toaster"], "device is 'toaster'"),
    ([*RUN, "--seed", "-1"], "seed is -1"),
    ([*RUN, "--clients", "0"], "clients is 0"),
    ([*RUN, "--mu", "0.1"], "--mu is not an option of synthetic or fedsubavg"),
    ([*RUN, "--lazy=yes"], "--lazy takes no value"),
    ([*RUN, "--checkpoint-seconds", "soon"], "'soon' is not a number of seconds"),
    ([*RUN, "--out", "done"], "done exists already"),
    ([*RUN, "--out", "precious"], "precious exists already"),
    ([*RUN, "--out", "precious", "--overwrite"], "not recognisably a run folder"),
    ([*RUN, "--out", "file"], "file is not a folder"),
    ([*RUN, "--out", "file/below"], "file is not a folder"),
    ([*RUN, "--resume", "done", "--overwrite"], "cannot be used together"),
    (["run", "movielens"], "fedrows data fetch movielens"),
    (["heat", "movielens"], "fedrows data fetch movielens"),
    (["run", "--resume"], "Name the folder"),
    (["run", "--resume", "nowhere"], "no folder nowhere"),
    (["run", "--resume", "precious"], "precious is not a run folder"),
    (["run", "--resume", "newer"], "newer has format 99"),
    (["run", "--resume", "cut"], "cut short"),
    (["run", "--resume", "vague"], "does not say which run"),
    (["run", "--resume", "pointless"], "no checkpoint"),
    (["run", "--resume", "torn"], "cut short or not a checkpoint"),
    (["run", "--resume", "gaps"], "do not fit its checkpoint of round 12, look at round 5"),
    (["run", "--resume", "garbled"], "Line 1 of garbled/metrics.jsonl"),
    (["compare", "--resume", "done"], "use `fedrows run`"),
    ([*RESUMED, "--lr", "0.2"], "--lr 0.2 would change the run in done, which has 0.1"),
    ([*RESUMED, "--clients", "31"], "--clients 31 would change"),
    ([*RESUMED, "--alpha", "0.5"], "--alpha 0.5 would change"),
    ([*RESUMED, "--rounds", "11"], "rounds is 11, but the run in done has done 12"),
    ([*RESUMED, "--algorithm", "fedavg"], "--algorithm is fedavg"),
    ([*RESUMED, "--out", "other"], "--out says other"),
    (["compare", "synthetic", "--seeds", "0,x"], "--seeds has 'x'"),
    (["compare", "synthetic", "--seed", "1"], "did you mean --seeds?"),
    (["compare", "synthetic", "--algorithms", "fedavg,fedpro"], "did you mean fedprox?"),
    (["compare", "synthetic", "--algorithms", "fedavg", "--mu", "1"], "--mu is not an option"),
    (["compare", "synthetic", "--target-rounds", "0"], "--target-rounds has '0'"),
    (["compare", "synthetic", "--target-metric", "test_acu"], "did you mean test_auc?"),
    (["compare", "synthetic", "--target-value", "low"], "--target-value is 'low'"),
    (["data", "fecth", "movielens"], "did you mean fetch?"),
    (["data", "fetch"], "Name the data set"),
    (["data", "path", "synthetic"], "needs no file"),
    (["data", "path", "movielens", "--force"], "--force is for fetch"),
    (["report"], "Name the folder"),
    (["report", "precious"], "not a run folder"),
    (["report", "empty"], "no evaluated round"),
    (["bench", "speeed"], "no benchmark called 'speeed'"),
    (["heat"], "Name a task"),
    (["heat", "synthetic", "--lr", "1"], "--lr"),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, and folders with everything that can be wrong with one."""
    root = tmp_path_factory.mktemp("folders")
    assert main([*RUN, "--out", str(root / "done")]) == 0
    files = {path.name: path.read_bytes() for path in (root / "done").iterdir()}
    config = json.loads(files["config.json"])
    lines = files["metrics.jsonl"].splitlines(keepends=True)
    changes: dict[str, dict[str, bytes | None]] = {
        "newer": {"config.json": json.dumps(config | {"format": 99}).encode()},
        "cut": {"config.json": files["config.json"][:100]},
        "vague": {"config.json": json.dumps(config | {"plan": {"lr": 0}}).encode()},
        "pointless": {"checkpoint.safetensors": None},
        "torn": {"checkpoint.safetensors": files["checkpoint.safetensors"][:-1]},
        "gaps": {"metrics.jsonl": b"".join(lines[1:])},
        "garbled": {"metrics.jsonl": b"round 5 went well\n" + b"".join(lines[1:])},
        "empty": {"metrics.jsonl": b""},
    }
    for name, changed in changes.items():
        (root / name).mkdir()
        for file, data in {**files, **changed}.items():
            if data is not None:
                (root / name / file).write_bytes(data)
    (root / "precious").mkdir()
    (root / "precious" / "thesis.txt").write_text("the only copy")
    (root / "file").write_text("a file")
    return root


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.mark.parametrize(
    ("words", "wanted"), BAD, ids=lambda x: " ".join(x)[-40:] if isinstance(x, list) else ""
)
def test_bad_input_is_one_sentence(
    words: list[str],
    wanted: str,
    folders: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(folders)
    before = contents(folders)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert wanted in said
    assert said.count("\n") == 1
    assert said.startswith("fedrows: ")
    assert said.endswith((".\n", "?\n"))
    assert contents(folders) == before


def test_a_broken_data_file_is_one_sentence(tmp_path: Path, capsys: Capture) -> None:
    assert main(["data", "path", "movielens"]) == 0
    place = Path(capsys.readouterr().out.strip())
    place.parent.mkdir(parents=True)
    place.write_bytes(b"PK\x03\x04 and then nothing")
    assert main(["run", "movielens"]) == 2
    said = capsys.readouterr().err
    assert place.name in said
    assert said.count("\n") == 1
    assert not (tmp_path / "runs").exists()


# What a run leaves


def test_a_run_leaves_its_folder(capsys: Capture) -> None:
    fedrows(*RUN, "--seed", "3", "--data-seed", "7", "--cap", "9", "--threads", "1")
    folder = Path("runs/synthetic-fedsubavg-3")
    names = "checkpoint.safetensors config.json data.json metrics.jsonl report.html summary.json"
    assert sorted(p.name for p in folder.iterdir()) == names.split()
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == 1
    assert (config["kind"], config["task"]["name"]) == ("run", "synthetic")
    assert config["task"]["seed"] == 7
    assert config["algorithm"] == {"name": "fedsubavg", "cap": 9.0, "alpha": 1.0}
    plan = config["plan"]
    assert (plan["seed"], plan["device"], plan["chunk"], plan["threads"]) == (3, "cpu", None, 1)
    lines = [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [5, 10, 12]
    assert all(line.keys() == KEYS for line in lines)
    assert all((line["algorithm"], line["seed"]) == ("fedsubavg", 3) for line in lines)
    assert checkpoint.standing(folder / "checkpoint.safetensors").round == 12
    said = capsys.readouterr().out
    assert said.rstrip().endswith("Report: runs/synthetic-fedsubavg-3/report.html")
    assert len(re.findall(r"round +\d+/12", said)) == 3


def test_presets_come_before_defaults_and_after_what_is_typed() -> None:
    task = catalogue.task("synthetic")
    preset = task.algorithms["fedadam"]["server_lr"]
    fedrows(*RUN, "--algorithm", "fedadam", "--out", "preset")
    fedrows(*RUN, "--algorithm", "fedadam", "--out", "typed", "--server-lr", "0.5")
    used = [RunFolder.open(Path(f)).config["algorithm"]["server_lr"] for f in ("preset", "typed")]
    assert used == [preset, 0.5]


def test_the_same_seed_gives_the_same_run_and_another_does_not() -> None:
    fedrows(*RUN, "--out", "one")
    fedrows(*RUN, "--out", "two")
    fedrows(*RUN, "--out", "three", "--seed", "1")
    assert_same("one", "two")
    assert metrics("one")[-1]["train_loss"] != metrics("three")[-1]["train_loss"]


def test_overwrite_replaces_a_run_and_keeps_what_is_not_its_own(folders: Path) -> None:
    fedrows(*RUN, "--out", "run", "--seed", "1")
    Path("run/mine.txt").write_text("mine")
    fedrows(*RUN, "--out", "run", "--overwrite")
    assert_same("run", str(folders / "done"))
    assert Path("run/mine.txt").read_text() == "mine"


def test_a_diverged_run_writes_null() -> None:
    fedrows(*RUN, "--lr", "1e38", "--out", "run")
    lines = RunFolder.open(Path("run")).lines()
    assert lines[-1]["train_loss"] is None


def test_a_run_without_test_examples_works(capsys: Capture) -> None:
    fedrows(*RUN, "--test-share", "0", "--out", "run")
    assert RunFolder.open(Path("run")).lines()[-1]["test_auc"] is None
    assert "nan" not in capsys.readouterr().out


def test_data_notes_are_said_once(capsys: Capture) -> None:
    words = ["--algorithms", "fedavg,fedprox", "--rounds", "2", "--seeds", "0,1"]
    fedrows("compare", "synthetic", *SMALL, *words, "--test-share", "0.9")
    assert capsys.readouterr().out.count("have no training data") == 1


# Stopping and going on


@pytest.mark.parametrize("variant", VARIANTS, ids=" ".join)
def test_a_resumed_run_is_the_straight_run_to_the_bit(variant: list[str]) -> None:
    words = [*RUN, "--algorithm", *variant]
    fedrows(*words, "--rounds", "12", "--out", "straight")
    fedrows(*words, "--rounds", "7", "--out", "resumed")  # ends between two evaluations
    fedrows("run", "--resume", "resumed", "--rounds", "12")
    assert [line["round"] for line in metrics("resumed")] == [5, 10, 12]
    assert_same("straight", "resumed")


@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_an_interrupted_run_goes_on_to_the_bit(
    batches: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*RUN, "--algorithm", "scaffold", "--lazy", "--batches", batches, "--lr-decay", "0.9"]
    fedrows(*words, "--out", "straight")
    for at in (1, 5, 8, 12):
        folder = f"stopped{at}"
        with interrupted(monkeypatch, at):
            code = main([*words, "--out", folder])
        said = capsys.readouterr().out
        assert code == (130 if at < 12 else 0)
        if at < 12:
            assert f"Stopped after round {at}, and saved." in said
            assert f"fedrows run --resume {folder}" in said
            fedrows("run", "--resume", folder)
        assert_same("straight", folder)


@contextmanager
def interrupted(monkeypatch: pytest.MonkeyPatch, at: int) -> Iterator[None]:
    """Sends Ctrl-C while round `at` is running."""
    train = fleet.SimulatedFleet.train

    def pressed(self: Any, cohort: Any, start: Any, sent: Any, round_: Any) -> Any:
        if round_.number == at:
            signal.raise_signal(signal.SIGINT)
        return train(self, cohort, start, sent, round_)

    with monkeypatch.context() as patch:
        patch.setattr(fleet.SimulatedFleet, "train", pressed)
        yield


def test_metrics_past_the_checkpoint_are_made_again(folders: Path) -> None:
    fedrows(*RUN, "--rounds", "6", "--out", "run")
    folder = RunFolder.open(Path("run"))
    folder.append({"algorithm": "fedsubavg", "seed": 0, "round": 10, "train_loss": 99})
    with Path("run/metrics.jsonl").open("a") as file:
        file.write('{"round": 12, "trai')
    fedrows("run", "--resume", "run", "--rounds", "12")
    assert_same("run", str(folders / "done"))


def test_resuming_a_finished_run_changes_nothing(folders: Path) -> None:
    fedrows(*RUN, "--out", "run")
    before = contents(Path("run"))
    fedrows("run", "--resume", "run")
    fedrows(*RUN, "--resume", "--out", "run")  # the same options may be said again
    after = contents(Path("run"))
    assert {n for n in before if before[n] != after[n]} <= {"report.html"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_process_can_be_resumed(number: signal.Signals) -> None:
    words = [*RUN, "--rounds", "100000", "--evaluate-every", "20", "--algorithm", "scaffold"]
    process = start(*words, "--checkpoint-seconds", "0.05", "--out", "run", "--threads", "1")
    place = Path("run/checkpoint.safetensors")
    until(lambda: place.exists() and checkpoint.standing(place).round > 40)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "fedrows run --resume run" in out
        assert err == ""
    at = checkpoint.standing(place).round
    fedrows("run", "--resume", "run", "--rounds", str(at + 30))
    straight = [*words, "--rounds", str(at + 30), "--out", "straight", "--threads", "1"]
    fedrows(*straight)
    assert_same("run", "straight")


def test_a_second_interrupt_stops_at_once(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("still running")

    monkeypatch.setattr(fleet.SimulatedFleet, "train", never)
    assert main([*RUN, "--out", "run"]) == 130
    assert "Go on from round 0 with: fedrows run --resume run" in capsys.readouterr().out


# A full disk


@pytest.mark.parametrize("call", ["metrics", "checkpoint"])
def test_a_full_disk_leaves_a_run_that_can_be_resumed(
    call: str, folders: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    fedrows(*RUN, "--rounds", "6", "--out", "run")
    with monkeypatch.context() as patch:
        if call == "metrics":
            patch.setattr(RunFolder, "append", full)
        else:
            patch.setattr(checkpoint, "save", full)
        assert main(["run", "--resume", "run", "--rounds", "12"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "run cannot be written (No space left on device)" in said
    assert "go on from round 6 with `fedrows run --resume run`" in said
    fedrows("run", "--resume", "run")
    assert_same("run", str(folders / "done"))


def test_a_disk_that_is_really_too_small() -> None:
    script = (
        "import resource, sys; from fedrows.cli import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    words = [*RUN, "--evaluate-every", "1", "--rounds", "40", "--out", "run"]
    root = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "File too large" in done.stderr
    lines = Path("run/metrics.jsonl").read_text()
    assert lines.endswith("}\n")
    fedrows("run", "--resume", "run")
    assert [line["round"] for line in metrics("run")] == list(range(1, 41))


# Comparing

COMPARE = ["compare", "synthetic", *SMALL, "--rounds", "12", "--evaluate-every", "5"]
THREE = ["--algorithms", "fedavg,fedsubavg,centralsgd", "--seeds", "0,1"]


def test_a_comparison_leaves_table_files_and_report(capsys: Capture) -> None:
    fedrows(*COMPARE, *THREE, "--target-rounds", "10", "--cap", "5", "--out", "all")
    said = capsys.readouterr().out
    assert said.endswith("Report: all/report.html\n")
    for word in ("FedAvg", "FedSubAvg", "CentralSGD", "Speed-up", "±", "Rounds to train loss"):
        assert word in said
    names = "config.json data.json metrics.jsonl report.html runs summary.json"
    assert sorted(p.name for p in Path("all").iterdir()) == names.split()
    runs = sorted(p.name for p in Path("all/runs").iterdir())
    assert runs == [
        f"{name}-seed{seed}" for name in ("centralsgd", "fedavg", "fedsubavg") for seed in (0, 1)
    ]
    assert len(metrics("all")) == 6 * 3
    assert metrics("all") == [
        line
        for seed in (0, 1)
        for name in ("fedavg", "fedsubavg", "centralsgd")
        for line in metrics(f"all/runs/{name}-seed{seed}")
    ]
    config = RunFolder.open(Path("all"), "compare").config
    assert config["seeds"] == [0, 1]
    assert {entry["name"]: entry.get("cap") for entry in config["algorithms"]} == {
        "fedavg": None,
        "fedsubavg": 5.0,
        "centralsgd": None,
    }
    summary = json.loads(Path("all/summary.json").read_text())
    assert summary["target"]["rounds"] == 10
    fedrows(*RUN, "--seed", "1", "--cap", "5", "--out", "alone")
    assert_same("all/runs/fedsubavg-seed1", "alone")


def test_an_interrupted_comparison_does_what_is_missing(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fedrows(*COMPARE, *THREE, "--out", "straight")
    with interrupted(monkeypatch, 8):
        assert main([*COMPARE, *THREE, "--out", "all"]) == 130
    said = capsys.readouterr().out
    assert "Stopped in fedavg seed 0, and saved. Go on with: fedrows compare --resume all" in said
    assert not Path("all/report.html").exists()
    fedrows("compare", "--resume", "all")
    finished = Path("all/runs/fedavg-seed0/checkpoint.safetensors").stat().st_mtime_ns
    assert metrics("straight") == metrics("all")
    fedrows("compare", "--resume", "all", "--seeds", "0,1,2")
    assert Path("all/runs/fedavg-seed0/checkpoint.safetensors").stat().st_mtime_ns == finished
    assert {line["seed"] for line in metrics("all")} == {0, 1, 2}
    fedrows("compare", "--resume", "all", "--rounds", "14")
    assert metrics("all/runs/fedavg-seed0")[-1]["round"] == 14
    capsys.readouterr()
    for words, wanted in (
        (["--lr", "0.5"], "--lr 0.5 would change"),
        (["--rounds", "3"], "--rounds 3 would change"),
        (["--seeds", "0,1"], "--seeds without 2 would change"),
        (["--algorithms", "fedavg"], "--algorithms fedavg would change"),
    ):
        assert main(["compare", "--resume", "all", *words]) == 2
        said = capsys.readouterr().err
        assert wanted in said
        assert said.count("\n") == 1


def test_all_algorithms_are_compared_by_default() -> None:
    fedrows(*COMPARE, "--seeds", "0", "--out", "all")
    assert {line["algorithm"] for line in metrics("all")} == set(catalogue.names("algorithm"))
    fedrows(*COMPARE, "--algorithms", "fedavg", "--seeds", "1", "--out", "all", "--overwrite")
    assert [p.name for p in Path("all/runs").iterdir()] == ["fedavg-seed1"]


# The other commands, and where the text goes


def test_heat_is_shown(capsys: Capture) -> None:
    fedrows("heat", "synthetic", "--clients", "30", "--items", "20", "--examples-per-client", "8")
    said = capsys.readouterr().out
    assert re.search(r"clients +30\n", said)
    assert "weight: all features" in said
    assert "weight: item" in said
    assert "#" in said


def test_report_is_made_again(capsys: Capture, folders: Path) -> None:
    place = folders / "done" / "report.html"
    place.unlink()
    fedrows("report", str(folders / "done"))
    assert capsys.readouterr().out == f"Report: {place}\n"
    assert place.read_text().startswith("<!")


def test_data_are_listed(capsys: Capture) -> None:
    fedrows("data", "list")
    said = capsys.readouterr().out
    assert all(name in said for name in catalogue.names("task"))


def test_piped_output_is_nothing_but_text() -> None:
    process = start(*COMPARE, "--algorithms", "fedavg,fedsubavg", "--seeds", "0", "--out", "all")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "\x1b" not in out
    assert "\r" not in out
    assert len(re.findall(r"round +\d+/12", out)) == 6


def test_a_terminal_gets_a_live_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fedrows(*RUN, "--out", "run")
    said = capsys.readouterr().out
    assert "fedsubavg" in said
    assert "Report: run/report.html" in said


def test_a_closed_pipe_is_quiet_and_the_run_can_go_on() -> None:
    process = start(*RUN, "--rounds", "100000", "--evaluate-every", "1", "--out", "run")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=30)
    process.stderr.close()
    at = checkpoint.standing(Path("run/checkpoint.safetensors")).round
    fedrows("run", "--resume", "run", "--rounds", str(at + 2))
