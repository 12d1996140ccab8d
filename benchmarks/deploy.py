"""What a deployment costs: bytes, the server's own seconds, and the quality that rounding takes.

    python benchmarks/deploy.py bytes     MovieLens' and Amazon's payload and what is on the wire
    python benchmarks/deploy.py cache     what row-cache saves on MovieLens in 20 rounds
    python benchmarks/deploy.py scale     2,000 clients on 4 nodes, K = 100, 50 rounds
    python benchmarks/deploy.py private   a private round beside a clear one: 12 clients on 4 nodes
    python benchmarks/deploy.py coding    what float16 and int8 cost in quality, in three cases

The first four start real federations on loopback ports. The wire is measured by a relay between
every node and the SuperLink that counts what goes through it, polling and HTTP headers included.
The last one takes names of cases, too: `coding movielens`, `coding factors`, `coding amazon`.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from faults import FaultyFederation

from benchmarks.coding import CASES, measure_coding
from benchmarks.private_round import NODES, compare, small_run
from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.flower.demo import federate, write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch.certificates import (
    Certificates,
    make_authority,
    make_node_key,
    make_server,
    open_certificates,
)
from fedrows.flower.launch.federation import LocalFederation, NodeSpec
from fedrows.report.exchange import read_rounds


def run(
    task: str,
    words: dict[str, str],
    nodes: int,
    folder: Path,
    secure: bool = False,
    row_cache: bool = False,
    clients: int | None = None,
) -> Any:
    """One deployed run: its rounds, what passed on the wire after each, data and settings.

    clients: only the first so many of the task's.
    """
    typed = {"device": "cpu", "cap": "100", **words}
    settings = choose(catalogue.task(task), ["fedsubavg"], typed)["fedsubavg"]
    data = settings.task.load(settings.options)
    data = data if clients is None else data.select(torch.arange(clients))
    plain = federate(folder, data, nodes)
    keys = _keys(folder, plain.nodes) if secure else None
    out, passed = folder / "run", dict[int, tuple[int, int]]()
    terms = {"min_nodes": nodes, "timeout": 600.0, "row_cache": row_cache}
    project = write_project(folder / "project", settings, terms, out, folder / "data")
    with FaultyFederation(folder, plain.nodes, keys) as federation:
        relay = federation.relay
        assert relay is not None
        number = federation.control.submit(project, {})
        while not (status := federation.control.look(number).status).startswith("finished"):
            for line in read_rounds(out / ROUNDS):
                passed.setdefault(line["round"], (relay.down, relay.up))
            time.sleep(0.1)
        assert status == "finished:completed", status
        time.sleep(1)
        lines = read_rounds(out / ROUNDS)
        passed[lines[-1]["round"]] = relay.down, relay.up
    return lines, passed, data, settings


def _keys(folder: Path, nodes: Sequence[NodeSpec]) -> Certificates:
    """New certificates for a server and its nodes."""
    make_authority(folder / "keys")
    make_server(folder / "keys", ["127.0.0.1", "localhost"])
    for node in nodes:
        make_node_key(folder / "keys", node.name)
    return open_certificates(folder / "keys", [node.name for node in nodes])


def measure_bytes() -> list[dict[str, Any]]:
    """Payload and wire of steady rounds, a client, beside values + 2 bytes an id + dense."""
    table = []
    for task in ("movielens", "amazon"):
        with tempfile.TemporaryDirectory() as folder:
            words = {"rounds": "6", "evaluate_every": "6"}
            lines, passed, data, settings = run(task, words, 4, Path(folder), secure=True)
        model = catalogue.model(settings.task.model)(data, 0)
        steady = [line for line in lines if line["round"] > 1]
        asked = sum(line["asked"] for line in steady)
        dense = 4 * model.schema.dense_size
        rows = sum(
            (4 * model.schema.tables[table].width + 2) * len(index.ids) / index.clients
            for table, index in data.index.items()
        )
        first, last = passed[1], passed[lines[-1]["round"]]
        full = 4 * model.schema.size
        for way, key, at in (("down", "bytes_down", 0), ("up", "bytes_up", 1)):
            payload = sum(line[key] for line in steady) / asked
            wire = (last[at] - first[at]) / asked
            table.append(
                {
                    "task": task,
                    "way": way,
                    "values_ids_dense": rows + dense,
                    "payload": payload,
                    "payload_ratio": payload / (rows + dense),
                    "wire": wire,
                    "wire_ratio": wire / (rows + dense),
                    "share_of_full_model": payload / full,
                }
            )
    return table


def measure_cache() -> dict[str, float]:
    """Payload down, a client and round, without and with the rows that nodes keep."""
    down = {}
    for cache in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            words = {"rounds": "20", "evaluate_every": "20"}
            lines, *_ = run("movielens", words, 4, Path(folder), row_cache=cache)
        asked = sum(line["asked"] for line in lines)
        down["with" if cache else "without"] = sum(x["bytes_down"] for x in lines) / asked
    return {**down, "ratio": down["with"] / down["without"]}


def measure_scale() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = {"rounds": "50", "evaluate_every": "50", "clients": "2000"}
        words["clients_per_round"] = "100"
        lines, _, data, _ = run("synthetic", words, 4, Path(folder))
    own = [sum(v for k, v in line["seconds"].items() if k != "wait") for line in lines]
    return {
        "clients": data.clients,
        "answered": statistics.mean(line["answered"] for line in lines),
        "server_seconds_median": statistics.median(own),
        "server_seconds_worst": max(own),
        "seconds_waiting_median": statistics.median(line["seconds"]["wait"] for line in lines),
        "resident_round_10": lines[9]["resident"],
        "resident_round_50": lines[-1]["resident"],
    }


def measure_private(rounds: int = 9, turns: int = 4) -> dict[str, Any]:
    """What steady rounds cost in the clear and private, by turns in one federation."""
    settings = small_run(rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain = federate(folder, settings.task.load(settings.options), NODES)
        with LocalFederation(folder, plain.nodes, _keys(folder, plain.nodes)) as federation:
            return compare(federation, settings, folder, turns)


if __name__ == "__main__":
    what, *cases = sys.argv[1:] or ["bytes"]
    measures: dict[str, Callable[[], Any]] = {
        "bytes": measure_bytes,
        "cache": measure_cache,
        "scale": measure_scale,
        "private": measure_private,
        "coding": lambda: measure_coding(cases),
    }
    for word, known in [(what, measures), *((case, CASES) for case in cases)]:
        if word not in known:
            sys.exit(f"Nothing called {word!r} can be measured: name one of {', '.join(known)}.")
    print(json.dumps(measures[what](), indent=1))
