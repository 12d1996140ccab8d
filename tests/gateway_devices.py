"""A gateway in this process, and devices that are threads: what gateway tests use.

The light client is a package of its own, so it is imported from clients/python.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn

sys.path.insert(0, str(Path(__file__).parents[1] / "clients" / "python"))

from fedrows_device import signed_http
from fedrows_device.__main__ import main as device_main
from fedrows_device.session import DeviceSession, LoadedPrograms, SessionError
from fedrows_device.signed_http import GatewayRefused, GatewayUnreachable, SignedHttp
from fedrows_device.storage import DeviceStorage, StorageError

from fedrows.data.federation import FederatedData
from fedrows.flower.gateway.joining_devices import gateway_of
from fedrows.flower.gateway.limits import RequestRate
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import GatewayLimits, application
from fedrows.flower.node import joining
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import DeployedTask
from fedrows.rows.ragged import Ragged

__all__ = ["GatewayRefused", "SessionError", "StorageError", "device_main", "signed_http"]
FREE = RequestRate(1e6, 1e6)
GENEROUS = GatewayLimits(per_device=FREE, per_address=FREE, after=0.05)


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serves an application on a free port of this machine, without TLS; gives its address."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=512)
    config = uvicorn.Config(app, log_level="error", access_log=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        while not server.started and thread.is_alive():
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
        listening.close()


def gateway_node(
    task: DeployedTask,
    config: Mapping[str, Any],
    data: FederatedData,
    folder: Path,
    **own: Any,
) -> Callable[[bytes], bytes]:
    """The node side of a gateway, made anew for every message, as Flower does."""

    def answer(message: bytes) -> bytes:
        here, state = replace(task, shard=lambda _: data), NodeState(folder)
        return joining.answer(here, config, {"name": "gate", **own}, state, message, gateway_of)

    return answer


def write_examples(data: FederatedData, client: int, path: Path) -> Path:
    """Writes the training examples of one client as a device's file."""
    train = data.train
    low, high = int(train.splits[client]), int(train.splits[client + 1])
    ids = {}
    for name, column in train.ids.items():
        if isinstance(column, Ragged):
            ends = column.splits.tolist()
            ids[name] = [column.values[ends[i] : ends[i + 1]].tolist() for i in range(low, high)]
        else:
            ids[name] = column[low:high].tolist()
    numbers = {name: x[low:high].tolist() for name, x in train.numbers.items()}
    columns = {"ids": ids, "label": train.label[low:high].tolist(), "numbers": numbers}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(columns))
    return path


class Devices:
    """Devices in threads: client i of some data is a device each, named so that they sort alike."""

    def __init__(
        self,
        url: str,
        store: GatewayStore,
        data: FederatedData,
        folder: Path,
        ca: Path | None = None,
    ) -> None:
        self.url, self.store, self.data, self.folder, self.ca = url, store, data, folder, ca
        self.programs, self.stop = LoadedPrograms(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.failures: list[BaseException] = []

    def session(self, client: int) -> DeviceSession:
        """The session of a device, enrolled; made again it goes on with what the device has."""
        home = self.folder / f"device-{client}"
        examples = home / "examples.json"
        if not examples.exists():
            write_examples(self.data, client, examples)
        made = DeviceSession(
            SignedHttp(self.url, self.ca), DeviceStorage(home / "state"), examples, self.programs
        )
        if not made.is_enrolled:
            made.enrol(self.store.make_token(), f"device-{client:05d}")
        return made

    def run(self, clients: range) -> None:
        """Starts a thread for every client."""
        for client in clients:
            thread = threading.Thread(target=self._run, args=[client], daemon=True)
            self.threads.append(thread)
            thread.start()

    def _run(self, client: int) -> None:
        session: DeviceSession | None = None
        try:
            session = self.session(client)
            while not self.stop.is_set():
                try:
                    step = session.step(wait=1)
                except GatewayUnreachable:
                    if self.stop.is_set():
                        return
                    time.sleep(0.05)
                    continue
                self.stop.wait(min(step.after, 0.2))
        except GatewayRefused as error:
            if not self.stop.is_set():
                self.failures.append(error)
        except BaseException as error:
            self.failures.append(error)
        finally:
            if session is not None:
                session.http.close()
            self.store.close()

    def __enter__(self) -> Devices:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(30)
        assert not self.failures, self.failures


@contextlib.contextmanager
def gateway(
    folder: Path, data: FederatedData, limits: GatewayLimits = GENEROUS
) -> Iterator[tuple[Devices, GatewayStore]]:
    """A gateway's web side with a folder of its own, and its devices, none of which runs yet."""
    store = GatewayStore(folder / "gate")
    with (
        serving(application(store, limits=limits)) as url,
        Devices(url, store, data, folder) as devices,
    ):
        yield devices, store
