"""The command line refuses what it cannot do, in one sentence, and changes nothing."""

import json
from pathlib import Path

import pytest
from commands import RUN, Capture, contents
from commands import own_folder as own_folder

from fedrows.cli import main

pytestmark = pytest.mark.usefixtures("own_folder")

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
    (["compare", "synthetic", "--seeds", "0,x"], "--seeds is 'x'"),
    (["compare", "synthetic", "--seed", "1"], "did you mean --seeds?"),
    (["compare", "synthetic", "--algorithms", "fedavg,fedpro"], "did you mean fedprox?"),
    (["compare", "synthetic", "--algorithms", "fedavg", "--mu", "1"], "--mu is not an option"),
    (["compare", "synthetic", "--target-rounds", "0"], "--target-rounds is '0'"),
    (["compare", "synthetic", "--target-metric", "test_acu"], "did you mean test_auc?"),
    (["compare", "synthetic", "--target-value", "low"], "--target-value is 'low'"),
    (["compare", "synthetic", "--target-value", "nan"], "--target-value is 'nan'"),
    (["compare", "synthetic", "--seeds", ""], "--seeds is '', but must name at least one"),
    (["compare", "synthetic", "--seeds", "0,0"], "--seeds has 0 twice"),
    (["compare", "synthetic", "--seeds", "1,01"], "--seeds has 1 twice"),
    (["compare", "synthetic", "--algorithms", ""], "--algorithms is '', but must name"),
    (["compare", "synthetic", "--algorithms", "fedavg,FedAvg"], "--algorithms has FedAvg twice"),
    ([*RUN, "--algorithm", ""], "--algorithm is '', but must name"),
    (["export", "done", "--to", "model.bin"], "model.bin does not say what to write"),
    (["deploy", "keys", "keys", "--host", "a host"], "'a host' is neither a host name"),
    (["deploy", "keys", "keys", "--host", "ok", "--nodes", "a,../b"], "'../b' cannot be a node's"),
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
