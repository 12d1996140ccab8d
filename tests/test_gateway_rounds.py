"""Rounds through a gateway: devices are light clients, and the model is the simulation's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("starlette")

from deployed import CONFIG, difference, examples, run, simulated, task_of
from gateway_devices import gateway, gateway_node
from loopback import federation

from fedrows.data.federation import FederatedData

PLAIN = {**CONFIG, "dtype": "float32", "row-clip": "", "weight-quantile": "", "timeout": 30.0}


def fleet_of(data: FederatedData, config: dict[str, Any], folder: Path, **own: Any) -> Any:
    """A fleet whose one node is the gateway in a folder."""
    task = task_of(data)
    fleet, loopback = federation(task, config, {}, folder)
    loopback.here[1] = gateway_node(task, config, data, folder / "gate", **own)
    return fleet, loopback


@pytest.mark.parametrize("algorithm", ["fedavg", "fedsubavg", "fedprox", "scaffold"])
def test_devices_train_as_simulated(tmp_path: Path, algorithm: str) -> None:
    data = examples()
    config = {**PLAIN, "algorithm": algorithm}
    if algorithm == "fedsubavg":
        config["cap"] = ""
    fleet, _ = fleet_of(data, config, tmp_path, devices=data.clients)
    with gateway(tmp_path, data) as (devices, _):
        devices.run(range(data.clients))
        found = run(fleet, data)
    assert not fleet.rejected
    assert difference(found.whole(), simulated(fleet, data)) < 1e-5
