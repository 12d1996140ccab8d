"""A device program that trains with PyTorch: gateway tests need no export of ONNX for rounds.

It stands in for `fedrows_device.program.Program`. tests/test_gateway_federation.py uses the real
one.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from deployed import CONFIG, task_of
from gateway_devices import GENEROUS, Devices, LoadedPrograms, gateway, gateway_node
from loopback import Loopback, federation

from fedrows.algorithm import Round
from fedrows.client import Assignment, train
from fedrows.data.batches import local_data
from fedrows.data.federation import FederatedData
from fedrows.flower.gateway.web import GatewayLimits
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.wire.contract import DeployedTask, digest, make_contract
from fedrows.rows.index import Index
from fedrows.rows.params import Submodels


def write_program(
    task: DeployedTask, config: Mapping[str, Any], data: FederatedData, folder: Path
) -> Path:
    """A program's folder for a run, as far as a gateway and a session look at it."""
    agreed = make_contract(task, config)
    model = agreed.model(data)
    manifest = {
        "format": 1,
        "contract": digest(agreed.fingerprint(model, data)),
        "tables": {
            name: {"rows": x.rows, "width": x.width, "local": name in data.local, "padded": False}
            for name, x in model.schema.tables.items()
        },
        "dense": {name: list(shape) for name, shape in model.schema.dense.items()},
        "fields": {name: {"table": table, "kind": "one"} for name, table in data.fields.items()},
        "numbers": {},
        "labels": data.labels,
        "keeps": type(agreed.algorithm).keeps,
        "algorithm": {"sends": type(agreed.algorithm).__name__ == "Scaffold"},
    }
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@dataclass
class TorchPrograms(LoadedPrograms):
    """Gives every device the same program."""

    task: DeployedTask
    config: Mapping[str, Any]
    data: FederatedData

    def get(self, id_: str, folder: Path) -> Any:
        manifest = json.loads((folder / "manifest.json").read_text())
        return TorchProgram(manifest, make_contract(self.task, self.config), self.data)


class TorchProgram:
    """Trains the client whose number it is asked for."""

    folder = None

    def __init__(self, manifest: dict[str, Any], contract: Any, data: FederatedData) -> None:
        self.manifest, self.contract, self.data = manifest, contract, data
        self.model = contract.model(data)

    def local_start(self, table: str, ids: np.ndarray) -> np.ndarray:
        return self.model.start().tables[table][torch.from_numpy(ids)].float().numpy()

    def train(
        self, examples: Any, rows: Any, dense: Any, local_rows: Any, *,
        round: int, number: int, lr: float, sent: Any, kept: Any,
    ) -> Any:  # fmt: skip
        own = local_data(self.data.to(torch.device("cpu"), torch.float32), torch.tensor([number]))
        shared = {table: _index(examples.index[table]) for table in rows}
        every = {table: _index(ids) for table, ids in examples.index.items()}
        named = {f"rows/{t}": x for t, x in (rows | local_rows).items()}
        named |= {f"dense/{n}": x for n, x in dense.items()}
        start, about = _submodels(every, named), Round(round, lr, 1, 0.0, torch.tensor([number]))
        given = [None if x is None else _submodels(shared, x) for x in (sent, kept)]
        work = Assignment(replace(own, clients=torch.tensor([number])), start, *given, about)
        done = train(self.model, self.contract.algorithm, self.contract.plan, work)
        update = done.update.without(self.data.local)
        return SimpleNamespace(
            rows={t: x.numpy() for t, x in update.rows.items()},
            dense={n: x[0].numpy() for n, x in update.dense.items()},
            local_rows={t: (start.rows[t] + done.update.rows[t]).numpy() for t in local_rows},
            extra={name: _flat(x) for name, x in done.extra.items()},
            kept=None if done.kept is None else _flat(done.kept),
            steps=int(done.steps[0]),
            loss=0.5,
            occurred={t: x.numpy() for t, x in done.occurred.items()} if done.occurred else None,
        )


def _index(ids: np.ndarray) -> Index:
    return Index(torch.from_numpy(ids), torch.tensor([0, len(ids)]))


def _submodels(index: Mapping[str, Index], named: Mapping[str, np.ndarray]) -> Submodels:
    rows = {table: torch.from_numpy(named[f"rows/{table}"]) for table in index}
    dense = {n[6:]: torch.from_numpy(x)[None] for n, x in named.items() if n.startswith("dense/")}
    return Submodels(dict(index), rows, dense)


def _flat(x: Submodels) -> dict[str, np.ndarray]:
    rows = {f"rows/{table}": values.numpy() for table, values in x.rows.items()}
    return rows | {f"dense/{name}": values[0].numpy() for name, values in x.dense.items()}


PLAIN = {
    **CONFIG, "dtype": "float32", "row-clip": "", "weight-quantile": "", "cap": "",
    "algorithm": "fedsubavg", "timeout": 30.0,
}  # fmt: skip


@dataclass
class Running:
    """A fleet whose one node is a gateway, and the gateway's devices."""

    fleet: FlowerFleet
    loopback: Loopback
    devices: Devices


@contextlib.contextmanager
def running(
    data: FederatedData,
    config: dict[str, Any],
    folder: Path,
    limits: GatewayLimits = GENEROUS,
    **own: Any,
) -> Iterator[Running]:
    """A gateway and its devices, none of which runs yet."""
    task = task_of(data)
    program = write_program(task, config, data, folder / "program")
    fleet, loopback = federation(task, config, {}, folder)
    own = {"program": str(program), "devices": data.clients, **own}
    loopback.here[1] = gateway_node(task, config, data, folder / "gate", **own)
    with gateway(folder, data, limits) as (devices, _):
        devices.programs = TorchPrograms(task, config, data)
        yield Running(fleet, loopback, devices)
