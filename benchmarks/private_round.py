"""What a deployed private round costs beside a clear one: seconds, processor seconds, exchanges.

Called by `deploy.py private`: 12 clients on 4 nodes, in one federation, runs in the clear and
private ones by turns. Processor seconds tell where the time goes, and hold on a busy machine, too.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.federation_faults import children
from benchmarks.speed.machine import processor_seconds
from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.flower.demo import write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch.federation import LocalFederation
from fedrows.report.exchange import read_rounds

NODES, CLIENTS = 4, 12
MODES = ("clear", "index")
BEFORE, AFTER = 2, 3  # rounds that are not steady yet, or any longer


def small_run(rounds: int) -> Any:
    """The settings of a run of 12 clients, all of which are in every round."""
    typed = {"rounds": str(rounds), "evaluate_every": str(rounds), "clients": str(CLIENTS)}
    typed |= {"clients_per_round": str(CLIENTS), "device": "cpu"}
    return choose(catalogue.task("synthetic"), ["fedsubavg"], typed)["fedsubavg"]


def compare(federation: LocalFederation, settings: Any, folder: Path, turns: int) -> dict[str, Any]:
    """Medians of steady rounds in the clear and private, and their ratio, also turn by turn."""
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for turn, mode in itertools.product(range(turns), MODES):
        runs[mode].append(_measured(federation, settings, folder, mode, turn))
    medians = {
        mode: {name: round(statistics.median(one[name] for one in each), 3) for name in each[0]}
        for mode, each in runs.items()
    }
    clear, private = (medians[mode] for mode in MODES)
    ratios: dict[str, Any] = {}
    for name in ("seconds", "cpu"):
        ratios[f"{name}_ratio"] = private[name] / clear[name]
        pairs = zip(*(runs[mode] for mode in MODES), strict=True)
        ratios[f"{name}_ratio_by_turn"] = [own[name] / other[name] for other, own in pairs]
    return {**medians, **ratios, "load": os.getloadavg()[0]}


def _measured(
    federation: LocalFederation, settings: Any, folder: Path, mode: str, turn: int
) -> dict[str, float]:
    """One run: seconds, processor seconds by kind of process and ClientApps, a steady round."""
    out, rounds = folder / f"run-{mode}-{turn}", settings.plan.rounds
    terms = {"min_nodes": NODES, "timeout": 600.0, "privacy": mode}
    project = write_project(
        folder / f"project-{mode}-{turn}", settings, terms, out, folder / "data"
    )
    run = federation.control.submit(project, {})
    ended, spent = dict[int, float](), dict[int, dict[str, float]]()
    while len(ended) < rounds:
        time.sleep(0.02)
        for line in read_rounds(out / ROUNDS) if (out / ROUNDS).exists() else ():
            if line["round"] not in ended:
                ended[line["round"]], spent[line["round"]] = time.perf_counter(), _spent(federation)
    # The first round takes nodes in and counts heat, in the second one a union is behind, and the
    # last ones prepare less for those after them.
    first, last = BEFORE, rounds - AFTER
    times = [ended[number] for number in range(first, last + 1)]
    steady = [end - begin for begin, end in itertools.pairwise(times)]
    cpu = {n: (spent[last][n] - spent[first][n]) / (last - first) for n in spent[first]}
    federation.wait(run, 600.0)
    apps = cpu.pop("client_apps")
    own = {f"cpu_{name}": seconds for name, seconds in cpu.items()}
    return {
        "seconds": statistics.median(steady),
        "cpu": sum(cpu.values()),
        **own,
        "messages": apps,
        "exchanges": apps / NODES,
    }


def _spent(federation: LocalFederation) -> dict[str, float]:
    """Processor seconds so far by kind of process, and how many ClientApps have run."""
    link = federation.link
    assert link is not None
    app = link.processes["serverapp"].pid
    seconds = {
        "superlink": processor_seconds(link.processes["superlink"].pid),
        "server_app": sum(map(processor_seconds, children(app))),
        "server_executor": processor_seconds(app),
        "super_nodes": 0.0,
        "executors": 0.0,
        "client_app_cpu": 0.0,
        "client_apps": 0.0,
    }
    for index, node in enumerate(federation.nodes):
        processes = federation.group(index).processes
        seconds["super_nodes"] += processor_seconds(processes[node.name].pid)
        executor = processes[f"{node.name}-app"].pid
        seconds["executors"] += processor_seconds(executor)
        seconds["client_app_cpu"] += processor_seconds(executor, children=True)
        seconds["client_apps"] += _count(federation.logs / f"{node.name}-app.log")
    return seconds


def _count(log: Path) -> int:
    """How many ClientApps an executor has started."""
    return log.read_text("utf-8", "replace").count("Start `flwr-clientapp` process")
