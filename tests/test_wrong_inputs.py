"""Sixty more wrong inputs: each is one sentence and exit code 2, and nothing is lost."""

from pathlib import Path

import pytest
from commands import RUN, Capture, contents
from commands import own_folder as own_folder

from fedrows.cli import main

pytestmark = pytest.mark.usefixtures("own_folder")
COMPARE = ["compare", "synthetic"]
KEYS = ["deploy", "keys", "keys"]
WRONG: list[list[str]] = [
    ["run", ""],
    ["run", "synthetic:TASK"],
    ["run", "no_such_module:TASK"],
    ["run", "thesis.txt"],
    ["run", "missing.py:TASK"],
    [*RUN, "--rounds", ""],
    [*RUN, "--rounds", "1e3"],
    [*RUN, "--rounds", "99999999999999999999999"],
    [*RUN, "--rounds=-5"],
    [*RUN, "--lr", "inf"],
    [*RUN, "--lr", "0,1"],
    [*RUN, "--seed", "18446744073709551616"],
    [*RUN, "--seed", "1.0"],
    [*RUN, "--evaluate-every", "0"],
    [*RUN, "--train-sample", "0"],
    [*RUN, "--threads", "0"],
    [*RUN, "--threads", "all"],
    [*RUN, "--dtype", "float16"],
    [*RUN, "--device", "cuda:-1"],
    [*RUN, "--device", ""],
    [*RUN, "--tables", "disk"],
    [*RUN, "--tables", "mapped", "--patience", "3"],
    [*RUN, "--patience", "0"],
    [*RUN, "--patience", "2"],
    [*RUN, "--patience", "2", "--watch-metric", "test_auc"],
    [*RUN, "--warmup", "12"],
    [*RUN, "--lr-schedule", "exponential"],
    [*RUN, "--weight-quantile", "1.5"],
    [*RUN, "--row-clip", "0"],
    [*RUN, "--chunk", "0"],
    [*RUN, "--metric", "nowhere"],
    [*RUN, "--metric", "thesis.txt:auc"],
    [*RUN, "--metric", "missing.py:auc"],
    [*RUN, "--personal", "bias"],
    [*RUN, "--writer", "nobody"],
    [*RUN, "--wandb", ""],
    [*RUN, "--log", "xml"],
    [*RUN, "--log", "text", "--log-file", "no/such/folder/log"],
    [*RUN, "--checkpoint-seconds", "-1"],
    [*RUN, "--checkpoint-seconds", "nan"],
    [*RUN, "--privacy", "total"],
    [*RUN, "--privacy", "index", "--algorithm", "centralsgd"],
    [*RUN, "--mechanism", "laplace"],
    [*RUN, "--go-on=yes"],
    [*RUN, "--out", ""],
    [*RUN, "--out", "a\0b"],
    [*RUN, "--algorithm", "../fedavg"],
    [*COMPARE, "--workers", "0"],
    [*COMPARE, "--workers", "two"],
    [*COMPARE, "--seeds", "-1"],
    [*COMPARE, "--seeds", "0;1"],
    [*COMPARE, "--seeds", ","],
    [*COMPARE, "--algorithms", ",,"],
    [*COMPARE, "--target-value", "inf", "--algorithms", "fedavg"],
    [*COMPARE, "--resume", "thesis.txt"],
    ["export", "nowhere", "--to", "model.pt"],
    ["export", "nowhere", "--to", ""],
    ["export", "nowhere", "--to", "model.pt", "--format", "pickle"],
    ["predict", "thesis.txt"],
    ["evaluate", "missing.fedrows", "rows.csv"],
    ["data", "path", "movielen"],
    ["data", "fetch", "synthetic", "movielens"],
    ["heat", "synthetic", "--clients", "-3"],
    ["privacy", "explain", "synthetic", "--privacy", "none at all"],
    ["privacy", "explian"],
    ["init", "thesis.txt"],
    ["report", "thesis.txt"],
    ["paper", "no-such-table"],
    [*KEYS],
    [*KEYS, "--host", "https://example.org"],
    [*KEYS, "--host", "example.org", "--nodes", "-x"],
    ["deploy", "admit", "missing.pub", "--superlink", "localhost:1", "--insecure"],
    ["deploy", "node", "--superlink", "nowhere"],
    ["deploy", "superlink", "--insecure", "--port", "99999"],
    ["deploy", "run", "."],
]


@pytest.mark.parametrize("words", WRONG, ids=lambda x: " ".join(x)[-40:].replace("\0", "0"))
def test_a_wrong_input_is_one_sentence_and_loses_nothing(
    words: list[str], tmp_path: Path, capsys: Capture
) -> None:
    Path("thesis.txt").write_text("the only copy")
    before = contents(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedrows: ")
    assert said.count("\n") == 1
    assert said.endswith((".\n", "?\n"))
    assert 20 < len(said) < 600
    assert contents(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]  # no empty folder either


def test_there_are_sixty() -> None:
    assert len(WRONG) >= 60
