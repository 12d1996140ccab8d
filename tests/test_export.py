"""What leaves the house is the trained model: the same scores, without fedrows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from exported import Tied, expected, history, items, ratings
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

import fedrows
from fedrows import Vocabulary, catalogue
from fedrows.cli import main
from fedrows.cli.export import read
from fedrows.nn.interest_network import DIN
from fedrows.notebook.simulate import simulate
from fedrows.runs.export import (
    ExportError,
    Trained,
    format_of,
    save,
    save_vocabulary,
)
from fedrows.runs.folder import RunFolder

SMALL = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
RUN = ["run", "synthetic", *SMALL, "--rounds", "4", "--evaluate-every", "2"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


class Logistic(nn.Module):
    """Logistic regression as anyone would write it."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(rows, 1))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        return self.bias + self.weight[features, 0].sum(-1)


@pytest.mark.parametrize("words", [["fedsubavg"], ["fedadam", "--lazy"], ["scaffold", "--lazy"]])
def test_a_run_is_exported_as_it_was_measured(words: list[str]) -> None:
    assert main([*RUN, "--algorithm", *words, "--out", "a"]) == 0
    assert main(["export", "a", "--to", "m.safetensors"]) == 0
    trained = read(Path("a"))
    module = Logistic(trained.data.tables["weight"])
    module.load_state_dict(load_file("m.safetensors"))
    test = trained.data.test
    with torch.no_grad():
        scores = module(**test.fields(torch.arange(len(test))))
        loss = nn.functional.binary_cross_entropy_with_logits(scores, test.label.float())
    kept = RunFolder.open(Path("a")).lines()[-1]
    assert float(loss) == pytest.approx(kept["test_loss"], rel=1e-6)


def test_every_row_that_a_lazy_algorithm_left_behind_is_up_to_date() -> None:
    for name, how in {"lazy": "--lazy", "eager": "--no-lazy"}.items():
        words = ["--algorithm", "scaffold", how, "--dtype", "float64", "--out", name]
        assert main([*RUN, *words]) == 0
        assert main(["export", name, "--to", f"{name}.pt"]) == 0
    lazy, eager = (torch.load(f"{name}.pt", weights_only=True) for name in ("lazy", "eager"))
    assert not torch.equal(
        load_file("lazy/checkpoint.safetensors")["model/table/weight"], lazy["weight"]
    )
    torch.testing.assert_close(lazy, eager, rtol=0, atol=1e-14)


def test_the_file_says_what_it_is_and_is_plain() -> None:
    assert main([*RUN, "--out", "a"]) == 0
    assert main(["export", "a", "--to", "m", "--format", "safetensors"]) == 0
    with safe_open("m", framework="pt") as file:
        about = file.metadata()
    assert (about["fedrows"], about["task"]) == (fedrows.__version__, "synthetic")
    assert (about["algorithm"], about["round"], about["format"]) == ("fedsubavg", "4", "pt")
    assert main(["export", "a", "--to", "m.pt"]) == 0
    found = torch.load("m.pt", weights_only=True)
    assert type(found) is dict
    assert {name: x.shape for name, x in load_file("m").items()} == {
        name: x.shape for name, x in found.items()
    }


@pytest.mark.parametrize("format", ["safetensors", "torch"])
def test_a_state_dict_loads_into_the_users_module(format: str) -> None:
    data = items()
    result = simulate(data, Tied(data.tables["item"]), rounds=3, clients_per_round=5, lr=0.05)
    trained = Trained.of(result, data)
    assert expected(trained).isfinite().all()
    save(trained, Path("model"), format)
    state = load_file("model") if format == "safetensors" else torch.load("model")
    module = Tied(data.tables["item"])
    module.load_state_dict(state)
    test = data.test.to(torch.device("cpu"), torch.float32)
    with torch.no_grad():
        scores = module(**test.fields(torch.arange(len(test))))
    torch.testing.assert_close(scores, expected(trained))
    assert float(state["scale"]) == 2


def test_rows_that_stay_with_their_clients_are_as_they_started() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.who, self.item = nn.Embedding(20, 2), nn.Embedding(data.tables["item"], 2)

        def forward(self, who: Tensor, item: Tensor) -> Tensor:
            return (self.who(who) * self.item(item)).sum(1)

    data = ratings(features=["who", "item"], tables={"who": 20}, local=["who"])
    module = Own()
    result = simulate(data, module, rounds=3, clients_per_round=5, lr=0.05)
    state = Trained.of(result, data).state_dict()
    assert torch.equal(state["who.weight"], module.who.weight)
    assert not torch.equal(result.params.tables["who"], module.who.weight)
    assert not torch.equal(state["item.weight"], module.item.weight)


def test_moments_of_normalisation_are_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """DIN's Dice normalises by moments that are no parameters and in no checkpoint."""
    task = replace(catalogue.task("synthetic"), load=lambda options: history(), model="din")
    monkeypatch.setattr(catalogue, "task", lambda name: task)
    assert main([*RUN, "--out", "a"]) == 0
    assert main(["export", "a", "--to", "m.safetensors"]) == 0
    module = DIN(12, 40)
    module.load_state_dict(load_file("m.safetensors"))
    test = history().test
    with torch.no_grad():
        scores = module.eval()(**test.fields(torch.arange(len(test))))
    loss = nn.functional.binary_cross_entropy_with_logits(scores, test.label.float())
    kept = RunFolder.open(Path("a")).lines()[-1]
    assert float(loss) == pytest.approx(kept["test_loss"], rel=1e-6)


def test_a_vocabulary_has_a_line_for_every_row() -> None:
    tables = {"item": Vocabulary(5), "item2": Vocabulary(oov=False)}
    data = ratings(features={"item": "item", "before": "item2"}, tables=tables)
    assert save_vocabulary(data, Path("v.jsonl")) == []
    lines = [json.loads(text) for text in Path("v.jsonl").read_text().splitlines()]
    for table, rows in data.tables.items():
        mine = [x for x in lines if x["table"] == table]
        assert [x["row"] for x in mine] == list(range(rows))
    item = [x for x in lines if x["table"] == "item"]
    assert item[0]["value"] == data.vocabulary["item"][0]
    assert item[-1] == {
        "table": "item",
        "row": data.tables["item"] - 1,
        "value": None,
        "means": "every other value",
    }
    token = [x for x in lines if x["table"] == "item2"]
    assert token[0]["means"] == "nothing here"
    assert [x["value"] for x in token[1:]] == data.vocabulary["item2"].tolist()


def test_tables_without_a_vocabulary_are_named() -> None:
    data = ratings(features=["item", "who"], tables={"who": 20})
    assert save_vocabulary(data, Path("v.jsonl")) == ["who"]
    with pytest.raises(ExportError, match="keeps no vocabulary"):
        save_vocabulary(ratings(features=["who"], tables={"who": 20}), Path("w.jsonl"))
    assert not Path("w.jsonl").exists()


def test_the_format_follows_the_name() -> None:
    assert [format_of(Path(x)) for x in ("a.pt", "a.PTH", "a.onnx", "a.safetensors", "a")] == [
        "torch",
        "torch",
        "onnx",
        "safetensors",
        "safetensors",
    ]


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (["a"], "Name a run and a file"),
        (["a", "--to", "m", "--format", "keras"], "There is no format 'keras' to export to"),
        (["a", "--to", "no/m"], "no/m cannot be written, because"),
        (["a", "--to", "."], ". is a folder: name a file in it."),
        (["a", "--to", "a/config.json", "--overwrite"], "is a file of a run folder's own"),
        (["a", "--to", "old"], "old exists already"),
        (["a", "--to", "m", "--vocabulary", "m"], "both say m: name two files."),
        (["a", "--to", "m", "--vocabulary", "v"], "synthetic keeps no vocabulary"),
        (["b", "--to", "m"], "There is no folder b"),
        (["empty", "--to", "m"], "There is no checkpoint empty/checkpoint.safetensors"),
        (["cut", "--to", "m"], "cut/checkpoint.safetensors is cut short or not a checkpoint"),
        (["other", "--to", "m"], "does not fit its run, in which 'model/table/weight' is"),
    ],
)
def test_what_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    typed: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--out", "a"]) == 0
    assert main([*RUN, "--items", "21", "--out", "larger"]) == 0
    for name in ("empty", "cut", "other"):
        RunFolder.create(Path(name), "run", RunFolder.open(Path("a")).config)
    Path("cut/checkpoint.safetensors").write_bytes(b"cut")
    Path("larger/checkpoint.safetensors").rename("other/checkpoint.safetensors")
    Path("old").write_text("old")
    before = sorted(Path().rglob("*"))
    capsys.readouterr()
    assert main(["export", *typed]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(Path().rglob("*")) == before


def test_a_comparison_says_which_run_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    some = ["--algorithms", "fedavg", "--seeds", "1", "--out", "c"]
    assert main(["compare", *RUN[1:], *some]) == 0
    assert main(["export", "c", "--to", "m"]) == 2
    assert "such as c/runs/fedavg-seed1." in capsys.readouterr().err
    assert main(["export", "c/runs/fedavg-seed1", "--to", "m"]) == 0


def test_a_full_disk_leaves_the_old_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    data = items()
    trained = Trained.of(simulate(data, Tied(data.tables["item"]), rounds=1, lr=0.1), data)
    Path("m.pt").write_text("old")
    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(ExportError, match=r"^m\.pt cannot be written \(No space left on device\)"):
        save(trained, Path("m.pt"))
    assert [path.read_text() for path in Path().iterdir()] == ["old"]
