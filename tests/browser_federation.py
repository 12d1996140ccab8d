"""A server, a gateway and its page in this process, for devices that are tabs of Chromium."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployed import run
from gateway_devices import GENEROUS, gateway_node, serving, write_examples
from loopback import federation

from fedrows.data.federation import FederatedData
from fedrows.flower.gateway.store import GatewayStore
from fedrows.flower.gateway.web import application
from fedrows.flower.server.fleet import FlowerFleet
from fedrows.flower.wire.contract import DeployedTask
from fedrows.server import Progress


@dataclass
class Served:
    """A gateway with its page, and the server's side of its federation."""

    url: str
    store: GatewayStore
    fleet: FlowerFleet
    data: FederatedData
    folder: Path
    found: list[Progress] = field(default_factory=list)
    failed: list[BaseException] = field(default_factory=list)
    thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins the run, in a thread: the tabs are driven from here."""
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.found.append(run(self.fleet, self.data))
        except BaseException as error:
            self.failed.append(error)

    def examples(self, client: int) -> Path:
        """The file of a client's examples, as a person chooses it in the page."""
        return write_examples(self.data, client, self.folder / f"examples-{client}.json")

    def open(self, context: Any, client: int, page: Any = None, more: str = "") -> Any:
        """A tab that is a device: the token and the file are given to its form."""
        page = page or context.new_page()
        page.goto(f"{self.url}/?device=device-{client:05d}{more}")
        page.locator("#token").fill(self.store.make_token())
        page.locator("#file").set_input_files(self.examples(client))
        page.get_by_role("button", name="Take part").click()
        page.locator("#enrol").wait_for(state="hidden")
        return page

    def wait(self, page: Any) -> Progress:
        """The end of the run; the page must be turned meanwhile, for it answers to this thread."""
        assert self.thread is not None
        while self.thread.is_alive():
            page.wait_for_timeout(50)
        assert not self.failed, self.failed
        return self.found[0]


@contextlib.contextmanager
def served(
    task: DeployedTask,
    config: dict[str, Any],
    data: FederatedData,
    folder: Path,
    page: Path,
    **own: Any,
) -> Iterator[Served]:
    """A gateway for all clients of some data, with a page for browsers."""
    fleet, loopback = federation(task, config, {}, folder)
    own = {"devices": data.clients, **own}
    loopback.here[1] = gateway_node(task, config, data, folder / "gate", **own)
    store = GatewayStore(folder / "gate")
    with serving(application(store, page, limits=GENEROUS)) as url:
        yield Served(url, store, fleet, data, folder)


def lines_of(page: Any, device: str) -> list[dict[str, Any]]:
    """The history in a tab's own storage."""
    return page.evaluate(STORED, [device, "history"]) or []


STORED = """([device, name]) => new Promise((resolve, reject) => {
  const opening = indexedDB.open(`fedrows device ${device}`);
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const store = opening.result.transaction("things").objectStore("things");
    const asked = name ? store.get(name) : store.getAllKeys();
    asked.onsuccess = () => { opening.result.close(); resolve(asked.result); };
  };
})"""

__all__ = ["STORED", "Served", "lines_of", "served"]
