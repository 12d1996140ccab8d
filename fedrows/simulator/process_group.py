"""The processes that make a run together, as torchrun starts them: who came, and who is gone.

    store     a few keys that every process reads: who is here, whose heart beats, who has spoken
    gather    the same number of numbers from every process, given to all
    alike     raises, in every process, if one of them was told something else than the others

A process has a heart, a thread that counts up a key. One whose heart stands still is gone, and
whoever waits for it says so by name. A process that takes its time, as rank 0 does while it
evaluates or saves, is waited for: its heart beats.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fedrows.errors import FedrowsError, PlanError
from fedrows.version import __version__

TIMEOUT = "FEDROWS_RANK_TIMEOUT"  # seconds without a sign of life
FAILED = 2  # exit code of a process that has lost another
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_BEAT = 0.5  # seconds between two beats
_STILL = 3.0  # seconds without one, to be gone once a connection has broken
_FOREVER = timedelta(days=365)  # hearts decide, not how long an exchange takes


class RankError(FedrowsError):
    """A process of a run that is gone, or was told something else than the others."""

    def __init__(self, what: str, do: str = "start all of them again") -> None:
        super().__init__(f"{what}: {do}.")
        self.what = what


class GoneError(RankError):
    """A process of a run that is gone."""


def several() -> bool:
    """Whether this process is one of several that were started to make a run together."""
    return all(os.environ.get(name) for name in _NEEDED) and _number("WORLD_SIZE") > 1


def rank() -> int:
    """The number of this process, 0 if it is alone."""
    return _number("RANK") if several() else 0


def cores() -> int:
    """This process's part of the machine's cores."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (count or 1) // _number("LOCAL_WORLD_SIZE", 1))


def device_of(device: torch.device) -> str:
    """The device of this process: of several GPUs, the one with the process's own number."""
    if device.type != "cuda" or not several():
        return str(device)
    number, gpus = _number("LOCAL_RANK", 0), torch.cuda.device_count()
    if number >= gpus:
        raise PlanError(
            f"{_number('LOCAL_WORLD_SIZE', 1)} processes were started on a machine with {gpus} "
            f"GPU{'' if gpus == 1 else 's'}: start at most {gpus} there, or use --device cpu."
        )
    torch.cuda.set_device(number)
    return f"cuda:{number}"


@cache
def join() -> RankGroup:
    """The processes of this run; the first call waits until all of them have come."""
    return RankGroup()


class RankGroup:
    """All processes of a run, as one of them sees them."""

    def __init__(self) -> None:
        import torch.distributed as dist
        from torch.distributed.rendezvous import rendezvous

        self.rank, self.size = _number("RANK"), _number("WORLD_SIZE")
        self.timeout = _seconds()
        patience = timedelta(seconds=self.timeout)
        try:
            store, _, _ = next(iter(rendezvous("env://", timeout=patience)))
        except (RuntimeError, ValueError) as error:
            raise self._gone([0], f"not come within {self.timeout:g} s", "has") from error
        self._store = store
        self._beats: dict[int, tuple[int, float]] = {}  # by rank: how many, and since when
        self._lost = False  # whether an exchange was given up
        self._ended = threading.Event()
        self._roll_call()
        if dist.is_initialized():  # by whoever uses the library
            self._host = dist.new_group(backend="gloo", timeout=_FOREVER)
        else:
            dist.init_process_group(
                "gloo", store=store, rank=self.rank, world_size=self.size, timeout=_FOREVER
            )
            self._host = dist.group.WORLD
        self._gpus: Any = None
        self._heart = threading.Thread(target=self._live, args=(store.clone(),), daemon=True)
        self._heart.start()
        atexit.register(self._leave)

    def gather(self, numbers: Tensor) -> Tensor:
        """What every process has, each (n,), by rank: (ranks, n)."""
        import torch.distributed as dist

        gathered = numbers.new_empty(self.size, *numbers.shape)
        if numbers.device.type == "cuda":
            if self._gpus is None:
                patience = timedelta(seconds=self.timeout)
                self._gpus = dist.new_group(backend="nccl", timeout=patience)
            dist.all_gather(list(gathered), numbers, group=self._gpus)
            return gathered
        self._beats.clear()
        try:
            work = dist.all_gather(list(gathered), numbers, group=self._host, async_op=True)
            while not self._done(work):
                self._find_gone(self.timeout)
        except GoneError:
            self._lost = True
            raise
        except RuntimeError as error:
            self._lost = True
            raise self._broken(error) from error
        return gathered

    def alike(self, facts: Mapping[str, object]) -> None:
        """Raises a RankError if a process has another value for any of these facts."""
        self._compare({"version of fedrows": (__version__, *facts)})
        self._compare(facts)

    def speaks(self) -> bool:
        """Whether this process is the one to say why the run ends; true in one process only."""
        try:
            if self.rank:  # rank 0 knows more, such as which round was saved
                self._wait(lambda: self._store.check([_key("spoken")]), 2 * _STILL)
            first = self._store.add(_key("spoken"), 1) == 1
            if not first:
                self._store.add(_key("heard"), 1)
            elif self.rank == 0:  # the others must know before the store goes with this process
                self._wait(lambda: self._store.add(_key("heard"), 0) == self.size - 1, _STILL)
            return first
        except RuntimeError:  # the store went with rank 0
            return self.rank == 1

    def _wait(self, until: Callable[[], bool], seconds: float) -> None:
        """Waits until something is so, or for so long."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not until():
            time.sleep(0.02)

    def _compare(self, facts: Mapping[str, object]) -> None:
        prints = [digest([str(value).encode()]) for value in facts.values()]
        every = self.gather(torch.tensor(prints))  # (ranks, facts)
        for other in range(1, self.size):
            for number, name in enumerate(facts):
                if every[other, number] != every[0, number]:
                    raise RankError(
                        f"Rank {other} has another {name} than rank 0",
                        "start every process with the same command, on the same data",
                    )

    def _done(self, work: Any) -> bool:
        """Waits a moment for an exchange."""
        try:
            work.wait(timedelta(seconds=2 * _BEAT))
            return True
        except RuntimeError:
            if work.is_completed():
                raise  # it has failed; otherwise it only takes longer
            return False

    def _roll_call(self) -> None:
        """Waits for all processes."""
        self._store.set(_key("here", self.rank), "")
        until = time.monotonic() + self.timeout
        while missing := [r for r in range(self.size) if not self._store.check([_key("here", r)])]:
            if time.monotonic() > until:
                raise self._gone(missing, f"not come within {self.timeout:g} s", "has", "have")
            time.sleep(0.02)

    def _live(self, store: Any) -> None:
        """The heart of this process, with a connection of its own."""
        try:
            while not self._ended.wait(_BEAT):
                store.add(_key("beat", self.rank), 1)
        except RuntimeError:
            pass  # nobody listens any more

    def _leave(self) -> None:
        """Ends with the process."""
        import torch.distributed as dist

        self._ended.set()
        self._heart.join(_STILL)
        if self._lost:  # the exchange would wait on, and keep this process from ending
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(FAILED)
        with suppress(RuntimeError):  # all leave together: a broken connection aborts a process
            self._store.add(_key("left"), 1)
            self._wait(lambda: self._store.add(_key("left"), 0) >= self.size, _STILL)
        if self._host is dist.group.WORLD and dist.is_initialized():
            dist.destroy_process_group()

    def _find_gone(self, patience: float) -> None:
        """Raises a GoneError if some heart has not beaten for so long as we have watched it.

        So it does if another process has said why the run ends: that one leaves.
        """
        now, gone = time.monotonic(), []
        for other in range(self.size):
            try:
                if self._store.check([_key("spoken")]):
                    raise GoneError("Another process has ended the run")
                count = self._store.add(_key("beat", other), 0)
            except RuntimeError:
                raise self._gone([0]) from None  # the store was with it
            before, since = self._beats.get(other, (-1, now))
            if count != before:
                self._beats[other] = count, now
            elif other != self.rank and now - since > patience:
                gone.append(other)
        if gone:
            raise self._gone(gone)

    def _broken(self, error: RuntimeError) -> GoneError:
        """The error of an exchange in which a connection has broken."""
        self._beats.clear()
        until = time.monotonic() + 2 * _STILL
        while time.monotonic() < until:
            try:
                self._find_gone(_STILL)
            except GoneError as gone:
                return gone
            time.sleep(_BEAT / 2)
        why = str(error).strip().splitlines()[0]
        return GoneError(f"The processes can no longer reach each other ({why})")

    def _gone(
        self, who: list[int], what: str = "gone", one: str = "is", many: str = "are"
    ) -> GoneError:
        *first, last = map(str, who)
        if not first:
            return GoneError(f"Rank {last} of {self.size} {one} {what}")
        return GoneError(f"Ranks {', '.join(first)} and {last} of {self.size} {many} {what}")


def digest(parts: Iterable[bytes | memoryview]) -> int:
    """A number of 63 bits that tells what was read from anything else."""
    hashed = blake2b(digest_size=8)
    for part in parts:
        hashed.update(part)
    return int.from_bytes(hashed.digest(), "big") >> 1


def _key(*words: object) -> str:
    """A key of the store, which others use as well."""
    return "/".join(map(str, ("fedrows", *words)))


def _number(name: str, otherwise: int | None = None) -> int:
    """A whole number from the environment."""
    text = os.environ.get(name, "" if otherwise is None else str(otherwise))
    if not text.isdecimal():
        raise PlanError(f"{name} is {text!r}, but must be a whole number: start with torchrun.")
    return int(text)


def _seconds() -> float:
    text = os.environ.get(TIMEOUT, "60")
    try:
        if float(text) > 0:
            return float(text)
    except ValueError:
        pass
    raise PlanError(f"{TIMEOUT} is {text!r}, but must be a number of seconds above 0.")
