"""What a deployment costs: bytes beside those of the numbers, and the server's own seconds.

    python benchmarks/deploy.py bytes     MovieLens' and Amazon's payload and what is on the wire
    python benchmarks/deploy.py scale     2,000 clients on 4 nodes, K = 100, 50 rounds

Starts real federations on loopback ports. The wire is measured by a relay between every node and
the SuperLink that counts what goes through it, polling and HTTP headers included.
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.flower.demo import federate, write_project
from fedrows.flower.deployment import ROUNDS
from fedrows.report.exchange import read_rounds


class Relay:
    """Passes connections on to a port, and counts the bytes of both directions."""

    def __init__(self, port: int) -> None:
        self.to, self.up, self.down = port, 0, 0
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._socket.accept()
            far = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self._pass, args=(near, far, "up"), daemon=True).start()
            threading.Thread(target=self._pass, args=(far, near, "down"), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket, way: str) -> None:
        try:
            while data := one.recv(65536):
                setattr(self, way, getattr(self, way) + len(data))
                other.sendall(data)
        except OSError:
            pass
        for end in (one, other):
            end.close()


def run(task: str, words: dict[str, Any], terms: dict[str, Any], nodes: int, folder: Path) -> Any:
    """One deployed run; its rounds, its data and settings, and the relay if there is one."""
    settings = choose(catalogue.task(task), ["fedsubavg"], {"device": "cpu", "cap": "100", **words})
    its = settings["fedsubavg"]
    data = its.task.load(its.options)
    out = folder / "run"
    with federate(folder, data, nodes) as federation:
        terms = {"min_nodes": nodes, "timeout": 600.0, **terms}
        project = write_project(folder / "project", its, terms, out, folder / "data")
        number = federation.submit(project, {})
        status = federation.wait(number, 3000)
        assert status == "finished:completed", status
        facts = federation.control.facts(number)
    return read_rounds(out / ROUNDS), data, its, facts


def ideal(data: Any, settings: Any, lines: list[dict[str, Any]], steps: int) -> tuple[float, float]:
    """Bytes of one client's values, ids at 2 bytes and dense tensors, down and up, as the mean."""
    model = catalogue.model(settings.task.model)(data, 0)
    dense = 4 * model.schema.dense_size
    rows = sum(
        (4 * model.schema.tables[t].width + 2) * len(its.ids) / its.clients
        for t, its in data.index.items()
    )
    return rows + dense, rows + dense


def measure_bytes() -> list[dict[str, Any]]:
    found = []
    for task, nodes in (("movielens", 4), ("amazon", 4)):
        with tempfile.TemporaryDirectory() as place:
            words = {"rounds": "5", "evaluate_every": "5"}
            lines, data, settings, facts = run(task, words, {}, nodes, Path(place))
        model = catalogue.model(settings.task.model)(data, 0)
        asked = sum(line["asked"] for line in lines[1:])
        down = sum(line["bytes_down"] for line in lines[1:]) / asked
        up = sum(line["bytes_up"] for line in lines[1:]) / asked
        goal, _ = ideal(data, settings, lines, settings.plan.local_steps)
        full = 4 * model.schema.size
        found.append(
            {
                "task": task,
                "payload_down": down,
                "payload_up": up,
                "values_ids_dense": goal,
                "down_ratio": down / goal,
                "up_ratio": up / goal,
                "share_of_full_model_down": down / full,
                "share_of_full_model_up": up / full,
                "flower": {k: v for k, v in facts.items() if "bytes" in k},
            }
        )
    return found


def measure_scale() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        words = {"rounds": "50", "evaluate_every": "50", "clients": "2000"}
        words["clients_per_round"] = "100"
        lines, data, _, _ = run("synthetic", words, {}, 4, Path(place))
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


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "bytes"
    print(json.dumps(measure_bytes() if what == "bytes" else measure_scale(), indent=1))
