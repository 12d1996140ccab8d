"""Writes the tables of docs/recommenders.md out of benchmarks/results/recommenders.json.

    python docs/make_recommenders.py

benchmarks/recommenders_search.py and benchmarks/ranking_search.py measure what the file holds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "recommenders.md"
RESULTS = HERE.parent / "benchmarks" / "results" / "recommenders.json"
TASKS = ("movielens-mf", "amazon-wide", "taobao")


def shown(values: Sequence[float]) -> str:
    """'.811 ± .0002 (5)': the mean, the standard deviation, and over how many seeds."""
    mean = f"{statistics.fmean(values):.4f}".lstrip("0")
    if len(values) == 1:
        return f"{mean} (1)"
    return f"{mean} ± {statistics.stdev(values):.4f} ({len(values)})".replace("± 0", "± ")


def lines_of(rows: Sequence[Sequence[str]]) -> str:
    """A table, the first row being its head."""
    head, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, ["---"] * len(head), *rest])


def ratings(results: dict[str, Any]) -> str:
    """Test AUC and GAUC by task and algorithm, the best on validation first."""
    rows = [["task", "algorithm", "rate", "trials", "validation AUC", "test AUC", "test GAUC"]]
    for task in TASKS:
        found = results["ratings"][task]
        counting = [
            f"{found['counting'][name]:.4f}".lstrip("0") for name in ("test_auc", "test_gauc")
        ]
        rows.append([f"`{task}`", "counting", "", "", "", *counting])
        ranked = sorted(found["algorithms"].items(), key=lambda pair: -pair[1]["validation_auc"])
        for name, one in ranked:
            measured = [shown(one[metric]) for metric in ("test_auc", "test_gauc")]
            chosen = f"{one['validation_auc']:.4f}".lstrip("0")
            rate = f"{one['setting']['lr']:g}"
            rows.append(["", f"`{name}`", rate, str(one["trials"]), chosen, *measured])
    return lines_of(rows)


def ranking(results: dict[str, Any]) -> str:
    """Hit rate and NDCG of SASRec at the rate that validation chose, by algorithm."""
    found = results["ranking"]
    rows = [["algorithm", "rate", "HR@10", "NDCG@10", "HR@10, all items"]]
    names = ("test_hr10", "test_ndcg10", "test_hr10_all")
    popular = [f"{found['popularity'][name]:.4f}".lstrip("0") for name in names]
    rows.append(["popularity", "", *popular])
    for name in dict.fromkeys(run["algorithm"] for run in found["runs"]):
        own = [run for run in found["runs"] if run["algorithm"] == name]
        rate = max((x for x in own if x["seed"] == 0), key=lambda x: x["validation_ndcg10"])["lr"]
        chosen = [run for run in own if run["lr"] == rate]
        measured = [shown([run[metric] for run in chosen]) for metric in names]
        rows.append([f"`{name}`", f"{rate:g}", *measured])
    return lines_of(rows)


def page(text: str) -> str:
    """The page with its tables made anew."""
    results = json.loads(RESULTS.read_text("utf-8"))
    for name, table in (("ratings", ratings(results)), ("ranking", ranking(results))):
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + table + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), encoding="utf-8")
