"""What a device and a node of one client send and get in a round, with all that is around it.

    python benchmarks/device_bytes.py [--clients 4] [--rounds 11]

MovieLens, logistic regression, FedSubAvg; every client takes part in every round. Once each client
is the only one of a SuperNode, and a relay between the nodes and the SuperLink counts all bytes.
Once each is a device, by the light client, and a relay in front of the gateway counts. Both speak
plain HTTP here, so the bytes are those of bodies, headers, and of asking for work; TLS adds its own
to both. The first round is left out. Writes `results/device_bytes.json`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "device_bytes.json"
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from faults import FaultyRelay  # noqa: E402
from gateway_devices import Devices, gateway, gateway_node  # noqa: E402
from loopback import federation  # noqa: E402

from benchmarks.deploy import run  # noqa: E402
from benchmarks.speed import machine  # noqa: E402
from fedrows.flower.demo import TASK  # noqa: E402
from fedrows.flower.wire.contract import DeployedTask  # noqa: E402
from fedrows.server import begin, rounds  # noqa: E402

USUAL = {"lr": "0.3", "local_steps": "10", "batch_size": "5", "evaluate_every": "100"}
BOUNDS = {"row-clip": "", "weight-quantile": "", "cap": 100.0}


def nodes(clients: int, count: int) -> tuple[dict[str, float], Any]:
    """Bytes of a node of one client in a round, payload and whole; and the data."""
    words = {**USUAL, "rounds": str(count), "clients_per_round": str(clients)}
    with tempfile.TemporaryDirectory() as folder:
        lines, passed, data, _ = run("movielens", words, clients, Path(folder), clients=clients)
    steady = [line for line in lines if line["round"] > 1]
    asked = sum(line["asked"] for line in steady)
    payload = sum(line["bytes_down"] + line["bytes_up"] for line in steady) / asked
    whole = (sum(passed[lines[-1]["round"]]) - sum(passed[1])) / asked
    return {"payload": payload, "whole": whole}, data


def devices(data: Any, count: int) -> dict[str, float]:
    """Bytes of a device in a round, bodies and whole."""
    task = DeployedTask("movielens", lambda _: data, TASK.model, lambda _: data)
    config = {**BOUNDS, "rounds": count, "clients-per-round": data.clients, "lr": 0.3}
    config |= {"local-steps": 10, "batch-size": 5, "timeout": 100.0}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fleet, loopback = federation(task, config, {}, folder)
        loopback.here[1] = gateway_node(task, config, data, folder / "gate", devices=data.clients)
        with gateway(folder, data) as (own, store):
            relay = FaultyRelay(urlsplit(own.url).port or 0)
            own = Devices(f"http://127.0.0.1:{relay.port}", store, data, folder)
            sessions = [own.session(i) for i in range(data.clients)]
            own.session = lambda client: sessions[client]  # type: ignore[method-assign]
            with own:
                own.run(range(data.clients))
                contract = fleet.contract
                progress = begin(contract.model(data), contract.algorithm, contract.plan)
                bodies = whole = 0
                for _ in rounds(fleet, contract.plan, progress):
                    if progress.round == 1:
                        bodies = sum(x.http.bytes_up + x.http.bytes_down for x in sessions)
                        whole = relay.up + relay.down
                bodies = sum(x.http.bytes_up + x.http.bytes_down for x in sessions) - bodies
                whole = relay.up + relay.down - whole
    each = data.clients * (count - 1)
    return {"payload": bodies / each, "whole": whole / each}


def main() -> None:
    """Measures, prints and writes the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=11)
    typed = parser.parse_args()
    torch.set_num_threads(1)
    node, data = nodes(typed.clients, typed.rounds)
    device = devices(data, typed.rounds)
    result = {**vars(typed), "node": node, "device": device}
    result["ratio"] = {name: device[name] / node[name] for name in node}
    result["machine"] = machine.facts()
    RESULT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
