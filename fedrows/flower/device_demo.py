"""`fedrows deploy demo --devices N`: a federation whose devices are browser tabs on this machine.

Starts a SuperLink, an ordinary node with some clients, and a gateway. The page of the gateway has
N devices, each in a frame with storage of its own. The run begins when the page is open.
"""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError
from fedrows.files.whole import write_private
from fedrows.flower.demo import follow, fresh_work, node_specs, write_project
from fedrows.flower.demo_devices import chosen_clients, given_to, title_of
from fedrows.flower.gateway.service import PORT
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.launch import control_token
from fedrows.flower.launch.federation import LocalFederation, NodeSpec
from fedrows.flower.launch.processes import ProcessGroup, environment
from fedrows.flower.launch.starting import START_SECONDS
from fedrows.runs.settings import Settings

GATEWAY, NODE, WEB = "gateway", "node", "gateway-web"
SERVICE = "fedrows.flower.gateway.service"
DIST = Path(__file__).parents[2] / "clients" / "browser" / "dist"
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ida", "Jo", "Kim", "Leo")


def check_built() -> None:
    """Raises a FedrowsError unless the browser's client is built."""
    if not (DIST / "demo.html").is_file():
        raise FedrowsError(
            f"There is no browser client in {DIST}: run `make browser` in the repository of "
            "fedrows, which needs node and npm."
        )


def device_demo(
    settings: Settings,
    data: FederatedData,
    devices: int,
    path: Path,
    terms: Mapping[str, Any],
    overwrite: bool,
    say: Callable[[str], None],
    live: str | None = None,
) -> int:
    """Runs the settings over devices in a browser and the clients beside them.

    terms: options of `DeploymentOptions` and `Watching`. live: the address of the operator's page.
    """
    work = fresh_work(path, overwrite)
    own, others = chosen_clients(data, devices)
    together = data.select(torch.cat([own, others]))
    plan = replace(settings.plan, clients_per_round=together.clients)
    settings = replace(settings, plan=plan)
    specs = _nodes(work, together, devices)
    terms = {"min_nodes": len(specs), **terms}
    project = write_project(work / "project", settings, terms, path, work / "data")
    state = work / "state" / GATEWAY
    folder = _write_site(work / "site", GatewayStore(state), together, devices, live)
    say(f"Starting a SuperLink, a gateway, and a node with {len(others)} clients of {data.name} …")
    with (
        LocalFederation(work, specs) as federation,
        _served(federation, state, work / "site") as address,
    ):
        run = federation.control.submit(project, {})
        say(f"Devices: {address}/demo.html?demo={folder}")
        say(f"Open it in a browser: the run begins when all {devices} are there. Ctrl-C ends it.")
        with control_token.published(federation.token, federation.port):
            follow(federation, run, path, settings.plan.rounds, say)
        if sys.stdin.isatty():
            say("The run is finished. The page is served until Ctrl-C.")
            while True:
                time.sleep(1)
    return 0


def _nodes(work: Path, data: FederatedData, devices: int) -> list[NodeSpec]:
    """A node with all clients that are no devices, if there are any, and the gateway.

    The gateway gets the tables and fields of the data from one client, and no device's examples.
    """
    others = torch.arange(devices, data.clients)
    sample = data.select(others[:1] if len(others) else torch.arange(1))
    shards = {NODE: data.select(others)} if len(others) else {}
    *nodes, gateway = node_specs(work, data, {**shards, GATEWAY: sample})
    about = {**gateway.config, "gateway": "yes", "devices": devices}
    return [*nodes, replace(gateway, config=about)]


def _write_site(
    site: Path, store: GatewayStore, data: FederatedData, devices: int, live: str | None
) -> str:
    """Writes what the gateway serves: the page, and what each tab begins with.

    That lies in a folder whose name nobody can guess: with the token in it, one is that device.
    """
    shutil.copytree(DIST, site)
    folder = f"demo-{secrets.token_urlsafe(18)}"
    title, listed = title_of(data), []
    for i in range(devices):
        called = NAMES[i] if i < len(NAMES) else f"Device {i + 1}"
        name = f"device-{i + 1:03}"
        tab = {"token": store.make_token(), "name": name, "given": given_to(data, i, called, title)}
        _write(site / folder / f"{name}.json", tab)
        listed.append({"name": name, "called": called})
    demo = {
        "devices": listed,
        "others": data.clients - devices,
        "live": live,
        "lede": "Each panel is a device of its own. It keeps its list, asks for the rows of the "
        "model that it needs, trains on them here, and sends back how they should move.",
    }
    _write(site / folder / "demo.json", demo)
    return folder


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    write_private(path, json.dumps(content, ensure_ascii=False).encode())


@contextmanager
def _served(federation: LocalFederation, state: Path, site: Path) -> Iterator[str]:
    """The web side of the gateway as a process beside the federation's; gives its address."""
    home = federation.folder / "home" / WEB
    group = ProcessGroup(federation.logs, environment(home, federation.mark))
    words = ["--state", str(state), "--host", "127.0.0.1", "--port", "0", "--page", str(site)]
    try:
        process = group.start(WEB, [sys.executable, "-m", SERVICE, *words])
        until = time.monotonic() + START_SECONDS
        while (port := _open_port(state / PORT)) is None:
            if process.poll() is not None or time.monotonic() > until:
                raise FedrowsError(f"The gateway did not start: look into {group.log(WEB)}.")
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        group.kill()


def _open_port(file: Path) -> int | None:
    """The port that a file names, once somebody listens there."""
    if not file.is_file():
        return None
    port = int(file.read_text())
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return port
    return None
