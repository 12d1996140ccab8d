"""Disks that fill, clocks that jump, connections that reset: a run says why, and goes on."""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from faults import FaultyFederation, install_clock
from nursery import patience

from benchmarks.federation_faults import kill_node, kill_serverapp, kill_superlink, start_node
from fedrows import catalogue
from fedrows.cli.settings import choose
from fedrows.errors import FedrowsError
from fedrows.flower.demo import federate, write_project
from fedrows.flower.journal import ROUNDS
from fedrows.flower.launch import certificates
from fedrows.flower.launch.notices import notices_in
from fedrows.flower.launch.resubmit import submit_until_done
from fedrows.report.exchange import read_rounds

pytestmark = [pytest.mark.slow(minutes=1), pytest.mark.usefixtures("quick_starts")]
LIMIT = 600.0  # seconds, which only a failure takes
HOUR = r"\b36\d\d s "  # that a clock was set by, and what a request waited


class Watched:
    """A federation with a run that does not end, and what the one who waits for it was told."""

    def __init__(self, federation: FaultyFederation, out: Path) -> None:
        self.federation, self.out = federation, out
        self.said: list[str] = []

    def rounds(self) -> list[dict[str, Any]]:
        return read_rounds(self.out / ROUNDS) if (self.out / ROUNDS).exists() else []

    def until(self, true: Callable[[], bool], what: str) -> None:
        limit = time.monotonic() + LIMIT
        while not true():
            assert not self.federation.ended(), (what, self.federation.ended())
            assert time.monotonic() < limit, (what, self.said[-5:])
            time.sleep(0.1)

    def goes_on(self, rounds: int = 2) -> None:
        wanted = len(self.rounds()) + rounds
        self.until(lambda: len(self.rounds()) >= wanted, "no more rounds")

    def says(self, words: str, where: str = "") -> None:
        """Waits until the one who submitted the run is told so, or a log says it."""

        def told() -> bool:
            log = self.federation.logs / f"{where}.log"
            lines = notices_in(log.read_text()) if where else self.said
            return any(re.search(words, line) for line in lines)

        self.until(told, f"{where} never said {words}")


@contextmanager
def running(folder: Path, nodes: int, **terms: Any) -> Iterator[Watched]:
    words = {"device": "cpu", "clients": "40", "rounds": "100000", "evaluate_every": "100000"}
    words |= {"clients_per_round": "10"}
    settings = choose(catalogue.task("synthetic"), ["fedsubavg"], words)["fedsubavg"]
    work, out = folder / "work", folder / "run"
    specs = federate(work, settings.task.load(settings.options), nodes).nodes
    certificates.make_authority(folder / "keys")
    certificates.make_server(folder / "keys", ["localhost"])
    for spec in specs:
        certificates.make_node_key(folder / "keys", spec.name)
    keys = certificates.open_certificates(folder / "keys", [spec.name for spec in specs])
    project = write_project(folder / "project", settings, terms, out, work / "data")
    with FaultyFederation(work, specs, keys) as federation:
        watched = Watched(federation, out)

        def submit() -> None:
            try:
                submit_until_done(federation.control, project, {}, 20, watched.said.append)
            except FedrowsError as error:  # the SuperLink is taken down in the end
                watched.said.append(str(error))

        threading.Thread(target=submit, daemon=True).start()
        watched.goes_on(1)
        yield watched


def test_a_full_disk_and_wrong_clocks_are_said_and_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(install_clock(tmp_path / "clock")))
    with running(tmp_path, 2, min_nodes=2, timeout=patience()) as watched:
        federation = watched.federation
        federation.limit_files(4096)
        watched.says("The SuperLink's database cannot be used")
        watched.says("The SuperLink's database cannot be used", "node-0")
        federation.limit_files(-1)
        watched.goes_on()

        federation.set_clock("superlink", 3600)
        watched.says(HOUR + "behind the SuperLink's: it takes part when")
        for node in ("node-0", "node-1"):
            watched.says(f"The clock of this node is {HOUR}behind", node)
        federation.set_clock("superlink", 0)
        watched.goes_on()

        federation.set_clock("node-0", 3600)
        watched.says(r"\b3[56]\d\d s ahead of the SuperLink's: it takes part when")
        watched.says(r"The clock of this node is 3[56]\d\d s ahead", "node-0")
        federation.set_clock("node-0", 0)
        full = len(watched.rounds())
        watched.until(
            lambda: any(line["answered"] == 10 for line in watched.rounds()[full + 1 :]),
            "the node is not back",
        )
    numbers = [line["round"] for line in watched.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_chaos_on_the_network(tmp_path: Path) -> None:
    """Connections are reset, nodes and the ServerApp killed: it is said, and rounds count once."""
    with running(tmp_path, 2, min_nodes=2, timeout=patience(), min_answers=2) as watched:
        federation = watched.federation
        relay = federation.relay
        assert relay is not None
        relay.rate = 0.8
        watched.says("connections to the SuperLink broke off within 10 s")
        watched.until(lambda: relay.resets > 3, "no connections are reset")
        relay.rate = 0.15
        watched.goes_on()
        kill_node(federation, 1)
        start_node(federation, 1)
        kill_serverapp(federation)
        watched.goes_on()
    numbers = [line["round"] for line in watched.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_slow_network_only_takes_longer(tmp_path: Path) -> None:
    """Rounds go on, and all answer, behind 50 ms, 250 ms and 8 kB a second."""
    with running(tmp_path, 2, min_nodes=2, timeout=patience()) as watched:
        relay = watched.federation.relay
        assert relay is not None
        for relay.delay, relay.speed in ((0.05, math.inf), (0.25, math.inf), (0.0, 8000.0)):
            before, passed = len(watched.rounds()), relay.up
            watched.goes_on(3)
            watched.until(
                lambda start=before: any(x["answered"] == 10 for x in watched.rounds()[start:]),
                "not all have answered a round",
            )
            assert relay.up > passed
    numbers = [line["round"] for line in watched.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_deleted_database_costs_no_round(tmp_path: Path) -> None:
    """The SuperLink goes on with the file that it has open; the next one has an empty one."""
    with running(tmp_path, 1, min_nodes=1, timeout=patience()) as watched:
        federation = watched.federation
        for file in federation.folder.glob("superlink.db*"):
            file.unlink()
        watched.goes_on()
        kill_node(federation, 0)
        kill_superlink(federation)
        federation.start_superlink()
        watched.says("the SuperLink knows nothing of it, for its database was deleted")
        federation.admit_nodes()
        start_node(federation, 0)
        watched.goes_on()
    numbers = [line["round"] for line in watched.rounds()]
    assert numbers == list(range(1, len(numbers) + 1))
