"""Those who were asked to watch, opened together and told everything together."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.options import check, option
from fedrows.watch import writers
from fedrows.watch.logs import without_secrets
from fedrows.watch.observer import Facts, Observer, Run, WatchError

FAILURES = 3  # in a row, after which an observer is left out
LONGEST = 200  # letters of an error that comes from elsewhere


@dataclass(frozen=True)
class Watching:
    """Who watches a run, and where they write."""

    log: str | None = option(
        None,
        "Log every round as lines of text or of JSON, on stderr unless --log-file names a file.",
        choices=("text", "json", "off"),
    )
    log_file: str | None = option(None, "The file that log lines are added to.")
    log_level: str = option(
        "info", "The least important lines that are logged.", choices=("info", "warning", "error")
    )
    metrics_file: str | None = option(
        None, "Keep a file for the textfile collector of Prometheus' node_exporter (NAME.prom)."
    )
    metrics_port: int | None = option(
        None, "Serve Prometheus on this port, at /metrics; 0 takes a free one.", least=0, most=65535
    )
    metrics_host: str = option("127.0.0.1", "The address that --metrics-port listens on.")
    tensorboard: str | None = option(None, "Write for TensorBoard into this folder.")
    mlflow: str | None = option(None, "Write to this MLflow server (http://…) or folder.")

    def __post_init__(self) -> None:
        check(self)


@contextmanager
def opened(watching: Watching) -> Iterator[Observers]:
    """Everyone who was asked to watch; closed, whatever happens.

    What cannot be opened (a port in use, a package that is missing) is an error here, before a run
    has begun.
    """
    found: list[Observer] = []
    observers = Observers(found)
    try:
        for name in names():
            writer = importlib.import_module(f"fedrows.watch.writers.{name}")
            observer: Observer | None = writer.opened(watching)
            if observer is not None:
                found.append(observer)
        yield observers
    finally:
        observers.close()


def names() -> list[str]:
    """The writers that there are; a new one is a file in writers/ with a function `opened`."""
    return sorted(module.name for module in pkgutil.iter_modules(writers.__path__))


class Observers:
    """Several observers as one. One that fails is told of in the log; the run goes on.

    Only the first beginning is strict: nobody starts unseen who asked to be watched. Who fails to
    begin, or `FAILURES` times in a row, is told nothing more of that run.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = observers
        self._begun = False
        self._failures: dict[int, int] = {}  # by place, in a row

    @property
    def addresses(self) -> list[str]:
        """Where those who can be asked are to be asked."""
        found = (getattr(observer, "address", None) for observer in self._all)
        return [address for address in found if address is not None]

    def begin(self, run: Run) -> None:
        self._failures.clear()
        for place, observer in enumerate(self._all):
            try:
                observer.begin(run)
            except Exception as error:
                if not self._begun:
                    name = type(observer).__name__
                    raise WatchError(f"{name} cannot be written ({why(error)}).") from error
                self._failures[place] = FAILURES
                _warn(observer, error, FAILURES)
        self._begun = True

    def round(self, facts: Facts) -> None:
        self._tell(lambda observer: observer.round(facts))

    def measured(self, line: Mapping[str, Any]) -> None:
        self._tell(lambda observer: observer.measured(line))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._tell(lambda observer: observer.event(name, fields))

    def end(self, done: bool) -> None:
        self._tell(lambda observer: observer.end(done))

    def close(self) -> None:
        self._tell(lambda observer: observer.close(), closing=True)

    def _tell(self, what: Callable[[Observer], None], closing: bool = False) -> None:
        everyone = list(enumerate(self._all))
        for place, observer in reversed(everyone) if closing else everyone:  # the log closes last
            failures = self._failures.get(place, 0)
            if failures >= FAILURES and not closing:
                continue
            try:
                what(observer)
                self._failures[place] = 0
            except Exception as error:
                self._failures[place] = failures + 1
                if failures in (0, FAILURES - 1):
                    _warn(observer, error, failures + 1)


def _warn(observer: Observer, error: Exception, failures: int) -> None:
    """Says that an observer has failed; with no log asked for, Python's own goes to stderr."""
    name = type(observer).__name__
    end = "it is left out from here on" if failures == FAILURES else "the run goes on"
    logging.getLogger("fedrows.watch").warning("%s failed (%s): %s.", name, why(error), end)


def why(error: Exception) -> str:
    """An error in one line of bearable length."""
    text = without_secrets(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def missing(flag: str, package: str, extra: str) -> FedrowsError:
    """The error of a writer whose package is not installed."""
    return FedrowsError(f"{flag} needs the package {package}: pip install fedrows[{extra}].")
