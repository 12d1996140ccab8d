"""`fedrows deploy demo`: a whole federation on this machine, and what a simulation says of it.

Starts a SuperLink and nodes on free ports, gives each node a shard of a task's clients, runs the
rounds, shows them as they come, compares the model with that of a simulation with the same seed,
and takes everything down again.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors.torch
import tomli_w
import torch

from fedrows import catalogue
from fedrows.data.federation import FederatedData
from fedrows.data.personal import PERSONAL, with_personal, without_personal
from fedrows.data.stored.store import open_data, save_data
from fedrows.errors import FedrowsError, RunFolderError
from fedrows.files.whole import write_private
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch import control_token
from fedrows.flower.launch.control import FINISHED
from fedrows.flower.launch.federation import LocalFederation, NodeSpec
from fedrows.flower.node.policy import NodePolicy
from fedrows.flower.wire.contract import DeployedTask
from fedrows.flower.wire.signing import own_key, write_peers
from fedrows.lifting.relift import with_personal_parts
from fedrows.model import Model
from fedrows.report.exchange import read_rounds
from fedrows.runs.folder import CHECKPOINT, REPORT
from fedrows.runs.settings import Settings

ALLOWED = 1e-5  # between deployed and simulated parameters
ADAPTIVE = ("adagrad", "adam", "adamw")  # divide by gradients, so what float32 rounds off grows
ENLARGED = 1e-3  # between deployed and simulated parameters then
APP, PEERS, POLICY = "fedrows_demo", "peers.json", "policy.toml"


def _model_name(data: FederatedData) -> str:
    return catalogue.task(data.name).model


def task(options: Mapping[str, Any] | None = None, personal: Sequence[str] = ()) -> DeployedTask:
    """A built-in task, its model with these options and personal parts.

    The data are in the stores that `shard` and `demo-data` name.
    """

    def data(folder: Any) -> FederatedData:
        stored = open_data(str(folder))
        return with_personal(stored) if personal else stored

    def model(data: FederatedData, seed: int) -> Model:
        build = catalogue.model(_model_name(data))
        made = build(without_personal(data), seed, **(options or {}))
        return with_personal_parts(made, data, personal) if personal else made

    return DeployedTask(
        name="demo",
        shard=lambda config: data(config["shard"]),
        model=model,
        server=lambda config: data(config["demo-data"]),
        model_name=_model_name,
    )


TASK = task()


def demo(
    settings: Settings,
    data: FederatedData,
    nodes: int,
    path: Path,
    terms: Mapping[str, Any],
    overwrite: bool,
    say: Callable[[str], None],
) -> int:
    """Runs the settings over a federation of nodes; 0 if the deployed model is the simulated one.

    terms: options of `DeploymentOptions` and `Watching`. say: shows a line.
    """
    work = fresh_work(path, overwrite)
    terms = {"min_nodes": nodes, **terms}
    project = write_project(work / "project", settings, terms, path, work / "data")
    say(f"Starting a SuperLink and {nodes} nodes for {data.clients:,} clients of {data.name} …")
    with federate(work, data, nodes) as federation:
        run = federation.control.submit(project, {})
        say(f"SuperLink at {federation.address}, run {run}. Ctrl-C ends everything.")
        say(
            "From another terminal: fedrows deploy status --superlink "
            f"{federation.address} --insecure"
        )
        with control_token.published(federation.token, federation.port):
            follow(federation, run, path, settings.plan.rounds, say)
    if settings.plan.mode == "async":
        say("It is not compared with a simulation: who came in when decides the model.")
        say(f"Report: {path / REPORT}    Logs: {federation.logs}")
        return 0
    return _compare(settings, data, path, federation.logs, say)


def fresh_work(path: Path, overwrite: bool) -> Path:
    """The folder of a demo's federation, beside that of its run; neither is there yet."""
    work = path.with_name(f"{path.name}-federation")
    if work.exists() and not overwrite:
        raise RunFolderError(f"{work} exists already: choose another --out, or --overwrite.")
    for folder in (work, path) if overwrite else ():
        if folder.exists():
            shutil.rmtree(folder)
    return work


def node_specs(
    work: Path, data: FederatedData, shards: Mapping[str, FederatedData], **config: str
) -> list[NodeSpec]:
    """Nodes with a shard each of some data, which the server has, too.

    Their policy allows any run, since all of it is on one machine. config: of every node.
    """
    save_data(data, work / "data")
    policy = work / POLICY
    write_private(policy, NodePolicy.open().text().encode())
    specs = []
    for name, shard in shards.items():
        save_data(shard, work / "shards" / name)
        own = {"shard": str(work / "shards" / name), "state": str(work / "state" / name)}
        specs.append(NodeSpec(name, {**own, "name": name, "policy": str(policy), **config}))
    return specs


def federate(work: Path, data: FederatedData, nodes: int) -> LocalFederation:
    """A federation that is not started yet, its nodes with a shard each of some data.

    The nodes know each other's signing keys, as private runs need it.
    """
    shards = {f"node-{i}": data.select(torch.arange(i, data.clients, nodes)) for i in range(nodes)}
    specs = node_specs(work, data, shards, peers=str(work / PEERS))
    keys = {node.name: own_key(Path(str(node.config["state"]))).public for node in specs}
    write_peers(work / PEERS, keys)
    return LocalFederation(work, specs)


def write_project(
    folder: Path, settings: Settings, terms: Mapping[str, Any], out: Path, data: Path
) -> Path:
    """A Flower project that runs a built-in task, with all its settings."""
    config: dict[str, Any] = {"algorithm": settings.algorithm.name}
    for owner in (settings.algorithm, settings.plan):
        config |= {k.replace("_", "-"): v for k, v in asdict(owner).items() if v is not None}
    config |= {k.replace("_", "-"): v for k, v in terms.items() if v is not None}
    config |= {"out": str(out), "demo-data": str(data), "peers": str(data.with_name(PEERS))}
    package = folder / APP
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    source = "from fedrows.flower.demo import TASK\n"
    if settings.personal or settings.model != catalogue.model_options(settings.task.model)():
        arguments = f"{asdict(settings.model)!r}, {settings.personal!r}"
        source = f"from fedrows.flower.demo import task\n\nTASK = task({arguments})\n"
    for side in ("client", "server"):
        (package / f"{side}_app.py").write_text(
            f"from fedrows.flower.apps import {side}_app\n{source}\napp = {side}_app(TASK)\n"
        )
    (folder / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n\n'
        f'[project]\nname = "{APP.replace("_", "-")}"\nversion = "1.0.0"\n'
        'description = "A built-in task of fedrows"\nlicense = "Apache-2.0"\n'
        'dependencies = ["fedrows[flower]"]\n\n'
        '[tool.flwr.app]\npublisher = "fedrows"\n\n[tool.flwr.app.components]\n'
        f'serverapp = "{APP}.server_app:app"\nclientapp = "{APP}.client_app:app"\n\n'
        f"[tool.flwr.app.config]\n{tomli_w.dumps(config)}"
    )
    return folder


def follow(
    federation: LocalFederation, run: int, path: Path, rounds: int, say: Callable[[str], None]
) -> None:
    """Shows rounds as they are finished, until the run is."""
    shown = 0
    while True:
        status = federation.control.look(run).status
        for line in read_rounds(path / ROUNDS)[shown:]:
            shown += 1
            say(_line(line, rounds))
        if status.startswith(FINISHED):
            break
        time.sleep(0.3)
    if shown < rounds:
        raise FedrowsError(
            f"The run ended ({status}) after {shown} of {rounds} rounds: look into "
            f"{federation.logs}."
        )


def _line(line: Mapping[str, Any], rounds: int) -> str:
    """One round in words."""
    parts = [f"round {line['round']:>{len(str(rounds))}}/{rounds}"]
    parts.append(f"{line['answered']} of {line['asked']} answered")
    if line["dropped"]:
        away = {why: len(who) for why, who in line["dropped"].items()}
        parts.append(f"dropped {', '.join(f'{n} ({why})' for why, n in away.items())}")
    if line["refused"]:
        parts.append(f"refused {', '.join(f'{w} ({why})' for why, w in line['refused'].items())}")
    asked = max(line["asked"], 1)  # nobody may begin before an asynchronous step
    down, up = line["bytes_down"] / asked, line["bytes_up"] / asked
    parts.append(f"{down:,.0f} B down, {up:,.0f} B up a client")
    if line["tries"] > 1:
        parts.append(f"{line['tries']} tries")
    if line["loss"] is not None:
        parts.append(f"loss {line['loss']:.4f}")
    parts.append(f"{sum(line['seconds'].values()):.1f} s")
    return "  ".join(parts)


def _compare(
    settings: Settings, data: FederatedData, path: Path, logs: Path, say: Callable[[str], None]
) -> int:
    """Says how far the deployed model is from the simulated one."""
    simulation = settings.simulation(data)
    for _ in simulation:
        pass
    deployed = safetensors.torch.load_file(path / CHECKPOINT)
    own = {*data.local, PERSONAL}  # what stays on the nodes
    worst = max(
        float((deployed[name] - x).abs().max())
        for name, x in simulation.tensors().items()
        if name.startswith("model/") and name.split("/")[-1] not in own
    )
    say(f"Largest difference from a simulation with the same seed: {worst:.1e}")
    say(f"Report: {path / REPORT}    Logs: {logs}")
    dropped = any(line["dropped"] or line["refused"] for line in read_rounds(path / ROUNDS))
    plan = settings.plan
    enlarged = plan.dtype == "float32" and plan.optimizer in ADAPTIVE
    allowed = ENLARGED if enlarged else ALLOWED
    if worst > allowed and not dropped:
        raise FedrowsError(
            f"The deployed model differs from the simulated one by {worst:.1e}, more than "
            f"{allowed:.0e}: look into {logs}."
        )
    return 0
