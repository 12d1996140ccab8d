"""Prometheus: counters and gauges as text, in a file or behind a port of this process.

The text is exposition format 0.0.4. The file is for node_exporter's textfile collector: it is
always whole, and written at most once a second. Counters begin at 0 with the process, as
Prometheus expects of them; `fedrows_round` goes on where the run does.
"""

from __future__ import annotations

import math
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fedrows.files.whole import placing, reason
from fedrows.measure.summary import METRICS
from fedrows.version import __version__
from fedrows.watch.observer import Facts, Run, WatchError
from fedrows.watch.opened import Watching

TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVERY = 1.0  # seconds between two writings of the file
BUCKETS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)  # seconds

# name → (type, help)
METERS = {
    "run_info": ("gauge", "What the run is, in its labels; always 1."),
    "running": ("gauge", "1 while the run goes, 0 when it is done or was stopped."),
    "round": ("gauge", "The last finished round."),
    "planned_rounds": ("gauge", "The round that the run ends with."),
    "last_round_timestamp_seconds": (
        "gauge",
        "When the last round was finished, or the run was begun.",
    ),
    "rounds_total": ("counter", "Rounds finished by this process."),
    "asked_total": ("counter", "Clients that were asked to train."),
    "answers_total": ("counter", "Clients whose update was used."),
    "dropouts_total": ("counter", "Clients that were asked and did not answer in time."),
    "rejected_uploads_total": ("counter", "Uploads that were refused, by reason."),
    "bytes_total": ("counter", "Bytes of models and updates, down to clients and up from them."),
    "phase_seconds": ("histogram", "How long each phase of a round took."),
    "events_total": ("counter", "Other things that happened, by name."),
    **{name: ("gauge", f"The {title}, last evaluated.") for name, (title, *_) in METRICS.items()},
}

Labels = tuple[tuple[str, str], ...]


def opened(watching: Watching) -> Prometheus | None:
    """The file and the endpoint that were asked for."""
    if watching.metrics_file is None and watching.metrics_port is None:
        return None
    path = Path(watching.metrics_file) if watching.metrics_file else None
    return Prometheus(path, watching.metrics_port, watching.metrics_host)


class Prometheus:
    """Counts what a run does, for whoever scrapes it; `port` is where, if anywhere."""

    def __init__(
        self, path: Path | None = None, port: int | None = None, host: str = "127.0.0.1"
    ) -> None:
        self._path, self._meters, self._run = path, Meters(), ""
        self._next_write = 0.0
        if path is not None:
            self._write_first(path)
        self._server = None if port is None else _serve(self._meters, host, port)
        self.port: int | None = None if self._server is None else self._server.server_port
        self.address = None if self.port is None else f"http://{host}:{self.port}/metrics"

    def begin(self, run: Run) -> None:
        self._run = run.name
        about = {"version": __version__}
        for kind in ("task", "algorithm"):
            if isinstance(found := run.config.get(kind), Mapping):
                about[kind] = str(found.get("name", ""))
        self._set("run_info", 1, **about)
        self._set("running", 1)
        self._set("round", run.at)
        self._set("planned_rounds", run.rounds)
        self._set("last_round_timestamp_seconds", time.time())  # so that a first round can be late
        for name in ("rounds", "asked", "answers", "dropouts"):
            self._count(f"{name}_total", 0)  # there from the start, so that rates begin with it
        self._write(at_once=True)

    def round(self, facts: Facts) -> None:
        self._set("round", facts.round)
        self._set("last_round_timestamp_seconds", time.time())
        self._count("rounds_total", 1)
        self._count("asked_total", facts.asked)
        self._count("answers_total", facts.answered)
        self._count("dropouts_total", facts.dropped)
        for why, uploads in facts.rejected.items():
            self._count("rejected_uploads_total", uploads, reason=why)
        for direction, size in (("down", facts.bytes_down), ("up", facts.bytes_up)):
            if size is not None:
                self._count("bytes_total", size, direction=direction)
        for phase, seconds in facts.seconds.items():
            self._meters.observe("phase_seconds", seconds, self._labels(phase=phase))
        self._write()

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
        return self._meters.text()

    def _labels(self, **labels: str) -> Labels:
        return (("run", self._run), *labels.items())

    def _set(self, name: str, value: float, **labels: str) -> None:
        self._meters.set(name, value, self._labels(**labels))

    def _count(self, name: str, more: float, **labels: str) -> None:
        self._meters.count(name, more, self._labels(**labels))

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


class Meters:
    """Numbers by name and labels; one thread writes while others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._spread: dict[str, dict[Labels, list[float]]] = {}  # count by bucket, then the sum

    def set(self, name: str, value: float, labels: Labels = ()) -> None:
        with self._lock:
            self._values.setdefault(name, {})[labels] = value

    def count(self, name: str, more: float, labels: Labels = ()) -> None:
        with self._lock:
            its = self._values.setdefault(name, {})
            its[labels] = its.get(labels, 0) + more

    def observe(self, name: str, value: float, labels: Labels = ()) -> None:
        with self._lock:
            its = self._spread.setdefault(name, {})
            counts = its.setdefault(labels, [0.0] * (len(BUCKETS) + 2))
            counts[bisect_left(BUCKETS, value)] += 1  # a bucket has what is at most its bound
            counts[-1] += value

    def text(self) -> str:
        """All of them in the exposition format."""
        lines = []
        with self._lock:
            for name, (kind, help_) in METERS.items():
                if name not in self._values and name not in self._spread:
                    continue
                full = f"fedrows_{name}"
                lines += [f"# HELP {full} {_escaped(help_)}", f"# TYPE {full} {kind}"]
                for labels, value in self._values.get(name, {}).items():
                    lines.append(_sample(full, labels, value))
                for labels, counts in self._spread.get(name, {}).items():
                    lines += _histogram(full, labels, counts)
        return "".join(f"{line}\n" for line in lines)


def _histogram(name: str, labels: Labels, counts: list[float]) -> list[str]:
    below, lines = 0.0, []
    for bound, count in zip((*BUCKETS, math.inf), counts[:-1], strict=True):
        below += count
        lines.append(_sample(f"{name}_bucket", (*labels, ("le", _number(bound))), below))
    lines.append(_sample(f"{name}_sum", labels, counts[-1]))
    return [*lines, _sample(f"{name}_count", labels, below)]


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{key}="{_escaped(text, quoted=True)}"' for key, text in labels)
    return f"{name}{{{pairs}}} {_number(value)}"


def _escaped(text: str, quoted: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quoted else text


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a reader that hangs must not hold a run up
    allow_reuse_address = os.name == "posix"  # a port that was just left is free


def _serve(meters: Meters, host: str, port: int) -> _Server:
    """A thread that answers GET /metrics."""

    class Answer(BaseHTTPRequestHandler):
        timeout = 10
        server_version, sys_version = "fedrows", ""

        def do_GET(self) -> None:
            here = self.path.split("?")[0] == "/metrics"
            body = meters.text().encode() if here else b"See /metrics.\n"
            self.send_response(200 if here else 404)
            self.send_header("Content-Type", TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                with suppress(OSError):  # the reader has left
                    self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: Any) -> None:
            """Nothing: a scrape every few seconds is no news."""

    try:
        server = _Server((host, port), Answer)
    except OSError as error:
        raise WatchError(
            f"--metrics-port {port} on {host} cannot be opened ({reason(error)}): "
            "name another port, or 0 for a free one."
        ) from error
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return server
