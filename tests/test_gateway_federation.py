"""The whole way: real device programs, and a real federation with HTTPS between its processes."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import difference, run, simulated
from gateway_devices import Devices, SignedHttp, gateway, gateway_node, write_examples
from loopback import federation
from test_deploy import difference as model_difference
from test_deploy import settings_of

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.data.stored.store import save_data
from fedrows.flower.demo import TASK, write_project
from fedrows.flower.gateway.service import PORT
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch import certificates
from fedrows.flower.launch.federation import LocalFederation, NodeSpec
from fedrows.flower.launch.processes import PARENT
from fedrows.flower.wire.contract import DeployedTask
from fedrows.flower.wire.message import unpack
from fedrows.report.exchange import read_rounds

pytestmark = pytest.mark.slow(minutes=1)
LIMIT = 400.0  # seconds, which only a failure takes
CLIENTS = Path(__file__).parents[1] / "clients" / "python"


def movielens(clients: int) -> FederatedData:
    """Some clients of MovieLens."""
    task = catalogue.task("movielens")
    return task.load(task.options()).select(torch.arange(clients))


class CountedBytes(SignedHttp):
    """Counts what a round needs, by the device's requests: bodies, and the headers around them."""

    counted: ClassVar[Counter[str]] = Counter()
    here = threading.local()  # the bytes of this thread's requests and answers, whole

    def ask(self, method: str, target: str, body: bytes = b"", *more: Any, **named: Any) -> Any:
        CountedBytes.here.bytes = 0
        answer = super().ask(method, target, body, *more, **named)
        headers = CountedBytes.here.bytes - len(body) - len(answer.body)
        if target.startswith("/v1/work/"):
            CountedBytes.counted[method] += len(body) + len(answer.body)
            CountedBytes.counted["headers"] += headers
            CountedBytes.counted["rounds"] += method == "PUT"
        elif target.startswith("/v1/check-in") and b'"work":null' not in answer.body:
            CountedBytes.counted["check-in"] += len(answer.body)
            CountedBytes.counted["headers"] += headers
        return answer

    @classmethod
    def count_whole(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has all connections count what they send, and the headers and bodies that come."""
        send, begin = http.client.HTTPConnection.send, http.client.HTTPResponse.begin

        def sending(self: Any, data: Any) -> None:
            cls.here.bytes = getattr(cls.here, "bytes", 0) + len(data)
            send(self, data)

        def beginning(self: Any) -> None:
            begin(self)
            lines = sum(len(name) + len(value) + 4 for name, value in self.headers.items())
            cls.here.bytes += len("HTTP/1.1 200 OK") + 2 + lines + 2 + (self.length or 0)

        monkeypatch.setattr(http.client.HTTPConnection, "send", sending)
        monkeypatch.setattr(http.client.HTTPResponse, "begin", beginning)


def test_two_hundred_devices_are_the_simulation(
    tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rounds of MovieLens; a device's bytes are close to those of a node of one client."""
    data = movielens(200)
    task = DeployedTask("movielens", lambda _: data, TASK.model, lambda _: data)
    config = {
        "rounds": 10, "clients-per-round": 50, "lr": 0.3, "seed": 3, "local-steps": 10,
        "batch-size": 5, "row-clip": "", "weight-quantile": "", "cap": "", "timeout": 100.0,
    }  # fmt: skip
    monkeypatch.setattr("gateway_devices.SignedHttp", CountedBytes)
    CountedBytes.count_whole(monkeypatch)
    fleet, loopback = federation(task, config, {}, tmp_path)
    loopback.here[1] = gateway_node(task, config, data, tmp_path / "gate", devices=200)
    with gateway(tmp_path, data) as (devices, _):
        devices.run(range(200))
        found = run(fleet, data)
    assert not fleet.rejected
    assert difference(found.whole(), simulated(fleet, data)) < 1e-5
    counted = CountedBytes.counted
    assert counted["rounds"] == 500
    each = {str(i): data.select(torch.tensor([i])) for i in range(200)}
    alone, nodes = federation(task, config, each, tmp_path / "nodes")
    up: list[int] = []
    nodes.meddle = lambda node, answer: up.append(len(answer)) or answer  # type: ignore[func-returns-value]
    run(alone, data)
    trained = [len(x) for _, x in nodes.sent if unpack(x).kind == "train"]
    of_node = (sum(trained) + sum(up[-len(trained) :])) / len(trained)
    of_device = sum(counted[name] for name in ("GET", "PUT", "check-in")) / 500
    whole = of_device + counted["headers"] / 500
    print({name: x / 500 for name, x in counted.items()})
    print(
        f"bytes per device and round {of_device:.0f}, with HTTP's headers {whole:.0f}; per node of "
        f"one client {of_node:.0f}, without what Flower puts around it"
    )
    assert of_device < 1.2 * of_node
    assert counted["headers"] / 500 < 4096


@pytest.mark.usefixtures("quick_starts")
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_real_federation_over_https(tmp_path: Path, data_folder: Path, mode: str) -> None:
    """Flower's processes, TLS, and a device of its own process that is killed and comes back.

    An asynchronous run whose steps take the updates of all devices is the synchronous one.
    """
    data = movielens(12)
    settings = settings_of("movielens", "fedsubavg", rounds=4, clients_per_round=12)
    keys = tmp_path / "keys"
    certificates.make_authority(keys)
    certificates.make_server(keys, ["localhost"])
    save_data(data, tmp_path / "data")
    state, out = tmp_path / "gate", tmp_path / "run"
    store = GatewayStore(state)
    terms = {"timeout": 60.0, "min_clients": 12}
    own: dict[str, Any] = {} if mode == "sync" else {"mode": mode, "buffer": 12, "concurrency": 12}
    submitted = replace(settings, plan=replace(settings.plan, **own))
    project = write_project(tmp_path / "project", submitted, terms, out, tmp_path / "data")
    node = {"gateway": "yes", "shard": str(tmp_path / "data"), "state": str(state), "name": "gate"}
    path = os.pathsep.join([str(CLIENTS), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, PARENT: str(os.getpid())}
    words = ["--state", str(state), "--certificate", str(keys / "server.pem")]
    words += ["--key", str(keys / "server.key"), "--ca", str(keys / "ca.pem")]
    web = subprocess.Popen(
        [sys.executable, "-m", "fedrows.flower.gateway.service", *words], env=environment
    )
    alone: subprocess.Popen[bytes] | None = None
    try:
        with LocalFederation(tmp_path / "federation", [NodeSpec("gate", node)]) as federated:
            until = time.monotonic() + LIMIT
            while not (state / PORT).exists():
                assert web.poll() is None
                assert time.monotonic() < until
                time.sleep(0.05)
            url = f"https://localhost:{(state / PORT).read_text().strip()}"
            examples = write_examples(data, 0, tmp_path / "alone" / "examples.json")
            own = ["--gateway", url, "--ca", str(keys / "ca.pem"), "--data", str(examples)]
            own += ["--state", str(tmp_path / "alone" / "state"), "--name", "device-00000"]
            device = [sys.executable, "-m", "fedrows_device", *own, "--token", store.make_token()]
            alone = subprocess.Popen(device, env=environment)
            number = federated.control.submit(project, {})
            with Devices(url, store, data, tmp_path, keys / "ca.pem") as devices:
                devices.run(range(1, 12))
                work = tmp_path / "alone" / "state" / "registered"
                while not work.exists() and time.monotonic() < until:
                    time.sleep(0.02)
                alone.send_signal(signal.SIGKILL)
                alone.wait()
                alone = subprocess.Popen(device, env=environment)
                assert federated.wait(number, LIMIT) == "finished:completed"
                status = Path(f"/proc/{alone.pid}/status").read_text()
                peak = int(status.split("VmHWM:")[1].split()[0]) * 1024
                print(f"peak memory of a device, with TLS and storage: {peak / 1e6:.0f} MB")
                assert peak < 150e6
    finally:
        for process in (web, alone):
            if process is not None:
                process.kill()
                process.wait()
    assert [line["answered"] for line in read_rounds(out / ROUNDS)] == [12] * 4
    assert model_difference(out, settings, data) < 1e-5
