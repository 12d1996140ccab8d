"""The experiments of `fedrows paper` with nothing but torch and numpy: for a GPU machine.

    FEDROWS_DATA=… python benchmarks/paper.py --out DIR [NAME …] [--device cuda] [--minutes 9]

Makes the runs and the artefacts, and no page. A run's id does not depend on the device: copied into
DIR/runs elsewhere, its file is taken for done by `fedrows paper --out DIR`, and the page says where
it ran. Stops by itself after --minutes; what was finished is kept, and a second call goes on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows.errors import FedrowsError
from fedrows.paper.catalogue import chosen
from fedrows.paper.workplace import KEPT, MADE, Workplace

OUT_OF_TIME = 4


class OutOfTime(BaseException):
    """The minutes are over; no `except Exception` on the way stops it."""


def main() -> int:
    """Makes the experiments, and gives the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*", help="experiments (default: all)")
    parser.add_argument("--out", type=Path, default=Path("paper"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--search", action="store_true")
    typed = parser.parse_args()
    since, done = time.monotonic(), -1

    def say(text: str) -> None:
        print(f"{time.monotonic() - since:7.1f} s  {text}", flush=True)

    def progress(finished: int, of: int, label: str, round_: int) -> None:
        nonlocal done
        if finished != done:
            done = finished
            say(f"  {finished}/{of} runs, {label}, round {round_}")

    work = Workplace(
        typed.out,
        typed.quick,
        typed.search,
        device=typed.device,
        workers=typed.workers,
        tell=say,
        progress=progress,
    )
    if typed.minutes:
        signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, typed.minutes * 60)
    code = 0
    try:
        for experiment in chosen(typed.names):
            say(experiment.name)
            artefact, outcome = work.make(experiment)
            say(f"{experiment.name}: {outcome}. {artefact.missing or artefact.summary}")
            code = code if outcome in (MADE, KEPT) else 1
    except OutOfTime:
        say(f"Out of time: what was finished is kept in {typed.out}.")
        return OUT_OF_TIME
    except FedrowsError as error:
        say(str(error))
        return 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        work.close()
    return code


def _ring(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


if __name__ == "__main__":
    sys.exit(main())
