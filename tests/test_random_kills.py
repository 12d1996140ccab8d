"""A simulated run that is killed at random moments and at system calls goes on to the bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import SMALL, assert_same, fedrows
from commands import own_folder as own_folder
from dying import die_at

from fedrows import cli
from fedrows.runs.folder import CHECKPOINT, CONFIG

pytestmark = [pytest.mark.usefixtures("own_folder"), pytest.mark.slow]

WORDS = ["run", "synthetic", *SMALL, "--algorithm", "scaffold", "--rounds", "9",
         "--evaluate-every", "2", "--checkpoint-seconds", "0", "--threads", "1"]  # fmt: skip
LIMIT = 120.0  # seconds, which only a failure takes
# Every file is written, brought to the disk and moved by these.
CALLS = [(os, "replace"), (os, "fsync"), (os, "open"), (os, "mkdir"), (shutil, "rmtree")]
# Forked from a process that has imported things and no more: one with threads would hang.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["pytest", "fedrows.cli.run", "fedrows.runs.checkpoint"])


def words_for(out: str) -> list[str]:
    """The command that begins a run, or goes on with it."""
    if (Path(out) / CHECKPOINT).exists() or (Path(out) / CONFIG).exists():
        return ["run", "--resume", out]
    return [*WORDS, "--out", out]


def die_at_call(place: int, call: int, after: bool, words: list[str]) -> None:
    """Types a command, and kills its process before or after the n-th call of a function."""
    die_at(*CALLS[place], call, after)
    os._exit(cli.main(words))


def die_after(seconds: float, words: list[str]) -> None:
    """Types a command, and ends its process after some seconds, whatever it is doing."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends a process as SIGKILL does
    signal.setitimer(signal.ITIMER_REAL, seconds)
    os._exit(cli.main(words))


def exit_code(work: Callable[..., None], *given: Any) -> int:
    child = FORKS.Process(target=work, args=given)
    child.start()
    child.join(timeout=LIMIT)
    assert child.exitcode is not None
    return child.exitcode


def arrives(out: str, straight: str) -> None:
    """Goes on with a run to its end, and compares it with one that nobody killed."""
    fedrows(*words_for(out))
    assert_same(straight, out)
    left = [path for path in Path(out).rglob("*") if ".part" in path.name]
    assert not left  # of what killed processes were writing


@pytest.fixture
def straight() -> str:
    fedrows(*WORDS, "--out", "straight")
    return "straight"


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_killed_at_random_moments_arrives(straight: str, seed: int) -> None:
    """Ten kills or more, of which several hit the same run; moments of its whole length."""
    draw, killed, number = random.Random(seed), 0, 0
    for out in ("warm", "timed"):
        since = time.monotonic()
        assert exit_code(die_after, LIMIT, [*WORDS, "--out", out]) == 0
        whole = time.monotonic() - since
    while killed < 10:
        number += 1
        out, longer = f"run-{number}", 1.0
        while code := exit_code(
            die_after, draw.uniform(0.02, 0.8) * longer * whole, words_for(out)
        ):
            assert code == -signal.SIGALRM  # it was killed, and did not fail
            killed, longer = killed + 1, 1.5 * longer  # on a busy machine a start alone may take it
        arrives(out, straight)


@pytest.mark.parametrize("place", range(len(CALLS)), ids=[name for _, name in CALLS])
def test_a_run_killed_at_a_system_call_arrives(straight: str, place: int) -> None:
    draw = random.Random(place)
    for number in range(4):
        call, after, out = draw.choice([1, 2, 3, 5, 7, 10, 14]), number % 2 == 0, f"run-{number}"
        call = call if number else 2
        codes = [exit_code(die_at_call, place, call, after, words_for(out))]
        codes.append(exit_code(die_at_call, place, call + 4, not after, words_for(out)))
        assert set(codes) <= {0, -signal.SIGKILL}
        assert number or codes[0] == -signal.SIGKILL  # the calls are made at all
        arrives(out, straight)
