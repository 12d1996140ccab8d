"""The experiments of `fedrows paper` with nothing but torch and numpy: for a GPU machine.

    FEDROWS_DATA=… python benchmarks/paper.py --out DIR [NAME …] [--device cuda] [--minutes 9]

Makes the runs and the artefacts, and no page. A run's id does not depend on the device: copied into
DIR/runs elsewhere, its file is taken for done by `fedrows paper --out DIR`, and the page says where
it ran. Stops by itself after --minutes; what was finished is kept, and a second call goes on.

With --algorithms A,B only the runs of these algorithms are made, for the tasks that NAME names, and
no artefact: several processes with other algorithms share a GPU and a folder. A call without it
then finds all runs, and makes the artefacts.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType

sys.path.insert(0, str(Path(__file__).parents[1]))

from fedrows.errors import FedrowsError
from fedrows.paper import rates_search
from fedrows.paper.catalogue import chosen
from fedrows.paper.evaluated_task import EvaluatedTask
from fedrows.paper.tasks import TASKS
from fedrows.paper.workplace import KEPT, MADE, Workplace
from fedrows.study import Study

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
    parser.add_argument("--algorithms", help="only the runs of these; NAME is then a task")
    given = parser.parse_args()
    since, done = time.monotonic(), -1

    def say(text: str) -> None:
        print(f"{time.monotonic() - since:7.1f} s  {text}", flush=True)

    def progress(finished: int, of: int, label: str, round_: int) -> None:
        nonlocal done
        if finished != done:
            done = finished
            say(f"  {finished}/{of} runs, {label}, round {round_}")

    work = Workplace(
        given.out,
        given.quick,
        given.search,
        device=given.device,
        workers=given.workers,
        tell=say,
        progress=progress,
    )
    if given.minutes:
        signal.signal(signal.SIGALRM, _ring)
        signal.setitimer(signal.ITIMER_REAL, given.minutes * 60)
    code = 0
    try:
        if given.algorithms:
            for task in TASKS:
                if task.key in given.names:
                    make_runs(work, task, given.algorithms.split(","))
            return 0
        for experiment in chosen(given.names):
            say(experiment.name)
            artefact, outcome = work.make(experiment)
            say(f"{experiment.name}: {outcome}. {artefact.missing or artefact.summary}")
            code = code if outcome in (MADE, KEPT) else 1
    except OutOfTime:
        say(f"Out of time: what was finished is kept in {given.out}.")
        return OUT_OF_TIME
    except FedrowsError as error:
        say(str(error))
        return 2
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        work.close()
    return code


def make_runs(work: Workplace, task: EvaluatedTask, algorithms: Sequence[str]) -> None:
    """Makes the runs behind Tables 2 and 3 of some algorithms, and those of their search."""
    size = task.size(work)
    own = replace(size, searched=tuple(name for name in size.searched if name in algorithms))
    task = replace(task, quick=own) if work.quick else replace(task, full=own)
    if own.searched:
        rates = rates_search.rates(work, task)
        searched = [task.setting(own, name, rates[name]) for name in own.searched]
        work.results(Study(searched, size.searched_seeds or size.seeds))
    preset = [task.setting(own, name) for name in size.algorithms if name in algorithms]
    work.results(Study(preset, size.seeds))
    if "fedsubavg" in algorithms:
        swept = [task.setting(own, "fedsubavg", clients_per_round=k) for k in size.sweep]
        work.results(Study(swept, size.seeds))


def _ring(number: int, frame: FrameType | None) -> None:
    raise OutOfTime


if __name__ == "__main__":
    sys.exit(main())
