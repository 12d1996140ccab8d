"""Prometheus: counters and gauges as text, in a file or behind a port of this process.

The file is for node_exporter's textfile collector: it is always whole, and written at most once a
second. Counters begin at 0 with the process, as Prometheus expects of them; `fedrows_round` goes on
where the run does.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from fedrows.files.whole import placing, reason
from fedrows.measure.summary import METRICS
from fedrows.version import __version__
from fedrows.watch.observer import BufferReport, NodeReport, RoundReport, RunInfo, WatchError
from fedrows.watch.watching import Watching, imported

EVERY = 1.0  # seconds between two writings of the file
BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds

# name → (type, help, labels beside the run's name)
METERS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "run_info": (
        "Gauge",
        "What the run is, in its labels; always 1.",
        ("version", "task", "algorithm"),
    ),
    "running": ("Gauge", "1 while the run goes, 0 when it is done or was stopped.", ()),
    "round": ("Gauge", "The last finished round.", ()),
    "planned_rounds": ("Gauge", "The round that the run ends with.", ()),
    "last_round_timestamp_seconds": (
        "Gauge",
        "When the last round was finished, or the run was begun.",
        (),
    ),
    "rounds_total": ("Counter", "Rounds finished by this process.", ()),
    "asked_total": ("Counter", "Clients that were asked to train.", ()),
    "answers_total": ("Counter", "Clients whose update was used.", ()),
    "dropouts_total": ("Counter", "Clients that were asked and did not answer in time.", ()),
    "rejected_uploads_total": ("Counter", "Uploads that were refused, by reason.", ("reason",)),
    "bytes_total": (
        "Counter",
        "Bytes of models and updates, down to clients and up from them.",
        ("direction",),
    ),
    "phase_seconds": ("Histogram", "How long each phase of a round took.", ("phase",)),
    "node_up": (
        "Gauge",
        "1 while a node of a deployed run answers, 0 while it does not.",
        ("node",),
    ),
    "node_last_answer_timestamp_seconds": (
        "Gauge",
        "When a node of a deployed run last answered.",
        ("node",),
    ),
    "node_refusals_total": (
        "Counter",
        "What was refused of a node and of its clients, by reason.",
        ("node", "reason"),
    ),
    "buffered_updates": (
        "Gauge",
        "Of an asynchronous deployed run: updates that have come in for the next step.",
        (),
    ),
    "update_age_mean_steps": ("Gauge", "The mean age of the updates of the last step.", ()),
    "update_age_max_steps": ("Gauge", "The age of the oldest update of the last step.", ()),
    "node_clients_under_way": (
        "Gauge",
        "Clients of a node that train at the moment, in an asynchronous deployed run.",
        ("node",),
    ),
    "events_total": ("Counter", "Other things that happened, by name.", ("event",)),
    **{
        name: ("Gauge", f"The {title}, last evaluated.", ())
        for name, (title, *_) in METRICS.items()
    },
}


def opened(watching: Watching) -> Prometheus | None:
    """The file and the endpoint that were asked for."""
    if watching.metrics_file is None and watching.metrics_port is None:
        return None
    flag = "--metrics-port" if watching.metrics_file is None else "--metrics-file"
    client = imported("prometheus_client", flag, "prometheus-client", "prometheus")
    path = Path(watching.metrics_file) if watching.metrics_file else None
    return Prometheus(client, path, watching.metrics_port, watching.metrics_host)


class Prometheus:
    """Counts what a run does, for whoever scrapes it; `port` is where, if anywhere."""

    def __init__(
        self,
        client: Any,
        path: Path | None = None,
        port: int | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        client.disable_created_metrics()  # a time beside every counter tells nobody anything
        self._client, self._registry = client, client.CollectorRegistry()
        self._meters = {name: self._meter(name, *about) for name, about in METERS.items()}
        self._path, self._run, self._next_write = path, "", 0.0
        self._nodes: set[str] = set()
        self._refused: dict[tuple[str, str], int] = {}  # node, reason → how often, as counted
        if path is not None:
            self._write_first(path)
        metrics = client.make_wsgi_app(self._registry)
        self._server = None if port is None else _serve(metrics, host, port)
        self.port: int | None = None if self._server is None else self._server.server_port
        self.address = None if self.port is None else f"http://{host}:{self.port}/metrics"

    def begin(self, run: RunInfo) -> None:
        self._run = run.name
        about = {"version": __version__}
        for kind in ("task", "algorithm"):
            settings = run.config.get(kind)
            about[kind] = str(settings.get("name", "")) if isinstance(settings, Mapping) else ""
        self._set("run_info", 1, **about)
        self._set("running", 1)
        self._set("round", run.at)
        self._set("planned_rounds", run.rounds)
        self._set("last_round_timestamp_seconds", time.time())  # so that a first round can be late
        for name in ("rounds", "asked", "answers", "dropouts"):
            self._count(f"{name}_total", 0)  # there from the start, so that rates begin with it
        self._write(at_once=True)

    def round(self, report: RoundReport) -> None:
        self._set("round", report.round)
        self._set("last_round_timestamp_seconds", time.time())
        self._count("rounds_total", 1)
        self._count("asked_total", report.asked)
        self._count("answers_total", report.answered)
        self._count("dropouts_total", report.dropped)
        for why, uploads in report.rejected.items():
            self._count("rejected_uploads_total", uploads, reason=why)
        for direction, size in (("down", report.bytes_down), ("up", report.bytes_up)):
            if size is not None:
                self._count("bytes_total", size, direction=direction)
        for phase, seconds in report.seconds.items():
            self._labelled("phase_seconds", phase=phase).observe(seconds)
        for gone in self._nodes - report.nodes.keys():  # it takes no part any longer
            self._set("node_up", 0, node=gone)
        self._nodes |= report.nodes.keys()
        for node, node_report in report.nodes.items():
            self._node(node, node_report)
        if report.buffer is not None:
            self._buffer(report.buffer)
        self._write()

    def _buffer(self, buffer: BufferReport) -> None:
        self._set("buffered_updates", buffer.waiting)
        self._set("update_age_mean_steps", sum(buffer.ages) / max(len(buffer.ages), 1))
        self._set("update_age_max_steps", max(buffer.ages, default=0))
        for node in self._nodes | buffer.under_way.keys():
            self._set("node_clients_under_way", buffer.under_way.get(node, 0), node=node)

    def _node(self, name: str, node: NodeReport) -> None:
        self._set("node_up", node.away is None, node=name)
        if node.last_answer is not None:
            self._set("node_last_answer_timestamp_seconds", node.last_answer, node=name)
        for why, count in node.refused.items():
            before = self._refused.get((name, why), 0)
            self._count("node_refusals_total", max(count - before, 0), node=name, reason=why)
            self._refused[name, why] = count

    def measured(self, line: Mapping[str, Any]) -> None:
        for name in METRICS:
            if line.get(name) is not None:
                self._set(name, line[name])
        self._write()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._count("events_total", 1, event=name)
        self._write()

    def end(self, done: bool) -> None:
        self._set("running", 0)
        self._write(at_once=True)

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        if self._run:
            self._set("running", 0)
            self._write(at_once=True)

    def text(self) -> str:
        """Everything, as Prometheus reads it."""
        return str(self._client.generate_latest(self._registry), "utf-8")

    def _meter(self, name: str, kind: str, about: str, labels: tuple[str, ...]) -> Any:
        more = {"buckets": BUCKETS} if kind == "Histogram" else {}
        of = getattr(self._client, kind)
        return of(f"fedrows_{name}", about, ("run", *labels), registry=self._registry, **more)

    def _labelled(self, name: str, **labels: str) -> Any:
        return self._meters[name].labels(run=self._run, **labels)

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._labelled(name, **labels).set(value)

    def _count(self, name: str, more: float, **labels: str) -> None:
        self._labelled(name, **labels).inc(more)

    def _write(self, at_once: bool = False) -> None:
        if self._path is None or (time.monotonic() < self._next_write and not at_once):
            return
        self._next_write = time.monotonic() + EVERY
        with placing(self._path) as part:
            part.write_text(self.text(), "utf-8", newline="\n")

    def _write_first(self, path: Path) -> None:
        """Raises now if the file cannot be written."""
        try:
            if path.is_dir():
                raise IsADirectoryError(0, "it is a folder")
            self._write(at_once=True)
        except OSError as error:
            raise WatchError(
                f"--metrics-file {path} cannot be written ({reason(error)}): name another file."
            ) from error


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False  # a reader that hangs must not hold a run up
    allow_reuse_address = os.name == "posix"  # a port that was just left is free


class _Handler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, *_: Any) -> None:
        """Nothing: a scrape every few seconds is no news."""


def _serve(metrics: Callable[..., Iterable[bytes]], host: str, port: int) -> WSGIServer:
    """A thread that answers GET /metrics."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return metrics(environ, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [b"See /metrics.\n"]

    try:
        server = make_server(host, port, answer, _Server, _Handler)
    except OSError as error:
        raise WatchError(
            f"--metrics-port {port} on {host} cannot be opened ({reason(error)}): "
            "name another port, or 0 for a free one."
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
