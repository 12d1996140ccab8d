"""One federation of tabs, processes and threads behind one gateway, some of which die meanwhile.

Every device takes part in every round, so a round goes on only when whoever died is back.

    the first tab      is reloaded before its rows come, before its update goes, and before it
                       hears that this was taken
    the second tab     is closed with its update on the way, and opened again
    the processes      are killed (kill -9) at each of these points, and started again
    all other devices  are threads of this process, with the code of the light client
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from browser_federation import Served
from gateway_devices import Devices, write_examples
from meddled_wire import Swallowed, meddled

from fedrows.flower.gateway import gateway_node

CLIENTS = Path(__file__).parents[1] / "clients" / "python"
POINTS = ("before the rows come", "before the update goes", "before it hears of it")


class MixedError(AssertionError):
    """A run of devices that did not go as it should."""


class FragileTab:
    """A tab that is reloaded, or closed and opened again, where most could be lost."""

    def __init__(self, it: Served, context: Any, client: int, points: tuple[str, ...]) -> None:
        self.it, self.context, self.client = it, context, client
        self.points, self.broken, self.errors = list(points), False, list[str]()
        self.tab = it.open(context, client, self._page())

    def _page(self) -> Any:
        page = self.context.new_page()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.route("**/v1/work/*", self._pass)
        return page

    def _pass(self, route: Any) -> None:
        point, method = self.points[0] if self.points else "", route.request.method
        if not point or self.broken or method != ("GET" if "rows" in point else "PUT"):
            route.continue_()
            return
        if "hears" in point and route.fetch().json()["state"] != "taken":
            raise MixedError("The gateway did not take an update.")
        self.points.pop(0)
        self.broken = True  # the request is never answered: the tab goes away meanwhile

    def reload(self) -> bool:
        """Reloads the tab if it has come to such a point."""
        if self.broken:
            self.tab.reload()
            self.broken = False
            return True
        return False

    def close_and_open(self) -> bool:
        """Closes the tab if it has come to such a point, and opens it in a new one."""
        if self.broken:
            self.tab.close()
            time.sleep(0.5)  # the others go on meanwhile
            self.broken = False
            self.tab = self._page()
            self.tab.goto(f"{self.it.url}/?device=device-{self.client:05d}")
            return True
        return False


class FragileProcess:
    """A light client in a process of its own that is killed at such points."""

    def __init__(self, it: Served, client: int) -> None:
        self.points, self.killed = list(POINTS), list[str]()
        self._it, self._client = it, client
        self._until_closed = contextlib.ExitStack()
        self.url = self._until_closed.enter_context(meddled(it.url, self._before))
        self._home = it.folder / f"process-{client}"
        self._token, self._process = it.store.make_token(), None
        write_examples(it.data, client, self._home / "examples.json")
        self.start()

    def start(self) -> None:
        """Starts it, or starts it again if it was killed."""
        process = self._process
        if process is not None and process.poll() is None:
            return
        if process is not None and process.returncode != -9:
            raise MixedError(f"A device ended by itself with code {process.returncode}.")
        own = ["--gateway", self.url, "--data", str(self._home / "examples.json")]
        own += ["--state", str(self._home / "state"), "--name", f"device-{self._client:05d}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fedrows_device", *own, "--token", self._token],
            env={**os.environ, "PYTHONPATH": str(CLIENTS), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
        )

    def _before(self, line: str) -> int | None:
        point = self.points[0] if self.points else ""
        if not point or not line.startswith("GET /v1/work" if "rows" in point else "PUT /v1/work"):
            return None
        self.killed.append(self.points.pop(0))
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        if "hears" in point:
            return None  # the request goes on, and nobody hears the answer
        raise Swallowed

    def close(self) -> None:
        """Ends it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._until_closed.close()


@contextlib.contextmanager
def _processes(it: Served, clients: range) -> Iterator[list[FragileProcess]]:
    made: list[FragileProcess] = []
    try:
        made += [FragileProcess(it, client) for client in clients]
        yield made
    finally:
        for one in made:
            one.close()


def mixed_run(it: Served, browser: Any, tabs: int, processes: int) -> dict[str, Any]:
    """Carries out a run of all kinds of devices; returns what happened to them."""
    every, context = it.data.clients, browser.new_context()
    happened = Counter[str]()
    with (
        mock.patch.object(gateway_node, "ENROL_SECONDS", 600.0),  # on a busy machine
        Devices(it.url, it.store, it.data, it.folder) as devices,
        _processes(it, range(tabs, tabs + processes)) as fragile,
    ):
        it.start()
        devices.run(range(tabs + processes, every))
        first = FragileTab(it, context, 0, POINTS)
        second = FragileTab(it, context, 1, POINTS[1:2])
        rest = [it.open(context, client) for client in range(2, tabs)]
        assert it.thread is not None
        while it.thread.is_alive():
            first.tab.wait_for_timeout(20)
            happened["tabs reloaded"] += first.reload()
            happened["tabs closed and opened again"] += second.close_and_open()
            for one in fragile:
                one.start()
        killed = [len(one.killed) for one in fragile]
    context.close()
    if it.failed:
        raise MixedError(f"The run failed: {it.failed[0]!r}") from it.failed[0]
    if first.points or second.points or killed != [len(POINTS)] * processes:
        raise MixedError(f"Not all that was to be broken was broken: {killed}.")
    if errors := first.errors + second.errors:
        raise MixedError(f"A page met an error: {errors[0]}")
    happened["processes killed"] = sum(killed)
    own = {"tabs": 2 + len(rest), "processes": processes, "threads": every - tabs - processes}
    return {**own, **happened}
