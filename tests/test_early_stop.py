"""Early stopping: on validation, exact when resumed, and the best model is what counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import SMALL, fedrows, metrics
from commands import own_folder as own_folder
from deployed import examples
from safetensors.torch import load_file
from torch import nn

from fedrows import Plan, Simulation, simulate
from fedrows.algorithms.fedavg import FedAvg
from fedrows.cli import main
from fedrows.errors import PlanError
from fedrows.measure.summary import summarise
from fedrows.models.logistic import Logistic
from fedrows.nn import BatchNorm
from fedrows.privacy.options import Privacy
from fedrows.runs.checkpoint import standing
from fedrows.runs.driver import InFolder, InMemory, drive
from fedrows.runs.early_stop import EarlyStop
from fedrows.runs.export import Trained
from fedrows.runs.folder import BEST, CHECKPOINT, RunFolder
from fedrows.runs.resume import begin, drop_later_lines, go_back_

DATA = examples()
LOSSES = {2: 0.9, 4: 0.5, 6: 0.7, 8: 0.4, 10: 0.41, 12: float("nan"), 14: 0.4, 16: 0.1}


def simulation(losses: dict[int, float] = LOSSES, **more: Any) -> Simulation:
    """A run of 16 rounds whose validation losses are known."""
    settings = {"rounds": 16, "evaluate_every": 2, "clients_per_round": 3, "local_steps": 2}
    plan = Plan(**{**settings, "patience": 3, "device": "cpu", **more})
    run = Simulation(DATA, Logistic(DATA), FedAvg(), plan)
    measure = run.evaluate
    run.evaluate = lambda: measure() | {"validation_loss": losses.get(run.progress.round)}
    return run


def lines_of(values: list[Any]) -> list[dict[str, Any]]:
    return [{"round": 10 * n, "validation_auc": x} for n, x in enumerate(values, start=1)]


def test_the_first_of_the_best_counts_and_patience_is_counted_from_it():
    early = EarlyStop("validation_auc", 2)
    lines = lines_of([0.6, None, 0.7, 0.7, float("nan"), 0.8])
    assert early.best(lines[:2])["round"] == 10
    assert early.best(lines[:5])["round"] == 30
    assert [bool(early.over(lines[:n])) for n in range(1, 7)] == [0, 0, 0, 0, 1, 0]
    assert early.best([]) is None
    assert not early.over([])
    assert "never measured" in early.over(lines_of([None, None]))
    assert EarlyStop("validation_loss", 2).best(
        [{"round": 1, "validation_loss": 0.5}, {"round": 2, "validation_loss": 0.4}]
    ) == {"round": 2, "validation_loss": 0.4}
    with pytest.raises(PlanError, match="the run does not measure validation_joy"):
        EarlyStop("validation_joy", 1).check({"round": 1})


def test_a_run_stops_and_keeps_its_best_model():
    run, keeper, straight = simulation(), InMemory(), simulation(rounds=8, patience=None)
    assert drive(run, keeper)
    assert [line["round"] for line in keeper.lines()] == [2, 4, 6, 8, 10, 12, 14]
    assert [line["best_round"] for line in keeper.lines()] == [2, 4, 4, 8, 8, 8, 8]
    assert run.stopped == (
        "validation_loss was best after round 8, and no better in 3 evaluations since"
    )
    drive(straight, InMemory())
    assert keeper.best is not None
    assert torch.equal(keeper.best.tables["item"], straight.progress.params.tables["item"])
    [shown] = summarise(keeper.lines())["algorithms"]
    assert shown["metrics"]["test_loss"]["final"]["mean"] == keeper.lines()[3]["test_loss"]
    assert shown["rounds"] == 14


@pytest.mark.parametrize("at", [3, 8, 12, 14])
def test_a_resumed_run_stops_at_the_same_round_with_the_same_best(tmp_path: Path, at: int):
    straight = simulation()
    whole = InMemory()
    drive(straight, whole)
    folder, first = RunFolder.create(tmp_path / "run", "run", {}), simulation()
    begin(folder, first, {})
    drive(first, InFolder(folder, first, 1e9), (), lambda: first.progress.round == at)
    for _ in range(2):  # the second time it has ended already
        again = simulation()
        go_back_(again, folder)
        drop_later_lines(again, folder)
        assert drive(again, InFolder(folder, again, 1e9))
        assert again.progress.round == 14
        assert again.stopped == straight.stopped
        assert [line["best_round"] for line in folder.lines()] == [2, 4, 4, 8, 8, 8, 8]
    assert whole.best is not None
    best = load_file(folder.path / BEST)
    assert torch.equal(best["model/table/item"], whole.best.tables["item"])
    last = load_file(folder.path / CHECKPOINT)
    assert torch.equal(last["model/table/item"], straight.progress.params.tables["item"])


def test_patience_that_cannot_be():
    options = {"rounds": 2, "clients_per_round": 3, "patience": 1}
    with pytest.raises(PlanError, match="does not measure validation_loss: hold out validation"):
        simulate(DATA, Logistic(DATA), "fedavg", **options)
    with pytest.raises(PlanError, match=r"watch-metric is 'test_auc'.*must not know its test"):
        Plan(watch_metric="test_auc")
    with pytest.raises(PlanError, match="patience keeps a copy"):
        Plan(patience=1, tables="mapped")
    plan = Plan(clients_per_round=3, patience=1, device="cpu")
    with pytest.raises(PlanError, match="with privacy 'heat' a run has none"):
        Simulation(DATA, Logistic(DATA), FedAvg(), plan, Privacy.of("heat"))


@pytest.mark.usefixtures("own_folder")
def test_on_the_command_line_the_best_model_is_exported(capsys: pytest.CaptureFixture[str]):
    words = ["run", "synthetic", *SMALL, "--rounds", "30", "--evaluate-every", "1", "--out", "run"]
    assert main([*words, "--patience", "2"]) == 2
    assert "does not measure validation_loss" in capsys.readouterr().err
    assert not Path("run").exists()
    words += ["--patience", "2", "--watch-metric", "train_loss", "--lr", "8"]
    fedrows(*words)
    said = capsys.readouterr().out
    lines = metrics("run")
    best = lines[-1]["best_round"]
    assert len(lines) < 30
    assert best == lines[-3]["round"]
    assert f"Ended after round {len(lines)}: train_loss was best after round {best}" in said
    fedrows("export", "run", "--to", "model.safetensors")
    assert f"Model after round {best}" in capsys.readouterr().out
    assert torch.equal(
        load_file("model.safetensors")["weight"].flatten(),
        load_file("run/best.safetensors")["model/table/weight"].flatten(),
    )


def test_a_longer_run_keeps_the_line_of_the_best_model(tmp_path: Path):
    """Round 7 is evaluated only because it is the last; the longer run must not forget it."""
    losses = {**LOSSES, 7: 0.2}
    folder, first = RunFolder.create(tmp_path / "run", "run", {}), simulation(losses, rounds=7)
    begin(folder, first, {})
    assert drive(first, InFolder(folder, first, 1e9))
    longer = simulation(losses, rounds=16)
    go_back_(longer, folder)
    drop_later_lines(longer, folder)
    assert drive(longer, InFolder(folder, longer, 1e9))
    lines = folder.lines()
    assert [line["round"] for line in lines] == [2, 4, 6, 7, 8, 10, 12]
    assert lines[-1]["best_round"] == standing(folder.path / BEST).round == 7


def test_a_run_killed_between_checkpoint_and_best_model_keeps_that_model(tmp_path: Path):
    folder, first = RunFolder.create(tmp_path / "run", "run", {}), simulation()
    begin(folder, first, {})
    keeper = InFolder(folder, first, 1e9)

    def killed(run: Any) -> None:
        if run.progress.round == 8:
            assert standing(folder.path / CHECKPOINT).round == 8  # it can be gone back to
            raise KeyboardInterrupt
        InFolder.keep_best(keeper, run)

    keeper.keep_best = killed
    with pytest.raises(KeyboardInterrupt):
        drive(first, keeper)
    again = simulation()
    go_back_(again, folder)
    drop_later_lines(again, folder)
    assert drive(again, InFolder(folder, again, 1e9))
    assert folder.lines()[-1]["best_round"] == standing(folder.path / BEST).round == 8


def test_the_best_model_its_metrics_and_its_moments_are_of_one_round():
    data = replace(DATA, validation=DATA.train)
    plan = {"clients_per_round": 3, "local_steps": 2, "seed": 4, "device": "cpu", "lr": 4.0}
    stopped = simulate(data, net(), "fedavg", rounds=40, evaluate_every=1, patience=2, **plan)
    chosen = stopped.history[-3]
    assert stopped.metrics is chosen
    assert chosen["round"] == stopped.history[-1]["best_round"]
    straight = simulate(data, net(), "fedavg", rounds=chosen["round"], **plan)
    trained = Trained.of(stopped, data)
    assert trained.metrics is chosen
    for name, x in straight.state_dict().items():  # running_mean and running_var are among them
        assert torch.equal(trained.state_dict()[name], x), name


def net() -> nn.Module:
    """A module whose moments change from round to round."""
    torch.manual_seed(0)
    return Normed(DATA.tables["item"])


class Normed(nn.Module):
    def __init__(self, items: int) -> None:
        super().__init__()
        self.item, self.norm = nn.Embedding(items, 3), BatchNorm(3)

    def forward(self, item: torch.Tensor) -> torch.Tensor:
        return self.norm(self.item(item)).sum(-1)
