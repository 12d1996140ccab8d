"""Searches the settings of `movielens-rank` on validation examples, and reports the test ones.

    python benchmarks/ranking_search.py --model mf --algorithms fedsubavg,fedavg --lr 0.5,1,2
    python benchmarks/ranking_search.py --model sasrec --lr 0.1,0.3 --width 48 --out sasrec.json

Every flag of the grid takes several values, and all combinations are run with a seed of the search
alone, for --search-rounds rounds. For each algorithm the one with the best validation NDCG@10, over
combinations and evaluated rounds, is run with all seeds. Its test metrics are those of the round
that validation chooses, seed by seed. With --at-once N, N processes share the GPU: first the
combinations, then the seeds. Runs that --out has already are not made again. With --chosen FILE
nothing is searched: the settings are those of FILE, such as results/recommenders.json.
Needs torch and numpy, and ml-1m.zip in FEDROWS_DATA (or data/) under movielens-1m/.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("FEDROWS_DATA", str(Path(__file__).parents[1] / "data"))

from benchmarks.speed.machine import short_facts
from fedrows import Plan, Simulation, catalogue
from fedrows.datasets import movielens_rank, movielens_rank_mf
from fedrows.files.whole import write_whole
from fedrows.measure.all_anchors import anchors
from fedrows.measure.ranking_baselines import ranking_baselines
from fedrows.measure.summary import spread
from fedrows.model import RANKING_LOSSES
from fedrows.models import mf, sasrec
from fedrows.options import NoOptions, options

CHOOSES = "validation_ndcg10"
CHOICE = ("setting", "trials", "at_the_end_of", CHOOSES)  # what a search comes to
SEARCH_SEED = 1000
SHOWN = ("hr10", "ndcg10", "mrr", "hr10_all", "ndcg10_all", "mrr_all")
MODEL = {"mf": ("factors",), "sasrec": ("width", "blocks", "dropout")}
GRID: dict[str, tuple[type, str]] = {  # flag → type, and the values without it
    "lr": (float, "0.5,1,2"),
    "clients_per_round": (int, "500"),
    "local_steps": (int, "20"),
    "batch_size": (int, "32"),
    "negatives": (int, "4"),
    "negatives_pool": (int, "100"),
    "weighting": (str, "uniform"),
    "lr_decay": (float, "1"),
    "lr_schedule": (str, ""),
    "clip": (float, ""),
    "optimizer": (str, ""),
    "weight_decay": (float, ""),
    "loss": (str, "softmax"),
    "factors": (int, "16"),
    "width": (int, "32"),
    "blocks": (int, "1"),
    "dropout": (float, "0.2"),
    "server_lr": (float, ""),  # of the algorithm, as is tau
    "tau": (float, ""),
}
KEPT = ("round", "train_loss", CHOOSES)  # of every evaluated round
Run = dict[str, Any]
JOB = ("algorithm", "setting", "seed", "rounds")
Job = tuple[argparse.Namespace, str, dict[str, Any], int, int]  # algorithm, setting, seed, rounds


def main() -> None:
    """Runs the search and writes its JSON after every run."""
    args = parsed()
    data = load(args.model, args.history)
    report: dict[str, Any] = {"model": args.model, "baselines": ranking_baselines(data)}
    report |= {"runs": [], "chosen": {}, **before(args.out), "machine": short_facts(args.device)}
    for name, metrics in report["baselines"].items():
        print(name, shown(metrics, "test"), flush=True)
    grid = [name for name in GRID if name not in (*MODEL["mf"], *MODEL["sasrec"])]
    axes = {name: getattr(args, name) for name in (*grid, *MODEL[args.model])}
    axes = {name: values for name, values in axes.items() if values}
    for algorithm in args.algorithms:
        if args.chosen:
            saved = json.loads(args.chosen.read_text("utf-8"))["ranking"][args.model]["algorithms"]
            chosen = {name: saved[algorithm][name] for name in CHOICE}
        else:
            chosen = searched(args, algorithm, axes, report)
        setting = chosen["setting"]
        print("chosen", algorithm, setting, flush=True)
        seeds: list[Run] = []
        for run in made([(args, algorithm, setting, s, args.rounds) for s in args.seeds], report):
            seeds.append(run)
            report["chosen"][algorithm] = chosen | spreads(seeds)
            write(args.out, report)
    if args.anchors:
        report["anchors"] = anchors(data)
        write(args.out, report)


def searched(
    args: argparse.Namespace, algorithm: str, axes: dict[str, list[Any]], report: dict[str, Any]
) -> dict[str, Any]:
    """The setting of an algorithm that is best on validation examples, and how it was found."""
    settings = [dict(zip(axes, x, strict=True)) for x in itertools.product(*axes.values())]
    jobs = [(args, algorithm, one, SEARCH_SEED, args.search_rounds) for one in settings]
    tried = list(made(jobs, report, args.out))
    best = max(tried, key=lambda run: run["best"][CHOOSES])
    setting = best["setting"]
    values = (setting, len(tried), ends(setting, axes), best["best"][CHOOSES])
    return dict(zip(CHOICE, values, strict=True))


def before(file: Path | None) -> dict[str, Any]:
    """What a file has of earlier runs."""
    if file is None or not file.exists():
        return {}
    report: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return report


def ends(setting: dict[str, Any], axes: dict[str, list[Any]]) -> list[str]:
    """What was chosen at the end of its list: a better value may lie beyond."""
    lists = {name: values for name, values in axes.items() if len(values) > 2}
    return [name for name, x in lists.items() if setting[name] in (min(x), max(x))]


@functools.cache
def load(model: str, history: int) -> Any:
    """The data of a model, once in every process."""
    if model == "mf":
        return movielens_rank_mf.load(NoOptions())
    return movielens_rank.load(movielens_rank.MovieLensRankOptions(history))


def made(jobs: Sequence[Job], report: dict[str, Any], file: Path | None = None) -> Iterator[Run]:
    """The runs of some jobs: those that the report has, then the others, which it then has too."""
    there = {key(run): run for run in report["runs"]}
    names = [key(dict(zip(JOB, job[1:], strict=True))) for job in jobs]
    yield from (there[name] for name in names if name in there)
    missing = [job for job, name in zip(jobs, names, strict=True) if name not in there]
    for run in in_processes(missing):
        report["runs"].append(run)
        write(file, report)
        yield run


def key(run: Run) -> str:
    """What tells a run apart."""
    return json.dumps([run[name] for name in JOB], sort_keys=True)


def in_processes(jobs: Sequence[Job]) -> Iterator[Run]:
    """The runs of some jobs, in their order."""
    processes = min(jobs[0][0].at_once, len(jobs)) if jobs else 1
    if processes == 1:
        yield from (one_run(*job) for job in jobs)
        return
    new = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=new) as pool:
        yield from pool.map(one_run, *zip(*jobs, strict=True))


def one_run(
    args: argparse.Namespace, algorithm: str, setting: dict[str, Any], seed: int, rounds: int
) -> Run:
    """What validation says after the rounds of one run, and the line that it chooses."""
    data, known = load(args.model, args.history), {item.name for item in fields(Plan)}
    name, _, typed = algorithm.partition(":")
    options_of = {item.name for item in options(catalogue.algorithm(name))}
    chosen = {name: value for name, value in setting.items() if name in known - options_of}
    own = {name: setting[name] for name in MODEL[args.model]}
    unknown = setting.keys() - known - options_of - own.keys() - {"loss"}
    if unknown:
        raise SystemExit(f"{algorithm} has no {', '.join(unknown)}: leave it out.")
    more = {"rounds": rounds, "evaluate_every": args.evaluate_every, "device": args.device}
    plan = Plan(**more, seed=seed, **chosen)
    build = {"mf": mf.build, "sasrec": sasrec.build}[args.model]
    model = build(data, seed, **own, loss=RANKING_LOSSES[setting["loss"]])
    words = dict(pair.split("=") for pair in typed.split("+")) if typed else {}
    own_options: dict[str, Any] = {key: number_or_word(value) for key, value in words.items()}
    own_options |= {key: value for key, value in setting.items() if key in options_of}
    by = catalogue.algorithm(name)(**own_options)
    run, lines, since = Simulation(data, model, by, plan), [], time.perf_counter()
    print(f"{algorithm} seed {seed} {setting}", flush=True)
    for _ in run:
        if run.due:
            line = {name: x for name, x in run.evaluate().items() if name != "buckets"}
            lines.append(line)
            seconds = time.perf_counter() - since
            print(f"  {line['round']:5} {seconds:6.1f} s  {shown(line, 'validation')}", flush=True)
            if line["train_loss"] != line["train_loss"]:
                break  # not a number
    good = [line for line in lines if line[CHOOSES] == line[CHOOSES]] or lines[:1]
    best = max(good, key=lambda line: line[CHOOSES] if line[CHOOSES] == line[CHOOSES] else -1)
    print(f"  round {best['round']}: {shown(best, 'test')}  {run.notes or ''}", flush=True)
    return {
        "algorithm": algorithm,
        "setting": setting,
        "seed": seed,
        "rounds": rounds,
        "seconds": time.perf_counter() - since,
        "best": best | {CHOOSES: best[CHOOSES] if best[CHOOSES] == best[CHOOSES] else -1.0},
        "lines": [[line[name] for name in KEPT] for line in lines],
    }


def number_or_word(text: str) -> float | str:
    """What was typed for an option of an algorithm."""
    try:
        return float(text)
    except ValueError:
        return text


def shown(line: dict[str, float], part: str) -> str:
    """The metrics of a part in one line of text."""
    return "  ".join(f"{name} {line[f'{part}_{name}']:.4f}" for name in SHOWN)


def spreads(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and standard deviation of the test metrics over seeds."""
    names = [f"test_{name}" for name in SHOWN]
    return {name: spread([run["best"][name] for run in runs]) for name in names}


def write(path: Path | None, report: dict[str, Any]) -> None:
    """Writes all that is known so far."""
    if path is not None:
        write_whole(path, (json.dumps(report, indent=1) + "\n").encode())


def parsed() -> argparse.Namespace:
    """What was typed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("mf", "sasrec"), default="mf")
    parser.add_argument("--algorithms", default="fedsubavg", help="such as fedavg,fedsubavg:cap=50")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="of the runs reported, or none")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--search-rounds", type=int, default=300)
    parser.add_argument("--chosen", type=Path, metavar="FILE", help="settings searched before")
    parser.add_argument("--anchors", action="store_true", help="and EASE, in one place")
    parser.add_argument("--evaluate-every", type=int, default=50)
    parser.add_argument("--history", type=int, default=20)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--at-once", type=int, default=1, help="processes")
    parser.add_argument("--out", type=Path)
    for name, (_, default) in GRID.items():
        parser.add_argument(f"--{name.replace('_', '-')}", default=default)
    args = parser.parse_args()
    for name, (kind, _) in GRID.items():
        text = getattr(args, name)
        setattr(args, name, [kind(value) for value in text.split(",") if value])
    args.algorithms = [name for name in args.algorithms.split(",") if name]
    args.seeds = [int(seed) for seed in args.seeds.split(",") if seed]
    return args


if __name__ == "__main__":
    main()
