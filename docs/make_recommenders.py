"""Writes the tables of docs/recommenders.md, and of the README, out of three benchmarks' results.

    python docs/make_recommenders.py

benchmarks/recommenders_search.py and benchmarks/ranking_search.py measure what recommenders.json
has, and benchmarks/preset_times.py what preset_times.json has.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from page_parts import filled, table

HERE = Path(__file__).parent
PAGE, README = HERE / "recommenders.md", HERE.parent / "README.md"
RESULTS = HERE.parent / "benchmarks" / "results"
TASKS = ("movielens-mf", "amazon-wide", "taobao")
RANKED = ("mf", "sasrec", "sasrec, larger")
ANCHORS = {
    "logistic": "logistic regression, in one place",
    "als": "ALS, in one place",
    "adam-mf": "MF by Adam, in one place",
    "ease": "EASE, in one place",
}
TIMED = {"auc": "AUC", "gauc": "GAUC", "hr10": "HR@10", "ndcg10": "NDCG@10"}


def shown(values: Sequence[float]) -> str:
    """'.811 ± .0002 (5)': the mean, the standard deviation, and over how many seeds."""
    mean = short(statistics.fmean(values))
    if len(values) == 1:
        return f"{mean} (1)"
    return f"{mean} ± {statistics.stdev(values):.4f} ({len(values)})".replace("± 0", "± ")


def short(value: float) -> str:
    """'.8110'."""
    return f"{value:.4f}".lstrip("0")


def ratings(results: dict[str, Any]) -> str:
    """Test AUC and GAUC by task and algorithm, the best on validation first."""
    head = ["task", "algorithm", "rate", "trials", "validation AUC", "test AUC", "test GAUC"]
    rows = []
    for task in TASKS:
        results_of = results["ratings"][task]
        fixed = {"counting": results_of["counting"], **results_of.get("anchors", {})}
        for number, (name, one) in enumerate(fixed.items()):
            measured = [short(one[metric]) for metric in ("test_auc", "test_gauc")]
            first = [f"`{task}`" * (not number), ANCHORS.get(name, name), "", "", ""]
            rows.append([*first, *measured])
        every = results_of["algorithms"].items()
        for name, one in sorted(every, key=lambda pair: -pair[1]["validation_auc"]):
            measured = [shown(one[metric]) for metric in ("test_auc", "test_gauc")]
            rate, chosen = f"{one['setting']['lr']:g}", short(one["validation_auc"])
            rows.append(["", f"`{name}`", rate, str(one["trials"]), chosen, *measured])
    return table(head, rows)


def ranking(results: dict[str, Any]) -> str:
    """Hit rate and NDCG by model and algorithm, the best on validation first."""
    names = ("hr10", "ndcg10", "hr10_all", "ndcg10_all")
    head = ["model", "algorithm", "rate", "trials", "validation NDCG@10", "HR@10", "NDCG@10"]
    head += ["HR@10, all items", "NDCG@10, all items"]
    rows = []
    fixed = results["ranking"][RANKED[0]]
    for name, one in {"popularity": fixed["popularity"], **fixed.get("anchors", {})}.items():
        first = [ANCHORS.get(name, name), "", "", ""]
        rows.append(["", *first, *(short(one[f"test_{x}"]) for x in names)])
    for model in RANKED:
        every = results["ranking"][model]["algorithms"].items()
        for name, one in sorted(every, key=lambda pair: -pair[1]["validation_ndcg10"]):
            measured = [shown(one[f"test_{x}"]) for x in names]
            rates = [f"{one['setting'][x]:g}" for x in ("lr", "server_lr") if x in one["setting"]]
            first = [", server ".join(rates), str(one["trials"]), short(one["validation_ndcg10"])]
            rows.append([model, f"`{name}`", *first, *measured])
    return table(head, rows)


def times(results: dict[str, Any]) -> str:
    """What plain runs take and come to, and what they were measured on."""
    head, rows = ["task", "seconds on two cores", "of the processor", "test metrics"], []
    for task, one in results.items():
        metrics = {TIMED[x]: one["metrics"].get(f"test_{x}") for x in TIMED}
        shown_metrics = ", ".join(f"{k} {short(x)}" for k, x in metrics.items() if x is not None)
        took = [f"{one[x]:.0f}" for x in ("seconds", "processor_seconds")]
        rows.append([f"`{task}`", *took, shown_metrics])
    machines = [one["machine"] for one in results.values()]
    on = {f"{x['cpu']}, {x['threads']} threads, PyTorch {x['torch']}" for x in machines}
    dates = sorted({x["date"][:10] for x in machines})
    loads = sorted(one["load"]["before"] for one in results.values())
    return (
        f"{table(head, rows)}\n`python benchmarks/preset_times.py`, {'; '.join(sorted(on))}, "
        f"{', '.join(dates)}.\nThe machine's load average before a run was {loads[0]:.1f} to "
        f"{loads[-1]:.1f}.\n"
    )


def expected(results: dict[str, Any]) -> str:
    """For the README: what needs no model, models in one place, and the best federated algorithm.

    The algorithm is the one that validation examples prefer.
    """
    head = ["task", "test metric", "no model", "in one place", "federated", "FedAvg"]
    rows = []
    for task in TASKS:
        task_results = results["ratings"][task]
        plain = f"counting {short(task_results['counting']['test_auc'])}"
        rows.append(
            [f"`{task}`", "AUC", plain, *compared(task_results, "test_auc", "validation_auc")]
        )
    every, sasrec = results["ranking"]["mf"], results["ranking"]["sasrec"]
    plain = f"popularity {short(every['popularity']['test_hr10'])}"
    task_results = {"anchors": every["anchors"], "algorithms": sasrec["algorithms"]}
    more = compared(task_results, "test_hr10", "validation_ndcg10")
    rows.append(["`movielens-rank`", "HR@10", plain, *more])
    return table(head, rows)


def compared(results: dict[str, Any], metric: str, by: str) -> list[str]:
    """The best in one place, the federated algorithm that validation prefers, and FedAvg."""
    means = {name: statistics.fmean(x[metric]) for name, x in results["algorithms"].items()}
    central = {ANCHORS[name].split(",")[0]: one[metric] for name, one in results["anchors"].items()}
    if "centralsgd" in means:
        central["CentralSGD"] = means["centralsgd"]
    best = max(central, key=central.__getitem__)
    federated = [name for name in means if name != "centralsgd"]
    first = max(federated, key=lambda name: results["algorithms"][name][by])
    own = f"`{first.partition(':')[0]}` {short(means[first])}"
    return [f"{best} {short(central[best])}", own, short(means["fedavg"])]


def page(text: str) -> str:
    """The page with its tables made anew."""
    results, timed = (
        json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
        for name in ("recommenders", "preset_times")
    )
    tables = {"ratings": ratings(results), "ranking": ranking(results), "times": times(timed)}
    return filled(PAGE, text, tables)


def readme(text: str) -> str:
    """The README with its table made anew."""
    results = json.loads((RESULTS / "recommenders.json").read_text("utf-8"))
    return filled(README, text, {"expected": expected(results)})


if __name__ == "__main__":
    for path, made in ((PAGE, page), (README, readme)):
        path.write_text(made(path.read_text("utf-8")), encoding="utf-8")
