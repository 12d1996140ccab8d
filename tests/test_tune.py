"""The search of rates: its arithmetic by hand, its edges, its budget, and what it may not see."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedrows
from fedrows.algorithms.fedadam import FedAdam
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, FedrowsError, ModelError, PlanError
from fedrows.tuning import methods
from fedrows.tuning.methods import Ask, Search, cost, schedule
from fedrows.tuning.result import read_rates
from fedrows.tuning.space import Space, half_decade_from, half_decades, spaces
from fedrows.tuning.trials import without_test

DATA = {"clients": 30, "items": 20, "examples_per_client": 8}
SMALL: dict[str, Any] = {"rounds": 16, "clients_per_round": 5, "evaluate_every": 4}


def small(algorithms: Any = "fedavg", **more: Any) -> Any:
    return fedrows.tune("synthetic", None, algorithms, options=DATA, **{**SMALL, **more})


def lr(text: str) -> Space:
    return spaces({"fedavg": FedAvg}, {"lr": text})["fedavg"]


def carried_out(search: Search, score: Callable[[Ask], float]) -> list[Ask]:
    """All that a search asks for, if trials score like this."""
    asked: list[Ask] = []
    batch = next(search)
    while True:
        asked += batch
        try:
            batch = search.send([score(ask) for ask in batch])
        except StopIteration:
            return asked


def near(best: float) -> Callable[[Ask], float]:
    return lambda ask: -1 - abs(math.log10(ask.values["lr"] / best))


def test_halving_by_hand() -> None:
    assert schedule(16, 300, 4) == [(16, 19), (4, 75), (1, 300)]
    assert cost(16, 300, 4) == 16 * 19 + 4 * 75 + 300 == 904
    assert schedule(8, 32, 4) == [(8, 2), (2, 8), (1, 32)]
    assert schedule(9, 90, 3) == [(9, 10), (3, 30), (1, 90)]
    assert schedule(1, 90, 3) == [(1, 90)]
    assert schedule(16, 3, 4) == [(16, 1), (1, 3)]  # no second step of one round
    asked = carried_out(methods.halving(lr("0.003..10"), 32, 64, 4, 0), near(0.3))
    lengths = [(ask.values["lr"], ask.rounds) for ask in asked]
    assert lengths[:8] == [(rate, 2) for rate in (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10)]
    assert {rate for rate, rounds in lengths if rounds == 8} == {0.1, 0.3}  # 1 is as far as 0.1
    assert lengths[-1] == (0.3, 32)
    assert sum(ask.rounds for ask in asked) == 64


def test_a_search_may_change_its_mind_when_runs_are_longer() -> None:
    def score(ask: Ask) -> float:
        return near(0.9 if ask.rounds == 2 else 0.3)(ask)

    assert carried_out(methods.halving(lr("0.003..10"), 32, 64, 4, 0), score)[-1].values == {
        "lr": 0.3
    }


def test_a_best_at_the_edge_is_followed_while_the_budget_lasts() -> None:
    rates = [
        ask.values["lr"] for ask in carried_out(methods.grid(lr("0.01..0.1"), 10, 60), near(1.0))
    ]
    assert rates == [0.01, 0.03, 0.1, 0.3, 1.0, 3.0]
    poor = carried_out(methods.grid(lr("0.01..0.1"), 10, 40), near(1.0))
    assert [ask.values["lr"] for ask in poor] == [0.01, 0.03, 0.1, 0.3]
    below = carried_out(methods.grid(lr("0.01..0.1"), 10, 60), near(0.003))
    assert [ask.values["lr"] for ask in below] == [0.01, 0.03, 0.1, 0.003, 0.001]
    for budget in (64, 70, 100, 300):
        asked = carried_out(methods.halving(lr("0.003..10"), 32, budget, 4, 0), near(1000.0))
        assert sum(ask.rounds for ask in asked) <= budget
        assert asked[-1].rounds == 32


def test_nothing_is_followed_that_gets_no_better() -> None:
    flat = carried_out(methods.grid(lr("0.01..0.1"), 10, 1000), lambda ask: -1.0)
    assert [ask.values["lr"] for ask in flat] == [0.01, 0.03, 0.1, 0.003]
    all_diverged = carried_out(methods.grid(lr("0.01..0.1"), 10, 1000), lambda ask: -math.inf)
    assert len(all_diverged) == 3


def test_a_small_budget_has_fewer_candidates_and_one_whole_run() -> None:
    asked = carried_out(methods.halving(lr("0.003..10"), 32, 40, 4, 0), near(0.3))
    assert sum(ask.rounds for ask in asked) <= 40
    assert [ask.rounds for ask in asked].count(32) == 1


def test_random_draws_are_inside_their_range_and_the_same_twice() -> None:
    space = spaces({"fedadam": FedAdam}, {"server_lr": "1e-3..1", "local_steps": "5..20"})
    asked = carried_out(methods.random(space["fedadam"], 10, 95, 3), lambda ask: 0.0)
    assert len(asked) == 9
    assert all(1e-3 <= ask.values["server_lr"] <= 1 for ask in asked)
    assert all(isinstance(ask.values["local_steps"], int) for ask in asked)
    again = carried_out(methods.random(space["fedadam"], 10, 95, 3), lambda ask: 0.0)
    assert asked == again
    few = carried_out(methods.random(lr("0.1,0.2"), 10, 100, 0), lambda ask: 0.0)
    assert sorted(ask.values["lr"] for ask in few) == [0.1, 0.2]


def test_values_are_read_as_they_are_written() -> None:
    assert half_decades(0.03, 3) == [0.03, 0.1, 0.3, 1.0, 3.0]
    assert half_decades(0.02, 0.3) == [0.02, 0.0632, 0.2, 0.3]
    assert half_decade_from(0.003, up=False) == 0.001
    classes = {"fedavg": FedAvg, "fedadam": FedAdam}
    both = spaces(classes, {"lr": "0.1..1", "fedadam.tau": "1e-8..1e-4:3", "batches": "draw,epoch"})
    assert both["fedavg"].axes[0].values == (0.1, 0.3, 1.0)
    assert [axis.name for axis in both["fedadam"].axes] == ["lr", "batches", "tau"]
    assert both["fedadam"].axes[2].values == (1e-8, 1e-6, 1e-4)
    assert both["fedadam"].axes[2].beyond([1e-8, 1e-6, 1e-4], up=True) == 1e-2
    assert not both["fedavg"].edges(
        [{"lr": 0.1, "batches": "draw"}] * 2, {"batches": "draw"} | {"lr": 1}
    )
    usual = spaces(classes, {})
    assert [axis.name for axis in usual["fedavg"].axes] == ["lr"]
    assert [axis.name for axis in usual["fedadam"].axes] == ["server_lr", "tau"]
    cap = spaces({"fedsubavg": FedSubAvg}, {"cap": "none,2,8", "alpha": [0.5, 1.0]})["fedsubavg"]
    assert cap.axes[0].values == (None, 2.0, 8.0)
    assert cap.axes[1].beyond([0.5, 1.0], up=True) is None  # it may not be above 1


@pytest.mark.parametrize(
    ("search", "words"),
    [
        ({"lr": ""}, "leaves a value out"),
        ({"lr": "0.1,,1"}, "leaves a value out"),
        ({"lr": []}, "give a list"),
        ({"lr": "3..0.03"}, "does not rise"),
        ({"lr": "1..1"}, "does not rise"),
        ({"lr": "-1..1"}, "above 0"),
        ({"lr": "0..1"}, "above 0"),
        ({"lr": "-1"}, "lr is -1.0, but must be above 0"),
        ({"lr": "a..b"}, "no number"),
        ({"lr": "nan"}, "no number"),
        ({"lr": "0.1..inf"}, "no number"),
        ({"lr": "0.1..1:1"}, "2 to 1000"),
        ({"lr": "0.1..1:x"}, "2 to 1000"),
        ({"lr": "0.1,0.1"}, "twice"),
        ({"batches": "1..2"}, "is no number"),
        ({"batches": "draw,none"}, "one of draw, epoch"),
        ({"local_step": "1"}, "did you mean local_steps?"),
        ({"fedadm.tau": "1"}, "no algorithm to tune called 'fedadm'"),
        ({"fedavg.tau": "1"}, "option of fedavg"),
        ({"rounds": "1,2"}, "cannot be searched"),
    ],
)
def test_values_that_make_no_sense_are_refused(search: dict[str, Any], words: str) -> None:
    with pytest.raises(FedrowsError, match=words):
        small(search=search)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"budget": 0}, "at least so many"),
        ({"budget": 15}, "a run has 16"),
        ({"trials": 0}, "trials is 0"),
        ({"trials": 3, "budget": 100}, "give one of them"),
        ({"method": "grid", "budget": 64}, "8 combinations"),
        ({"method": "halvin"}, "did you mean halving?"),
        ({"method": "optuna", "sampler": "tp"}, "did you mean tpe?"),
        ({"eta": 1}, "eta is 1"),
        ({"by": "test_auc"}, "not measured on validation"),
        ({"by": "validation_aucc"}, "did you mean validation_auc?"),
        ({"algorithms": []}, "no algorithm to tune"),
        ({"algorithms": ["fedavgg"]}, "did you mean fedavg?"),
        ({"learning_rate": 1}, "no option of the plan"),
        ({"workers": 0}, "workers is 0"),
        ({"clients_per_round": 50}, "only 30 clients"),
    ],
)
def test_searches_that_make_no_sense_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FedrowsError, match=words):
        small(**more)


def test_a_task_without_validation_examples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="no validation examples to choose on"):
        fedrows.tune(
            "synthetic", None, "fedavg", options={**DATA, "validation": 0.0}, out=tmp_path / "x",
            **SMALL,
        )  # fmt: skip
    assert not (tmp_path / "x").exists()
    with pytest.raises(ModelError, match=r"The module is None: give an nn\.Module"):
        fedrows.tune(federation(), None, "fedavg")
    with pytest.raises(DataError, match="The data are a int, but must be FederatedData"):
        fedrows.tune(3, Scores(), "fedavg")  # type: ignore[arg-type]


def test_every_algorithm_has_the_same_budget(tmp_path: Path) -> None:
    tuned = small(["fedavg", "fedadam"], budget=40, out=tmp_path)
    assert tuned.budget == 40
    for name in ("fedavg", "fedadam"):
        assert tuned.rounds <= tuned.spent(name) <= 40
    assert small(["fedavg"], search={"lr": "1"}, trials=5).budget == 80
    usual = small(["fedavg", "fedadam"], search={"lr": "0.1,1", "fedadam.tau": "1e-4,1e-2"})
    assert usual.budget == cost(4, 16, 4) + 16  # what the larger of the two needs, and a run


def test_the_table_says_what_was_added_and_what_is_at_the_edge() -> None:
    tuned = small(search={"lr": "1e-4..3e-4"}, method="grid", trials=3)
    assert tuned.rates == {"fedavg": {"lr": 1e-3}}  # too small a rate: more is better
    assert tuned.table()[1][0][-1] == "lr: added 0.001; lr is at the edge"
    fixed = small(search={"lr": "0.1"})
    assert fixed.at_edge == {}
    assert repr(fixed) == "Tuned(synthetic: 1 trials by validation loss; fedavg: lr 0.1)"


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(40, 4)
        self.score = nn.Linear(4, 1)

    def forward(self, item: Any) -> Any:
        return self.score(self.item(item))[:, 0]


def federation(poisoned: bool = False, validation: float = 0.2) -> FederatedData:
    """Clients with a taste; poisoned: the labels of all test examples are wrong."""
    draw = np.random.default_rng(0)
    item, user = draw.integers(0, 40, 1200), draw.integers(0, 30, 1200)
    liked = draw.random(1200) < 1 / (1 + np.exp(-draw.normal(0, 2, 40)[item]))
    test = draw.random(1200) < 0.3
    frame = pd.DataFrame({"user": user, "item": item, "test": test})
    frame["liked"] = np.where(test & poisoned, ~liked, liked)
    return FederatedData.from_frame(
        frame, client="user", label="liked", features=["item"], tables={"item": 40}, test="test",
        validation=validation,
    )  # fmt: skip


def test_test_labels_have_no_say(tmp_path: Path) -> None:
    module = Scores()
    clean, poisoned = (
        fedrows.tune(federation(bad), module, ["fedavg", "fedsubavg"], out=tmp_path / str(bad),
                     search={"lr": "0.1,0.3,1"}, **SMALL)
        for bad in (False, True)
    )  # fmt: skip
    assert clean.rates == poisoned.rates
    assert [one.value for one in clean.trials] == [one.value for one in poisoned.trials]
    assert "test_" not in (tmp_path / "False" / "trials.json").read_text("utf-8")
    assert not len(without_test(federation()).test)


def test_test_metrics_come_only_with_seeds_to_confirm() -> None:
    module, data = Scores(), federation()
    tuned = fedrows.tune(data, module, "fedavg", search={"lr": "0.1,1"}, confirm=[0, 1], **SMALL)
    [confirmed] = tuned.confirmed
    assert set(confirmed.metrics) == {0, 1}
    assert set(confirmed.metrics[0]) == {f"test_{x}" for x in ("loss", "accuracy", "auc", "gauc")}
    poisoned = fedrows.tune(
        federation(poisoned=True), module, "fedavg", search={"lr": "0.1,1"}, confirm=[0, 1], **SMALL
    )
    auc = statistic(poisoned.confirmed[0].values("test_auc"))
    assert auc == pytest.approx(1 - statistic(confirmed.values("test_auc")))
    with pytest.raises(PlanError, match="no test examples to confirm"):
        fedrows.tune(without_test(data), module, "fedavg", search={"lr": [1]}, confirm=[0], **SMALL)


def statistic(values: list[float]) -> float:
    return sum(values) / len(values)


def test_own_data_give_rates_trials_and_a_page(tmp_path: Path) -> None:
    told: list[str] = []
    tuned = fedrows.tune(
        federation(), Scores(), [FedAvg, FedAdam(server_lr=0.1)], out=tmp_path, say=told.append,
        search={"lr": "0.1..1", "fedadam.tau": [1e-4, 1e-2]}, by="validation_auc", **SMALL,
    )  # fmt: skip
    assert told[0].startswith("fedavg: 3 trials of 4 rounds; best lr ")
    name, rates = read_rates(tmp_path / "rates.json")
    assert (name, rates) == ("data", tuned.rates)
    content = json.loads((tmp_path / "trials.json").read_text("utf-8"))
    assert len(content["trials"]) == len(tuned.trials)
    page = (tmp_path / "index.html").read_text("utf-8")
    for part in ("validation AUC by lr", "validation AUC by tau", "What was chosen", "log"):
        assert part in page
    frame = tuned.frame("pandas")
    assert list(frame["algorithm"].unique()) == ["fedavg", "fedadam"]


def test_classes_that_other_processes_cannot_import_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Scores, "__module__", "__main__")
    with pytest.raises(PlanError, match="defined in the script itself"):
        fedrows.tune(federation(), Scores(), "fedavg", workers=2, **SMALL)


def test_finished_trials_are_not_made_again(tmp_path: Path) -> None:
    """Stopped after some trials, a search goes on; the same seed comes to the same result."""

    class StoppedError(Exception):
        pass

    made = 0

    def stop(text: str) -> None:
        nonlocal made
        made += 1
        if made == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        small(out=tmp_path / "one", say=stop)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "one" / "runs").iterdir()}
    assert len(before) == 10  # of eight and of two trials; the last was not begun
    tuned = small(out=tmp_path / "one")
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    straight = small(out=tmp_path / "two")
    assert [replace(one, seconds=0) for one in tuned.trials] == [
        replace(one, seconds=0) for one in straight.trials
    ]
    other = small(out=tmp_path / "one", seed=7)
    assert not {one.id for one in other.trials} & {one.id for one in tuned.trials}
    damaged = next(iter(before))
    damaged.write_bytes(b"no run")
    told: list[str] = []
    assert small(out=tmp_path / "one", say=told.append).rates == tuned.rates
    assert any("is made again" in text for text in told)


def test_optuna_samples_and_gives_the_same_twice() -> None:
    pytest.importorskip("optuna")
    search = {"lr": "0.01..3", "batches": "draw,epoch"}
    one, two = (small(search=search, method="optuna", trials=6, seed=5) for _ in range(2))
    assert len(one.trials) == 6
    assert [trial.values for trial in one.trials] == [trial.values for trial in two.trials]
    assert one.rates == two.rates
    assert all(0.01 <= trial.values["lr"] <= 3 for trial in one.trials)
    other = small(search=search, method="optuna", trials=6, seed=6)
    assert [trial.values for trial in other.trials] != [trial.values for trial in one.trials]


def test_a_rate_that_diverges_is_never_chosen() -> None:
    module, data = Scores(), federation()
    more: dict[str, Any] = {"method": "grid", "trials": 2, **SMALL}
    tuned = fedrows.tune(data, module, "fedavg", search={"lr": [0.1, 1e30]}, **more)
    assert tuned.rates == {"fedavg": {"lr": 0.1}}
    nothing = fedrows.tune(data, module, "fedavg", search={"lr": [1e30, 1e31]}, **more)
    assert nothing.rates == {}
    assert nothing.table()[1][0][-1] == "all whole runs diverged"
