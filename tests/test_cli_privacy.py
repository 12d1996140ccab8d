"""Private runs as a user meets them: flags, folders, progress, limits, explanations, reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrows.cli import main
from fedrows.measure.summary import show_epsilon, summarise
from fedrows.privacy.options import Privacy
from fedrows.report.spent import table

SMALL = "--clients 40 --items 30 --examples-per-client 10 --clients-per-round 8 --device cpu"


def fedrows(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = main(words.split())
    said = capsys.readouterr()
    return code, said.out, said.err


def lines(path: Path) -> list[dict]:
    return [json.loads(text) for text in (path / "metrics.jsonl").read_text("utf-8").splitlines()]


def test_a_private_run_leaves_its_epsilon_everywhere(tmp_path, capsys):
    path = tmp_path / "run"
    words = f"run synthetic {SMALL} --rounds 4 --evaluate-every 2 --privacy index --out {path}"
    code, out, _ = fedrows(words, capsys)
    assert code == 0
    assert "ε server/value" in out
    assert "totals/value ∞" in out
    found = lines(path)
    assert [line["round"] for line in found] == [2, 4]
    assert 0 < found[0]["epsilon"]["server/value"] <= found[1]["epsilon"]["server/value"] < 4
    assert found[1]["epsilon"]["totals/value"] == "inf"
    assert 0 <= found[1]["left_out_share"] <= 1
    config = json.loads((path / "config.json").read_text("utf-8"))
    assert config["privacy"]["min_contributors"] == 2
    assert Privacy(**config["privacy"]) == Privacy.of("index")
    summary = json.loads((path / "summary.json").read_text("utf-8"))
    assert summary["algorithms"][0]["epsilon"] == found[1]["epsilon"]
    report = (path / "report.html").read_text("utf-8")
    assert "Privacy spent" in report
    assert "server/value" in report
    assert list((path / "answers" / "weight").glob("*.npz"))


def test_a_run_in_the_clear_says_nothing_of_it(tmp_path, capsys):
    path = tmp_path / "run"
    code, out, _ = fedrows(f"run synthetic {SMALL} --rounds 2 --out {path}", capsys)
    assert code == 0
    assert "ε" not in out
    assert "privacy" not in json.loads((path / "config.json").read_text("utf-8"))
    assert "epsilon" not in lines(path)[0]
    assert "Privacy spent" not in (path / "report.html").read_text("utf-8")


@pytest.mark.slow
def test_a_run_ends_at_its_limit_and_goes_on_with_a_higher_one(tmp_path, capsys):
    path = tmp_path / "run"
    words = f"run synthetic {SMALL} --rounds 40 --evaluate-every 5 --privacy full --dp-noise 2"
    code, out, _ = fedrows(f"{words} --max-epsilon 9 --out {path}", capsys)
    assert code == 0
    last = lines(path)[-1]
    assert f"Ended after round {last['round']}: max-epsilon of model/user-replaced is 9" in out
    assert last["epsilon"]["model/user-replaced"] <= 9
    assert (path / "report.html").exists()
    code, out, _ = fedrows(f"run --resume {path}", capsys)
    assert code == 0
    assert lines(path)[-1] == last
    code, out, _ = fedrows(f"run --resume {path} --max-epsilon 12", capsys)
    assert code == 0
    later = lines(path)[-1]
    assert later["round"] > last["round"]
    assert 9 < later["epsilon"]["model/user-replaced"] <= 12
    code, _, err = fedrows(f"run --resume {path} --dp-noise 3", capsys)
    assert code == 2
    assert "--dp-noise 3.0 would change the run" in err


def test_a_comparison_in_private(tmp_path, capsys):
    words = f"compare synthetic {SMALL} --rounds 2 --evaluate-every 1 --seeds 0 --privacy index"
    path = tmp_path / "both"
    code, _, err = fedrows(f"{words} --algorithms centralsgd,fedavg --out {path}", capsys)
    assert code == 2
    assert "puts all data in one place" in err
    code, _, err = fedrows(f"{words} --out {path}", capsys)
    assert code == 2
    assert "use one of fedadam, fedavg, fedprox, fedsubavg" in err
    assert not path.exists()
    code, _, _ = fedrows(f"{words} --algorithms fedavg,fedsubavg --out {path}", capsys)
    assert code == 0
    assert all("epsilon" in line for line in lines(path))
    code, _, _ = fedrows(f"compare --resume {path} --rounds 3", capsys)
    assert code == 0
    assert max(line["round"] for line in lines(path)) == 3


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--heat secure", "heat is 'secure', which does nothing under privacy 'clear'"),
        ("--privacy heat --heat exact", "shows every index set"),
        (
            "--privacy index --algorithm scaffold",
            "sums of uploads are enough (summable)",
        ),
        ("--privacy index --index-epsilon -1", "index-epsilon is -1.0, but must be above 0"),
        ("--privacy index --min-contributors 9", "no row would ever be opened"),
        ("--privacy index --update-range 1e12", "lower the range or cap the correction"),
        ("--privacy full --heat hashed", "a secure sum with noise on it"),
        ("--privacy most", "must be one of clear, heat, index, full"),
        ("--privacy full --max-epsilon x", "max-epsilon is 'x', but must be a number"),
    ],
)
def test_bad_input_is_one_sentence_and_no_folder(tmp_path, capsys, flags, sentence):
    path = tmp_path / "run"
    code, _, err = fedrows(f"run synthetic {SMALL} --rounds 2 {flags} --out {path}", capsys)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
    assert not path.exists()


@pytest.mark.parametrize("mode", ["clear", "heat", "index", "full"])
def test_explain_says_who_learns_what(capsys, mode):
    code, out, _ = fedrows(f"privacy explain synthetic {SMALL} --rounds 3 --privacy {mode}", capsys)
    assert code == 0
    assert out.startswith(f"privacy {mode}: 40 clients, 8 a round")
    assert ("A lying client" in out) == (mode in ("index", "full"))
    assert ("ε       none: no bound is claimed" in out) == (mode != "full")


def test_explain_says_when_clients_ask_for_exactly_their_rows(capsys):
    words = f"privacy explain synthetic {SMALL} --privacy index --index-epsilon none"
    _, out, _ = fedrows(words, capsys)
    assert "index: the server learns the index set of every client of a round" in out
    assert "union: the server learns" in out


def test_the_four_ways_side_by_side(capsys):
    code, out, _ = fedrows(f"privacy heat synthetic {SMALL} --heat-epsilon 0.3", capsys)
    assert code == 0
    for way in ("exact", "secure", "randomized-response", "hashed"):
        assert way in out
    assert "resolves nothing useful" in out  # 40 clients are too few for any noise


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("privacy explain", "Name a task"),
        ("privacy expain synthetic", "did you mean explain?"),
        (f"privacy explain synthetic {SMALL} --clients-per-round 99", "has 40 clients"),
        ("privacy heat synthetic --heat-epsilon 0", "heat-epsilon is 0.0, but must be above 0"),
    ],
)
def test_bad_words_after_privacy(capsys, words, sentence):
    code, _, err = fedrows(words, capsys)
    assert code == 2
    assert sentence in err


@pytest.mark.parametrize("words", ["privacy", "privacy --help", "privacy explain --help"])
def test_help(capsys, words):
    code, out, _ = fedrows(words, capsys)
    assert code == 0
    assert "usage: fedrows privacy" in out


def test_epsilon_in_a_summary():
    made = {"algorithm": "fedavg", "round": 1, "train_loss": 0.5, "seconds": 1.0}
    both = [
        {**made, "seed": 0, "epsilon": {"server/value": 1.5, "totals/value": "inf"}},
        {**made, "seed": 1, "epsilon": {"server/value": 2.5, "totals/value": "inf"}},
    ]
    summary = summarise(both)
    assert summary["algorithms"][0]["epsilon"] == {"server/value": 2.5, "totals/value": "inf"}
    rows = table(summary, {"privacy": {"privacy": "index", "delta": 1e-6}})["rows"]
    assert [row[-1] for row in rows] == ["2.50", "∞"]
    assert table(summarise([{**made, "seed": 0}]), {}) is None
    assert show_epsilon("inf") == "∞"
    assert show_epsilon(2.0) == "2.00"
