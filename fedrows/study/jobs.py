"""A job: a run that can be made here, in another process, or on another machine.

A study's runs and a comparison's are such. They differ in what travels and in where it is kept.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Protocol

from fedrows.errors import FedrowsError
from fedrows.files.whole import Json
from fedrows.watch.observer import RoundReport, Watcher

ReportRound = Callable[[int], None]  # is told the round


class Request(Protocol):
    """A run as it travels to whoever makes it: plain data that can be pickled."""

    def make(self, heard: ReportRound) -> Json:
        """Makes the run; returns plain data as well."""


class Job(Protocol):
    """A run to make."""

    @property
    def label(self) -> str:
        """What it is called in messages."""

    @property
    def work(self) -> float:
        """How long it takes, roughly and in no unit."""

    @property
    def rounds(self) -> int:
        """How many rounds it has."""

    def request(self, elsewhere: bool) -> Request:
        """Returns what travels. elsewhere: perhaps to another machine."""

    def keep(self, content: Json) -> bool:
        """Keeps what was made; returns False if the run was stopped before its end."""


def nobody(round_: int) -> None:
    """Hears nothing."""


def attempt(request: Request, heard: ReportRound = nobody) -> tuple[Json, str]:
    """Makes a run; returns what it came to, and why it could not be made ("" if it was).

    Whatever goes wrong comes back as text: not every error can be pickled.
    """
    try:
        return request.make(heard), ""
    except FedrowsError as error:
        return {}, sentence(error)
    except Exception as error:
        traceback.print_exc()
        return {}, sentence(error)


def sentence(error: BaseException) -> str:
    """What went wrong, in one line."""
    text = " ".join(str(error).split())
    return text if isinstance(error, FedrowsError) else f"{type(error).__name__}: {text}"


class Rounds(Watcher):
    """A watcher that tells of rounds alone."""

    def __init__(self, heard: ReportRound) -> None:
        self._heard = heard

    def round(self, report: RoundReport) -> None:
        self._heard(report.round)
