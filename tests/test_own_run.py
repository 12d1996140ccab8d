"""Runs in Python have what runs on the command line have: a folder, a page, and a way back."""

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import assert_same
from torch import nn

import fedrows
from fedrows import cli
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.errors import (
    FedrowsError,
    NotFiniteError,
    PlanError,
    RunFolderError,
    UnknownKeywordError,
)
from fedrows.privacy.options import Privacy
from fedrows.runs.folder import RunFolder

PLAN: dict[str, Any] = {"lr": 0.3, "clients_per_round": 5, "evaluate_every": 5, "threads": 1}


class Recommender(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.item = nn.Embedding(items, 3)
        self.score = nn.Linear(3, 1)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        return self.score(self.item(item))[:, 0]


def ratings(seed: int = 0, validation: float = 0.0) -> fedrows.FederatedData:
    rng = np.random.default_rng(seed)
    count = 400
    return fedrows.FederatedData.build(
        name="ratings",
        client=rng.integers(0, 30, count),
        ids={"item": rng.integers(0, 20, count)},
        label=rng.integers(0, 2, count),
        test=np.arange(count) % 5 == 0,
        validation=np.arange(count) % 5 == 1 if validation else np.zeros(count, dtype=bool),
        tables={"item": 20},
    )


@pytest.fixture
def data() -> fedrows.FederatedData:
    return ratings()


@pytest.fixture
def module() -> Recommender:
    torch.manual_seed(0)
    return Recommender(20)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def same(one: Any, other: Any) -> bool:
    state = other.state_dict()
    return all(torch.equal(x, state[name]) for name, x in one.state_dict().items())


def test_a_run_folder_has_all_that_the_command_line_writes(data: Any, module: Any) -> None:
    result = fedrows.simulate(data, module, rounds=12, out="mine", **PLAN)
    assert (
        cli.main(
            [
                "run",
                "synthetic",
                "--clients=30",
                "--clients-per-round=5",
                "--rounds=2",
                "--out=theirs",
            ]
        )
        == 0
    )
    assert {p.name for p in Path("mine").iterdir()} == {p.name for p in Path("theirs").iterdir()}
    assert same(result, fedrows.simulate(data, module, rounds=12, **PLAN))
    assert RunFolder.open(Path("mine")).lines() == json.loads(json.dumps(result.history))
    assert "<svg" in Path("mine/report.html").read_text("utf-8")
    assert cli.main(["report", "mine"]) == 0


def test_a_resumed_run_is_equal_to_the_bit(data: Any, module: Any) -> None:
    whole = fedrows.simulate(data, module, "fedadam", rounds=12, out="whole", **PLAN)

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fedrows.simulate(
            data,
            module,
            "fedadam",
            rounds=12,
            out="part",
            report=stop,
            checkpoint_seconds=0,
            **PLAN,
        )
    torch.manual_seed(1)  # the checkpoint's numbers count, not those of a new module
    resumed = fedrows.simulate(data, Recommender(20), "fedadam", out="part", resume=True)
    assert same(whole, resumed)
    assert [line["round"] for line in resumed.history] == [5, 10, 12]
    assert_same("whole", "part")
    again = fedrows.simulate(data, module, "fedadam", out="part", resume=True)  # nothing is left
    assert same(whole, again)


def test_a_run_is_made_longer(data: Any, module: Any) -> None:
    fedrows.simulate(data, module, rounds=5, out="short", **PLAN)
    longer = fedrows.simulate(data, module, rounds=12, out="short", resume=True)
    assert same(longer, fedrows.simulate(data, module, rounds=12, **PLAN))


def test_the_best_model_comes_back(module: Any) -> None:
    data, plan = ratings(validation=0.2), {**PLAN, "evaluate_every": 1, "lr": 3.0, "patience": 3}
    plain = fedrows.simulate(data, module, rounds=30, **plan)
    kept = fedrows.simulate(data, module, rounds=30, out="best", **plan)
    assert plain.stopped
    assert same(plain, kept)
    assert same(plain, fedrows.simulate(data, module, out="best", resume=True))


def half_frozen() -> Recommender:
    module = Recommender(20)
    module.score.requires_grad_(False)
    return module


def refused(kind: type[FedrowsError], match: str, *given: Any, **named: Any) -> None:
    before = {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()}
    with pytest.raises(kind, match=match):
        fedrows.simulate(*given, **named)
    assert {p: p.read_bytes() for p in Path().rglob("*") if p.is_file()} == before


def test_what_would_lose_or_change_a_run_is_refused(data: Any, module: Any) -> None:
    fedrows.simulate(data, module, rounds=5, out="mine", **PLAN)
    there, on = {"out": "mine"}, {"out": "mine", "resume": True}
    refused(
        RunFolderError,
        r"mine exists already: .*overwrite=True, or .*resume=True",
        data,
        module,
        **there,
    )
    refused(
        PlanError, "lr 0.5 would change the run in mine, which has 0.3", data, module, lr=0.5, **on
    )
    refused(PlanError, "algorithm fedavg would change", data, module, "fedavg", **on)
    refused(PlanError, "fedsubavg's cap 4.0 would change", data, module, FedSubAvg(cap=4.0), **on)
    refused(PlanError, "privacy heat would change", data, module, privacy=Privacy.of("heat"), **on)
    refused(RunFolderError, "is a run of ratings-", ratings(1), module, **on)
    refused(RunFolderError, "is a run of ratings-", data, half_frozen(), **on)
    refused(
        RunFolderError, "rounds is 3, but the run in mine has done 5", data, module, rounds=3, **on
    )
    refused(RunFolderError, "There is no folder other", data, module, out="other", resume=True)
    refused(PlanError, "cannot be used together", data, module, overwrite=True, **on)
    refused(PlanError, "no folder is named", data, module, resume=True)
    refused(PlanError, "both given", data, module, folder="tables", **there)
    refused(PlanError, "only 30 clients", data, module, out="new", clients_per_round=31)
    with RunFolder.open(Path("mine")).locked():
        refused(RunFolderError, "Another fedrows is at work in mine", data, module, **on)
    longer = fedrows.simulate(data, module, rounds=3, overwrite=True, **there, **PLAN)
    assert longer.history[-1]["round"] == 3


def test_a_run_that_diverges_keeps_its_folder(data: Any, module: Any) -> None:
    with pytest.raises(NotFiniteError, match="mine is kept as it was after round"):
        fedrows.simulate(data, module, rounds=9, out="mine", **{**PLAN, "lr": 1e30})
    assert Path("mine/checkpoint.safetensors").exists()


def test_the_command_line_says_whose_run_it_is(
    data: Any, module: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    fedrows.simulate(data, module, rounds=2, out="mine", **PLAN)
    capsys.readouterr()
    for words in (["run", "--resume", "mine"], ["export", "mine", "--to", "model.pt"]):
        assert cli.main(words) == 2
        assert "mine was made by fedrows.simulate" in capsys.readouterr().err


def test_unknown_keywords_are_named(data: Any, module: Any) -> None:
    calls = {
        "simulate has no keyword 'learning_rate': did you mean lr?": lambda: fedrows.simulate(
            data, module, learning_rate=0.1
        ),
        "from_frame has no keyword 'user': did you mean client?": (
            lambda: fedrows.FederatedData.from_frame(None, user="u")
        ),
        "Study has no keyword 'seed': did you mean seeds?": lambda: fedrows.Study([], seed=1),
        "read_parquet has no keyword 'validaton': did you mean validation?": lambda: (
            fedrows.read_parquet("x", client="a", label="b", features=["c"], validaton=0.1)
        ),
    }
    for sentence, call in calls.items():
        with pytest.raises(UnknownKeywordError) as caught:
            call()
        assert str(caught.value) == sentence
        assert isinstance(caught.value, TypeError)
    with pytest.raises(UnknownKeywordError, match=r"'quux': it takes .*batch_size.*lr.*rounds"):
        fedrows.simulate(data, module, quux=1)


def test_data_results_and_studies_show_themselves(data: Any, module: Any) -> None:
    assert (
        repr(data)
        == "FederatedData(ratings: 30 clients, 320 train, 80 test examples; item: 20 rows)"
    )
    assert "<td>clients</td><td>30</td>" in data._repr_html_()
    result = fedrows.simulate(data, module, rounds=10, **PLAN)
    assert repr(result).startswith("Result(fedsubavg, 10 rounds: train_loss 0.")
    html = result._repr_html_()
    assert html.count('<svg class="chart"') == 4
    assert "http" not in html.replace("http://www.w3.org", "")
    assert "<script" not in html
    study = fedrows.Study.grid(
        "synthetic",
        ["fedavg", "fedsubavg"],
        [0],
        plan={"rounds": 2, "evaluate_every": 1, "clients_per_round": 5},
        data={"clients": 30, "items": 20},
    )
    assert repr(study) == "Study(fedavg, fedsubavg on synthetic: 2 settings × 1 seeds, not run yet)"
    assert "<svg" not in study._repr_html_()
    results = study.run("study")
    assert repr(results) == "Results(2 runs: fedavg, fedsubavg)"
    for shown in (study, results):
        assert "FedSubAvg" in shown._repr_html_()
        assert '<svg class="chart"' in shown._repr_html_()


def test_simulate_says_what_it_takes() -> None:
    names = list(inspect.signature(fedrows.simulate).parameters)
    assert names[:3] == ["data", "module", "algorithm"]
    assert {"out", "resume", "overwrite", "checkpoint_seconds"} <= set(names)
    assert "run folder" in (fedrows.simulate.__doc__ or "")
