"""Writes benchmarks/results/recommenders.json from the files of the two searches.

    python benchmarks/save_recommenders.py DIR

Takes every recommenders_TASK.json of `recommenders_search.py` below DIR, and every other JSON file
of `ranking_search.py`. A task or a model may have several files, each with other algorithms or with
anchors alone. Algorithms and anchors that DIR does not have stay as they are.
`docs/make_recommenders.py` then makes the tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedrows.files.whole import write_whole

FILE = Path(__file__).parent / "results" / "recommenders.json"
MEASURED = ("test_auc", "test_gauc")
RANKED = ("hr10", "ndcg10", "mrr", "hr10_all", "ndcg10_all", "mrr_all")


def rating(search: dict[str, Any]) -> dict[str, Any]:
    """What a search of settings came to, in short."""
    both = search["baselines"]["both"]
    algorithms = {}
    for name, one in search.get("searched", {}).items():
        if name not in search.get("final", {}):
            continue
        final = search["final"][name]
        algorithms[name] = {
            "setting": one["setting"],
            "validation_auc": one["validation_auc"],
            "trials": len(one["trials"]),
            "at_the_end_of": one["at_the_end_of"],
            **{metric: final[metric]["values"] for metric in MEASURED},
        }
    short = {"counting": {metric: both[metric] for metric in MEASURED}, "algorithms": algorithms}
    return short | _rest(search, algorithms, MEASURED)


def ranking(search: dict[str, Any]) -> dict[str, Any]:
    """What a search of rankings came to, in short."""
    names = [f"test_{name}" for name in RANKED]
    algorithms = {}
    for algorithm, one in search["chosen"].items():
        rest = ("setting", "trials", "at_the_end_of", "validation_ndcg10")
        values = {name: one[name]["values"] for name in names}
        algorithms[algorithm] = {key: one[key] for key in rest} | values
    popular = {name: search["baselines"]["popularity"][name] for name in names}
    short = {"popularity": popular, "algorithms": algorithms}
    return short | _rest(search, algorithms, names)


def _rest(
    search: dict[str, Any], algorithms: dict[str, Any], metrics: Sequence[str]
) -> dict[str, Any]:
    """The anchors, and the machine of the algorithms, as far as they are there."""
    anchors = {
        name: {key: one[key] for key in metrics} for name, one in search.get("anchors", {}).items()
    }
    rest = {"machine": search["machine"]} if algorithms else {}
    return rest | ({"anchors": anchors} if anchors else {})


def joined(one: dict[str, Any] | None, other: dict[str, Any]) -> dict[str, Any]:
    """Two results of the same task or model, each with other algorithms or anchors."""
    if one is None:
        return other
    both = {**one, **other, "algorithms": {**one["algorithms"], **other["algorithms"]}}
    if anchors := {**one.get("anchors", {}), **other.get("anchors", {})}:
        both["anchors"] = anchors
    return both


def main(words: Sequence[str], file: Path = FILE) -> int:
    """Writes what was found; gives the exit code."""
    if len(words) != 1:
        print("Give the folder of the searches: python benchmarks/save_recommenders.py DIR")
        return 2
    new: dict[str, dict[str, Any]] = {"ratings": {}, "ranking": {}}
    for path in sorted(Path(words[0]).rglob("*.json")):
        search = json.loads(path.read_text("utf-8"))
        part, name = (
            ("ratings", search["task"]) if "task" in search else ("ranking", search["model"])
        )
        short = rating(search) if part == "ratings" else ranking(search)
        if short["algorithms"] or "anchors" in short:
            new[part][name] = joined(new[part].get(name), short)
            print(f"{path}: {name} with {', '.join(short['algorithms']) or 'anchors'}")
    results = json.loads(file.read_text("utf-8"))
    for part, by_name in new.items():
        for name, short in by_name.items():
            results[part][name] = joined(results[part].get(name), short)
    write_whole(file, (json.dumps(results, indent=1) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
