"""Asynchronous rounds in a federation whose nodes and servers are killed: is each update used once?

    python benchmarks/async_chaos.py [--nodes 6] [--steps 200] [--every 5] [--servers 3]

Starts a SuperLink and nodes on this machine, kills a node every few seconds and starts it again,
and kills the server (the ServerApp, then the SuperLink, by turns) at even distances. The kills wait
for nothing. While only two nodes are ready, a node that is being started is killed instead.

Then it checks three things. By updates.jsonl, every update that was accepted was applied by one
step or waits for one, or was dropped for a reason that is named. Every step has applied as many
updates as the buffer holds. And the counts of moves in the checkpoint are those of the steps in
that file, row by row. Writes `results/async_chaos.json`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import safetensors.torch
import torch

from benchmarks.federation_faults import kill_node, kill_serverapp, kill_superlink, start_node
from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.flower.demo import federate, write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch import certificates
from fedrows.flower.launch.federation import LocalFederation
from fedrows.flower.launch.resubmit import submit_until_done
from fedrows.flower.server.update_log import ARRIVALS, UPDATES, read_updates
from fedrows.report.exchange import read_rounds
from fedrows.runs import checkpoint
from fedrows.runs.folder import CHECKPOINT

RESULT = Path(__file__).parent / "results" / "async_chaos.json"
CLIENTS, BUFFER, CONCURRENCY = 60, 4, 18
LEFT = 2  # nodes that are not killed while all others are being started
AGAIN = 1.0  # seconds from a start that failed to the next
TIMEOUT = 15.0  # seconds until a message is given up


class Chaos:
    """Kills nodes and servers of a federation until its run has ended.

    Kills of nodes keep a clock of their own, and wait for nothing. Every node has a thread that
    starts it again. If no more than LEFT are ready, a node that is being started is killed.
    """

    def __init__(self, federation: LocalFederation, out: Path, seed: int) -> None:
        self.federation, self.out, self.draw = federation, out, random.Random(seed)
        self.kills, self.missed, self.server_kills = list[float](), 0, list[str]()
        self.early = 0  # kills of nodes that were being started
        self.starts = list[float]()  # seconds that each start of a node took
        self.ready = set(range(len(federation.nodes)))
        self._dead = [threading.Event() for _ in federation.nodes]
        self._lock, self._over = threading.Lock(), threading.Event()
        self._killer: threading.Thread | None = None
        self._server: threading.Thread | None = None  # starts the SuperLink
        self._threads = [begun(self._keep, node) for node in self.ready]

    @property
    def step(self) -> int:
        """The last step that is done."""
        lines = read_rounds(self.out / ROUNDS)
        return int(lines[-1]["round"]) if lines else 0

    def kill_nodes(self, every: float) -> None:
        """Begins to kill a node every so many seconds."""
        if self._killer is None:
            self._killer = begun(self._kill_nodes, every)

    def _kill_nodes(self, every: float) -> None:
        first, ticks = time.monotonic(), 0
        while not self._over.wait(max(0.0, first + ticks * every - time.monotonic())):
            ticks += 1
            self._kill_a_node()

    def _kill_a_node(self) -> None:
        with self._lock:
            ready = sorted(self.ready)
            starting = [x for x in range(len(self._dead)) if x not in self.ready]
            among = ready if len(ready) > LEFT else starting
            for node in self.draw.sample(among, len(among)):
                with suppress(FedrowsError):  # it is dead, and has not begun to start
                    kill_node(self.federation, node)
                    self.kills.append(time.monotonic())
                    self.early += node in starting
                    self.ready.discard(node)
                    self._dead[node].set()
                    return
            self.missed += 1

    def _keep(self, node: int) -> None:
        """Starts a node whenever it is dead."""
        dead = self._dead[node]
        while dead.wait() and not self._over.is_set():
            dead.clear()
            began = time.monotonic()
            try:
                start_node(self.federation, node)
            except FedrowsError:  # the SuperLink is away, or the node was killed again
                with self._lock, suppress(FedrowsError):
                    kill_node(self.federation, node)
                dead.set()
                self._over.wait(AGAIN)
                continue
            with self._lock:
                if not dead.is_set():
                    self.ready.add(node)
                    self.starts.append(time.monotonic() - began)

    def kill_server(self) -> None:
        """Kills the ServerApp, or the SuperLink with it, by turns; unless it is being started."""
        if self._server is not None and self._server.is_alive():
            return
        if len(self.server_kills) % 2 == 0:
            if kill_serverapp(self.federation):
                self.server_kills.append("ServerApp")
        else:
            kill_superlink(self.federation)
            self._server = begun(self.federation.start_superlink)
            self.server_kills.append("SuperLink")

    def close(self) -> None:
        """Ends the kills of nodes, and waits for what is being started."""
        self._over.set()
        for dead in self._dead:
            dead.set()
        for thread in filter(None, [*self._threads, self._killer, self._server]):
            thread.join(timeout=60)


def begun(do: Callable[..., None], *args: Any) -> threading.Thread:
    """A thread that has begun to do something."""
    thread = threading.Thread(target=do, args=args, daemon=True)
    thread.start()
    return thread


def chaos(
    folder: Path,
    nodes: int,
    steps: int,
    every: float,
    servers: int,
    limit: float,
    concurrency: int = CONCURRENCY,
    seed: int = 0,
) -> dict[str, Any]:
    """Runs so many steps while nodes and servers die; returns what the checks have counted.

    every: seconds between two kills of nodes. servers: how often the server is killed. limit:
    seconds that only a failure takes.
    """
    words = {"device": "cpu", "clients": str(CLIENTS), "rounds": str(steps), "mode": "async"}
    words |= {"buffer": str(BUFFER), "concurrency": str(concurrency), "evaluate_every": str(steps)}
    settings = choose(catalogue.task("synthetic"), ["fedsubavg"], words)["fedsubavg"]
    data, out = settings.task.load(settings.options), folder / "run"
    terms = {"min_nodes": nodes, "timeout": TIMEOUT}
    specs = federate(folder, data, nodes).nodes
    certificates.make_authority(folder / "keys")
    certificates.make_server(folder / "keys", ["localhost"])
    for spec in specs:
        certificates.make_node_key(folder / "keys", spec.name)
    keys = certificates.open_certificates(folder / "keys", [spec.name for spec in specs])
    with LocalFederation(folder, specs, keys) as federation:
        began = time.monotonic()
        project = write_project(folder / "project", settings, terms, out, folder / "data")
        output = list[str]()
        submitter = begun(submit_until_done, federation.control, project, {}, 50, output.append)
        at = [steps * (i + 1) // (servers + 1) for i in range(servers)]
        with closing(Chaos(federation, out, seed)) as deeds:
            while submitter.is_alive():
                if time.monotonic() - began > limit:
                    raise FedrowsError(f"After {limit:g} s only {deeds.step} steps: {output[-5:]}")
                done = deeds.step
                if done:
                    deeds.kill_nodes(every)
                if len(deeds.server_kills) < servers and done >= at[len(deeds.server_kills)]:
                    deeds.kill_server()
                time.sleep(0.1)
    gaps = [b - a for a, b in pairwise(deeds.kills)]
    result = {"steps": steps, "nodes": nodes, "buffer": BUFFER, "concurrency": concurrency}
    result |= {"clients": data.clients, "seconds": round(time.monotonic() - began, 1)}
    result |= {"node_kills": len(deeds.kills), "missed_kills": deeds.missed}
    result |= {"kills_of_starting_nodes": deeds.early}
    result |= {"seconds_per_kill": round(sum(gaps) / max(len(gaps), 1), 2)}
    result |= {"longest_without_a_kill": round(max(gaps, default=0), 2)}
    result |= {"start_of_a_node": round(sum(deeds.starts) / max(len(deeds.starts), 1), 1)}
    result |= {"server_kills": deeds.server_kills}
    return {**result, **checked(out, data, steps)}


def checked(out: Path, data: FederatedData, steps: int, buffer: int = BUFFER) -> dict[str, Any]:
    """What updates.jsonl counts; an error if an update was lost, or applied twice."""
    lines = read_updates(out / UPDATES)
    accepted = Counter(_key(x) for x in lines if "accepted" in x)
    applied = Counter(_key(x) for x in lines if "step" in x and "dropped" not in x)
    dropped = Counter(_key(x) for x in lines if "dropped" in x)
    ages = [x["age"] for x in lines if "step" in x and "dropped" not in x]
    by_step = Counter(x["step"] for x in lines if "step" in x and "dropped" not in x)
    waiting = waiting_in(out / ARRIVALS) - applied.keys() - dropped.keys()
    _require(set(accepted.values()) == {1}, "an update was accepted twice")
    _require(set(applied.values()) == {1}, "an update was applied twice")
    _require(not applied.keys() & dropped.keys(), "an update was applied, and dropped too")
    ends = applied.keys() | dropped.keys() | waiting
    _require(accepted.keys() == ends, "an update was lost, or came from nowhere")
    _require(by_step == dict.fromkeys(range(1, steps + 1), buffer), "a step has too few updates")
    _require(checkpoint.standing(out / CHECKPOINT).round == steps, "the checkpoint is another's")
    moves = safetensors.torch.load_file(out / CHECKPOINT)
    clients: dict[int, list[int]] = {}
    for line in lines:
        if "step" in line and "dropped" not in line:
            clients.setdefault(line["step"], []).append(line["client"])
    for table, index in data.index.items():
        count = torch.zeros_like(moves[f"schedule/moves/{table}"])
        for step in range(1, steps + 1):
            count[index.select(torch.tensor(clients[step])).ids.unique()] += 1
        _require(torch.equal(count, moves[f"schedule/moves/{table}"]), f"{table} moved otherwise")
    rounds = read_rounds(out / ROUNDS)
    return {
        "accepted": len(accepted),
        "applied_once": len(applied),
        "dropped": len(dropped),
        "waiting_at_the_end": len(waiting),
        "age_mean": round(sum(ages) / len(ages), 2),
        "age_max": max(ages),
        "clients_asked": sum(x["asked"] for x in rounds),
        "clients_lost": sum(len(who) for x in rounds for who in x["dropped"].values()),
    }


def waiting_in(folder: Path) -> set[tuple[str, Any, int]]:
    """The updates in files that no step has used."""
    waiting = set[tuple[str, Any, int]]()
    for path in folder.glob("*.safetensors"):
        with safetensors.safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["fedrows"])
        waiting |= {(facts["node"], client, facts["tag"]) for client in facts["clients"]}
    return waiting


def _key(line: dict[str, Any]) -> tuple[str, Any, int]:
    return line["node"], line["client"], line["tag"]


def _require(true: bool, what: str) -> None:
    if not true:
        raise FedrowsError(f"updates.jsonl does not hold: {what}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=6)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=float, default=5.0, help="Seconds between two nodes.")
    parser.add_argument("--servers", type=int, default=3, help="How often the server is killed.")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY)
    parser.add_argument("--limit", type=float, default=3600.0, help="Seconds until it gives up.")
    typed = parser.parse_args()
    size = typed.nodes, typed.steps, typed.every, typed.servers
    with tempfile.TemporaryDirectory(prefix="async-chaos-") as folder:
        result = chaos(Path(folder), *size, typed.limit, typed.concurrency)
    result = {"torch": torch.__version__, **result}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
