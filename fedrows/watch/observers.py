"""Opens the writers that a run was asked for, and passes everything on to all of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedrows import catalogue
from fedrows.errors import UnknownNameError
from fedrows.watch.observer import Observer, RoundReport, RunInfo, Served, WatchError
from fedrows.watch.watching import Watching, why

FAILURES = 3  # in a row, after which an observer is left out


@contextmanager
def opened(watching: Watching) -> Iterator[Observers]:
    """Opens all writers that were asked for, and closes them whatever happens.

    What cannot be opened (a port in use, a package that is missing) is an error here, before a run
    has begun.
    """
    writers: list[Observer] = []
    observers = Observers(writers)
    try:
        for name in catalogue.built_in("writer"):
            observer: Observer | None = catalogue.own("writer", name)(watching)
            if observer is not None:
                writers.append(observer)
        writers += [_plugged(word) for word in (watching.writer or "").split(",") if word.strip()]
        yield observers
    finally:
        observers.close()


def _plugged(word: str) -> Observer:
    """The writer of a plug-in, by `NAME` or `NAME=TEXT`."""
    name, _, text = word.strip().partition("=")
    if name in catalogue.built_in("writer"):
        raise WatchError(
            f"--writer {name} is one of our own, which have flags of their own: see --help."
        )
    try:
        open_ = catalogue.writer(name)
    except UnknownNameError:
        ours = catalogue.built_in("writer")
        plugged = [known for known in catalogue.names("writer") if known not in ours]
        if not plugged:
            raise WatchError(
                f"--writer is {name!r}, but no plug-in with a writer is installed: install one, or "
                "name a file.py:function."
            ) from None
        raise UnknownNameError("writer", name, plugged) from None
    try:
        observer = open_(text)
    except Exception as error:
        raise WatchError(f"--writer {name} cannot be opened ({why(error)}).") from error
    if not isinstance(observer, Observer):
        raise WatchError(
            f"--writer {name} opened {type(observer).__name__}, which lacks a method of "
            "fedrows.watch.Observer: add it."
        )
    return observer


class Observers:
    """Several observers as one. If one fails, the log says so and the run goes on.

    Only the first `begin` is strict: a run that was to be watched does not start unseen. After it,
    an observer that fails in `begin`, or `FAILURES` times in a row, is left out for that run.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self._all = observers
        self._begun = False
        self._failures: dict[int, int] = {}  # by index, in a row

    @property
    def addresses(self) -> list[str]:
        """The addresses at which writers can be asked."""
        addresses = (x.address for x in self._all if isinstance(x, Served))
        return [address for address in addresses if address is not None]

    def begin(self, run: RunInfo) -> None:
        self._failures.clear()
        for index, observer in enumerate(self._all):
            try:
                observer.begin(run)
            except Exception as error:
                if not self._begun:
                    name = type(observer).__name__
                    raise WatchError(f"{name} cannot be written ({why(error)}).") from error
                self._failures[index] = FAILURES
                _warn(observer, error, FAILURES)
        self._begun = True

    def round(self, report: RoundReport) -> None:
        self._tell(lambda observer: observer.round(report))

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
        for index, observer in reversed(everyone) if closing else everyone:  # the log closes last
            failures = self._failures.get(index, 0)
            if failures >= FAILURES and not closing:
                continue
            try:
                what(observer)
                self._failures[index] = 0
            except Exception as error:
                self._failures[index] = failures + 1
                if failures in (0, FAILURES - 1):
                    _warn(observer, error, failures + 1)


def _warn(observer: Observer, error: Exception, failures: int) -> None:
    """Says that an observer has failed; with no log asked for, Python's own goes to stderr."""
    name = type(observer).__name__
    end = "it is left out from here on" if failures == FAILURES else "the run goes on"
    logging.getLogger("fedrows.watch").warning("%s failed (%s): %s.", name, why(error), end)
