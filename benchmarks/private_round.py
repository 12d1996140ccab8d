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

from child_processes import children

from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.flower.demo import write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch.federation import LocalFederation
from fedrows.flower.launch.starting import EXECUTOR, SUPERLINK
from fedrows.report.exchange import read_rounds

NODES, CLIENTS = 4, 12
MODES = ("clear", "index")
BEFORE, AFTER = 2, 3  # rounds that are not steady yet, or any longer
_TICKS = os.sysconf("SC_CLK_TCK")


def small_run(rounds: int) -> Any:
    """The settings of a run of 12 clients, all of which are in every round."""
    typed = {"rounds": str(rounds), "evaluate_every": str(rounds), "clients": str(CLIENTS)}
    typed |= {"clients_per_round": str(CLIENTS), "device": "cpu"}
    return choose(catalogue.task("synthetic"), ["fedsubavg"], typed)["fedsubavg"]


def compare(federation: LocalFederation, settings: Any, folder: Path, turns: int) -> dict[str, Any]:
    """Medians of steady rounds in the clear and private, and their ratio, also turn by turn."""
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for turn, mode in itertools.product(range(turns), MODES):
        found[mode].append(_measured(federation, settings, folder, mode, turn))
    medians = {
        mode: {name: round(statistics.median(one[name] for one in each), 3) for name in each[0]}
        for mode, each in found.items()
    }
    clear, private = (medians[mode] for mode in MODES)
    ratios: dict[str, Any] = {}
    for name in ("seconds", "cpu"):
        ratios[f"{name}_ratio"] = private[name] / clear[name]
        pairs = zip(*(found[mode] for mode in MODES), strict=True)
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
    run = federation.submit(project, {})
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
    app = link.processes[EXECUTOR].pid
    seconds = {
        "superlink": _own(link.processes[SUPERLINK].pid),
        "server_app": sum(map(_own, children(app))),
        "server_executor": _own(app),
        "super_nodes": 0.0,
        "executors": 0.0,
        "client_app_cpu": 0.0,
        "client_apps": 0.0,
    }
    for index, node in enumerate(federation.nodes):
        processes = federation.group(index).processes
        seconds["super_nodes"] += _own(processes[node.name].pid)
        executor = processes[f"{node.name}-app"].pid
        seconds["executors"] += _own(executor)
        seconds["client_app_cpu"] += _ended(executor)
        seconds["client_apps"] += _count(federation.logs / f"{node.name}-app.log")
    return seconds


def _count(log: Path) -> int:
    """How many ClientApps an executor has started."""
    return log.read_text("utf-8", "replace").count("Start `flwr-clientapp` process")


def _own(pid: int) -> float:
    return sum(_stat(pid)[11:13]) / _TICKS


def _ended(pid: int) -> float:
    """What the children that have ended have spent."""
    return sum(_stat(pid)[13:15]) / _TICKS


def _stat(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return [0] * 20
    return [
        int(word) if word.lstrip("-").isdigit() else 0 for word in text.rsplit(")", 1)[1].split()
    ]
