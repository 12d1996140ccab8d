"""The devices of a simulated fleet: how fast each computes and sends, and when it is there.

An update of client i takes

    bytes down / down_i  +  (examples + ROW · rows) / speed_i  +  bytes up / up_i      seconds,

times a jitter of its own for every start. All numbers are drawn by counters from the seed, or read
from a file. The named kinds of devices share one typical device and differ in their spread:

    constant     every device is the typical one, always there, and never drops out
    log-normal   speed and network divided by exp(z), z normal; jitter exp(z / 4); 2 % drop out;
                 there for 16 hours a day
    heavy-tail   speed and network divided by a Pareto number with α = 1.2, at most 1,000: one in a
                 hundred is 46 times as slow as the fastest, one in a thousand 316 times; jitter
                 exp(z / 4); 5 % drop out; there for 8 to 24 hours a day
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedrows.errors import DataError, UnknownNameError
from fedrows.files.whole import reason
from fedrows.plan import CLOCKS
from fedrows.seeds import DEVICE, bits, host_bits, key, normal, uniform

SPEED, DOWN, UP = 50.0, 1e6, 2.5e5  # of the typical device: examples and bytes per second
ROW = 0.01  # what a row costs, in examples: it is read and written once
HOUR, DAY = 3600.0, 86400.0
_COLUMNS = ("client", "speed", "down", "up", "dropout", "opens", "hours")
_TAIL, _SLOWEST, _JITTER = 1.2, 1000.0, 0.25


@dataclass(frozen=True)
class Devices:
    """One device per client; every tensor is (N,) float64 on the CPU."""

    speed: Tensor  # examples per second
    down: Tensor  # bytes per second
    up: Tensor
    dropout: Tensor  # the probability that an update never arrives
    opens: Tensor  # the hour of the day at which a device is there
    hours: Tensor  # and for how many hours, at most 24
    jitter: float = 0.0
    seed: int = 0

    @cached_property
    def opens_of(self) -> np.ndarray:
        """The same memory as `opens`: to look at few clients, NumPy takes less time."""
        return self.opens.numpy()

    @cached_property
    def hours_of(self) -> np.ndarray:
        """The same memory as `hours`."""
        return self.hours.numpy()

    @property
    def present(self) -> Tensor:
        """How often an update of each client arrives, against one that is always there: (N,)."""
        return self.hours / 24 * (1 - self.dropout)

    @property
    def always(self) -> bool:
        """Whether every device is there all day."""
        return bool((self.hours >= 24).all())

    def typical_seconds(self, work: UpdateWork) -> Tensor:
        """How long an update of every client takes, but for its jitter: (N,)."""
        compute = (work.examples + ROW * work.rows) / self.speed
        return work.down / self.down + compute + work.up / self.up

    @property
    def mean_jitter(self) -> float:
        """What the jitter is on average: exp(z · jitter) with a normal z."""
        return math.exp(self.jitter**2 / 2)

    def jitters(self, clients: Tensor, starts: Tensor) -> Tensor | float:
        """What an update takes that a client begins, against the typical; `starts` counts: (k,)."""
        if not self.jitter:
            return 1.0
        return torch.exp(self.jitter * normal(self._random(0, clients, starts)))

    def drops(self, clients: Tensor, starts: Tensor) -> Tensor:
        """Whether an update that a client begins never arrives: (k,)."""
        share = self.dropout[clients]
        if not bool(share.any()):
            return torch.zeros(len(clients), dtype=torch.bool)
        return uniform(self._random(1, clients, starts)) < share

    def there(self, clients: np.ndarray, now: float) -> np.ndarray:
        """Whether clients are there at a time: (k,)."""
        hours = self.hours_of[clients]
        open_now: np.ndarray = (now / HOUR - self.opens_of[clients]) % 24 < hours
        return open_now | (hours >= 24)

    def next_opening(self, now: float) -> float:
        """The next time at which a device that is not there now will be; infinite if all are."""
        waiting = (self.opens - now / HOUR) % 24
        waiting = waiting[torch.from_numpy(~self.there(np.arange(len(self.opens)), now))]
        return now + float(waiting.min()) * HOUR if len(waiting) else math.inf

    def _random(self, use: int, clients: Tensor, starts: Tensor) -> Tensor:
        return torch.from_numpy(
            host_bits(key(self.seed, DEVICE, use), (clients.numpy() << 32) + starts.numpy())
        )


@dataclass(frozen=True)
class UpdateWork:
    """What an update of each client takes: (N,) each."""

    examples: Tensor
    rows: Tensor
    down: Tensor  # bytes
    up: Tensor


def devices_of(clock: str, clients: int, seed: int, names: Sequence[object] | None) -> Devices:
    """The devices that a clock names: a kind of devices, or a file with a row for every client."""
    if clock in CLOCKS:
        return drawn(clock, clients, seed)
    return read(Path(clock), clients, seed, names)


def drawn(kind: str, clients: int, seed: int) -> Devices:
    """Devices of a named kind, drawn by counters: client i is the same in any federation."""

    def random(use: int) -> Tensor:
        return bits(key(seed, DEVICE, use), torch.arange(clients))

    ones = torch.ones(clients, dtype=torch.float64)
    if kind in ("none", "constant"):
        return Devices(SPEED * ones, DOWN * ones, UP * ones, 0 * ones, 0 * ones, 24 * ones)
    if kind == "log-normal":
        slow, far = torch.exp(normal(random(2))), torch.exp(normal(random(3)))
        dropout, hours = 0.02 * ones, 16 * ones
    else:
        slow, far = ((uniform(random(use)) ** (-1 / _TAIL)).clamp(max=_SLOWEST) for use in (2, 3))
        dropout, hours = 0.05 * ones, 8 + 16 * uniform(random(4))
    opens = 24 * uniform(random(5))
    return Devices(SPEED / slow, DOWN / far, UP / far, dropout, opens, hours, _JITTER, seed)


def read(path: Path, clients: int, seed: int, names: Sequence[object] | None) -> Devices:
    """Devices from a CSV file with a row for every client.

    It has the columns client and speed, and any of down, up, dropout, opens and hours.

    names: of the clients, by their numbers; the numbers themselves if None.
    """
    numbers = {str(x): i for i, x in enumerate(range(clients) if names is None else names)}
    usual = {"down": DOWN, "up": UP, "dropout": 0.0, "opens": 0.0, "hours": 24.0}
    values = {name: np.full(clients, usual.get(name, math.nan)) for name in _COLUMNS[1:]}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            _check_columns(path, rows.fieldnames or ())
            for row in rows:
                who = numbers.get(str(row["client"]))
                if who is None or who >= clients:
                    continue  # a device whose client has no training data
                if not math.isnan(values["speed"][who]):
                    raise DataError(
                        f"Line {rows.line_num} of the clock {path} is a second row for client "
                        f"{row['client']}: give each client one."
                    )
                for name in values:
                    if (text := row.get(name)) not in (None, ""):
                        values[name][who] = _number(path, rows.line_num, name, str(text))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise DataError(f"The clock {path} cannot be read ({why}).") from error
    if len(missing := np.flatnonzero(np.isnan(values["speed"]))):
        first = int(missing[0])
        raise DataError(
            f"The clock {path} has no speed for client "
            f"{first if names is None else names[first]!s}: give each client a row, "
            f"{len(missing)} of {clients} lack one."
        )
    speed, down, up, dropout, opens, hours = map(torch.from_numpy, values.values())
    return Devices(speed, down, up, dropout, opens, hours, seed=seed)


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    for name in ("client", "speed"):
        if name not in columns:
            raise DataError(f"The clock {path} has no column {name!r}: its columns are {columns}.")
    for name in columns:
        if name not in _COLUMNS:
            raise UnknownNameError(f"column of the clock {path}", name, _COLUMNS)


def _number(path: Path, line: int, name: str, text: str) -> float:
    """A number of the file, or a DataError that names its line."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    wanted = {
        "dropout": ("at least 0 and below 1", 0 <= value < 1),
        "opens": ("an hour from 0 to 24", 0 <= value <= 24),
        "hours": ("above 0 and at most 24, or its client is never there", 0 < value <= 24),
    }.get(name, ("a finite number above 0", 0 < value < math.inf))
    if not wanted[1]:
        raise DataError(
            f"Line {line} of the clock {path} cannot be right: {name} is {text!r}, but must be "
            f"{wanted[0]}."
        )
    return value
