"""The search of learning rates: it chooses on validation, and follows a best at an edge."""

from __future__ import annotations

import json
from dataclasses import replace

from test_paper_tables import Work, validation_of

from benchmarks.save_rates import main as save_rates
from fedrows.errors import DataError
from fedrows.paper import rates_search, table2, table4
from fedrows.paper.task_runs import compare
from fedrows.paper.tasks import AMAZON, MOVIELENS, TASKS
from fedrows.study import FinishedRun
from fedrows.study.finished import keep


def tried(runs: dict[float, list], metric: str = "validation_auc") -> rates_search.Tried:
    return [
        ({"lr": rate}, FinishedRun("", None, 0, [{metric: x} for x in values], {}, "", 0.0, {}))
        for rate, values in runs.items()
    ]


def test_a_best_at_the_edge_is_followed_beyond():
    some = tried({0.1: [0.5], 0.3: [0.6], 1.0: [0.7]})
    assert rates_search.edges(some, {"lr": 1.0}) == {"lr": True}
    assert rates_search.beyond(some, "validation_auc") == [{"lr": 3.0}]
    assert rates_search.beyond(some, "validation_loss") == [{"lr": 0.03}]  # none: as if diverged
    inside = tried({0.1: [0.5], 0.3: [0.8], 1.0: [0.7]})
    assert rates_search.beyond(inside, "validation_auc") == []
    run = some[0][1]
    adam = [({"server_lr": s, "tau": t}, run) for s in (0.1, 1.0) for t in (1e-4, 1e-3, 1e-2)]
    assert rates_search.beyond(adam, "validation_auc") == [
        {"server_lr": 0.01, "tau": 1e-4},
        {"server_lr": 0.1, "tau": 1e-5},
    ]


def test_a_search_chooses_on_validation_examples_alone():
    """0.3 is best there, whatever test and train say; an edge that nothing ends is marked."""
    work = Work(search=True)
    assert rates_search.searched(work, MOVIELENS).rates["fedavg"] == {"lr": 0.3}
    assert rates_search.searched(work, AMAZON).rates["fedadam"] == {"server_lr": 0.1, "tau": 1e-3}
    assert rates_search.searched(work, MOVIELENS).at_edge == []
    for study in work.studies:
        assert {setting.data["validation"] for setting in study.settings} == {0.1}
    assert rates_search.searched(work, AMAZON).chosen_on == "validation AUC"
    narrow = replace(
        MOVIELENS, grid=(10.0, 30.0), full=replace(MOVIELENS.full, searched=("fedavg",))
    )
    assert rates_search.searched(work, narrow).rates["fedavg"] == {"lr": 0.3}
    far = replace(narrow, grid=(100.0, 300.0))
    assert rates_search.searched(work, far).rates["fedavg"] == {"lr": 3.0}
    assert rates_search.searched(work, far).at_edge == ["fedavg"]


def test_the_runs_that_are_reported_train_on_all_training_data():
    work = Work()
    compare(work, MOVIELENS)
    assert all(not setting.data for study in work.studies for setting in study.settings)


def test_rates_at_the_edge_are_marked_on_the_page(tmp_path, monkeypatch):
    saved = json.loads(rates_search.FILE.read_text("utf-8"))
    assert compare(Work(), MOVIELENS)["searched"].at_edge == set(saved["movielens"]["at_edge"])
    saved["amazon"]["at_edge"] = ["centralsgd"]
    monkeypatch.setattr(rates_search, "FILE", tmp_path / "searched_rates.json")
    rates_search.FILE.write_text(json.dumps(saved))
    artefact = table2.make(Work(), AMAZON)
    [searched] = [t for t in artefact.tables if t.key == "table2-amazon-searched"]
    marked = [row[0].text for row in searched.rows if row[1].text.endswith("*")]
    assert marked == ["CentralSGD"]
    assert "at the edge" in searched.note


def test_a_search_takes_the_best_candidate_of_each_algorithm():
    work = Work(search=True)
    made = table4.make(work)
    seeds = {seed for study in work.studies for seed in study.seeds}
    assert seeds == {rates_search.SEED}
    assert len(made.tables) == 2 + len(TASKS)
    tried = [row[1].text for row in made.tables[2].rows if row[0].text == "FedAvg"]
    assert tried == [f"{rate:g}" for rate in MOVIELENS.grid]
    adam = [row[1].text for row in made.tables[2].rows if row[0].text == "FedAdam"]
    assert len(adam) == len(rates_search.SERVER_RATES) * len(rates_search.TAUS)


def test_a_search_goes_on_without_the_data_of_one_task():
    class Without(Work):
        def results(self, study):
            if study.settings[0].task == "amazon":
                raise DataError("There are no data of amazon: fetch them.")
            return super().results(study)

    made = table4.make(Without(search=True))
    assert len(made.tables) == 2 + len(TASKS) - 1
    [row] = [row for row in made.tables[1].rows if row[0].text == "Amazon"]
    assert row[-1].text == "Not searched: There are no data of amazon: fetch them."
    assert {cell.text for cell in row[1:-1]} == {"–"}


def test_the_best_rates_are_those_of_the_best_value():
    runs = {0.1: [0.5, 0.4], 1.0: [0.3, None], 3.0: [None, None]}
    assert rates_search.best(tried(runs), "validation_auc") == {"lr": 0.1}
    lower = tried(runs, "validation_loss")
    assert rates_search.best(lower, "validation_loss") == {"lr": 1.0}
    assert rates_search.best(tried(runs)[2:], "validation_auc") == {"lr": 3.0}


def test_what_a_search_found_is_written_for_the_tasks_it_searched(tmp_path, monkeypatch):
    work = Work(search=True)
    rates_search.search(work, MOVIELENS)
    for id_, one in work.studies[0].planned().items():
        setting = one.setting
        loss = validation_of(setting)["validation_loss"]
        about = dict.fromkeys(("config", "device", "torch", "fedrows", "finished", "command"), "")
        more = {
            "seed": rates_search.SEED,
            "setting": setting.as_dict(),
            "facts": {},
            "seconds": 1.0,
        }
        keep(tmp_path, {"id": id_, "lines": [{"validation_loss": loss}], **about, **more})
    before = json.loads(rates_search.FILE.read_text("utf-8"))
    monkeypatch.setattr(rates_search, "FILE", tmp_path / "searched_rates.json")
    rates_search.FILE.write_text(json.dumps(before))
    assert save_rates([str(tmp_path)]) == 0
    after = json.loads(rates_search.FILE.read_text("utf-8"))
    assert after["movielens"]["rates"]["fedavg"] == {"lr": 0.3}
    assert after["movielens"]["rates"]["fedadam"] == {"server_lr": 0.1, "tau": 0.001}
    assert after["movielens"]["chosen_on"] == "validation loss"
    assert after["movielens"]["at_edge"] == []
    assert after["amazon"] == before["amazon"]
