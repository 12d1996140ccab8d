"""The results of several searches are put together in one file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.save_recommenders import RANKED, main

MACHINE = {"device": "x"}


def rated(algorithm: str, values: list[float]) -> dict[str, Any]:
    own = {"setting": {"lr": 1.0}, "validation_auc": 0.7, "at_the_end_of": [], "trials": [1, 2]}
    level = {"test_auc": 0.6, "test_gauc": 0.5, "test_loss": 0.7}
    return {
        "task": "some",
        "machine": MACHINE,
        "baselines": {"both": level},
        "searched": {algorithm: own, "out-of-time": own},
        "final": {algorithm: {name: {"values": values} for name in ("test_auc", "test_gauc")}},
    }


def anchored() -> dict[str, Any]:
    level = {"test_auc": 0.8, "test_gauc": 0.7, "test_loss": 0.5}
    own = {"task": "fitted", "machine": MACHINE, "baselines": {"both": level}}
    return own | {"anchors": {"als": level}}


def ranked(algorithms: dict[str, float], **more: Any) -> dict[str, Any]:
    chosen = {
        name: {"setting": {"lr": 1.0}, "trials": 4, "at_the_end_of": ["lr"],
               "validation_ndcg10": value, **{f"test_{x}": {"values": [value]} for x in RANKED}}
        for name, value in algorithms.items()
    }  # fmt: skip
    popular = {f"test_{name}": 0.1 for name in RANKED}
    own = {"model": "mf", "machine": MACHINE, "baselines": {"popularity": popular}}
    return own | {"chosen": chosen, **more}


def test_files_of_a_task_are_joined_and_what_is_not_there_stays(tmp_path: Path) -> None:
    results, folder = tmp_path / "results.json", tmp_path / "runs"
    there = {"algorithms": {"fedadam": 2, "fedavg": 3}, "machine": {"device": "y"}}
    before = {"ratings": {"other": 1, "some": there, "fitted": there}, "ranking": {"sasrec": 3}}
    results.write_text(json.dumps(before))
    anchor = {f"test_{name}": 0.4 for name in RANKED} | {"test_loss": None}
    for name, content in {
        "a/recommenders_some": rated("fedavg", [0.71, 0.72]),
        "b/recommenders_some": rated("fedsubavg", [0.73]),
        "recommenders_fitted": anchored(),
        "mf": ranked({"fedavg": 0.2}),
        "mf-anchors": ranked({}, anchors={"ease": anchor}),
    }.items():
        path = (folder / name).with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    assert main([str(folder)], results) == 0
    found = json.loads(results.read_text())
    assert (found["ratings"]["other"], found["ranking"]["sasrec"]) == (1, 3)
    some = found["ratings"]["some"]
    assert some["counting"] == {"test_auc": 0.6, "test_gauc": 0.5}
    assert some["algorithms"].keys() == {"fedavg", "fedsubavg", "fedadam"}
    assert some["machine"] == MACHINE
    fitted = found["ratings"]["fitted"]
    assert (fitted["algorithms"], fitted["machine"]) == (there["algorithms"], {"device": "y"})
    assert fitted["anchors"] == {"als": {"test_auc": 0.8, "test_gauc": 0.7}}
    assert some["algorithms"]["fedavg"]["test_gauc"] == [0.71, 0.72]
    assert some["algorithms"]["fedavg"]["trials"] == 2
    assert found["ranking"]["mf"]["algorithms"]["fedavg"]["test_hr10_all"] == [0.2]
    assert found["ranking"]["mf"]["anchors"]["ease"] == {f"test_{x}": 0.4 for x in RANKED}


def test_a_folder_must_be_named(tmp_path: Path) -> None:
    assert main([]) == 2
