"""A worker: makes the runs it is told of over a pipe, `python -m fedrows.study.worker`.

It reads a job per line and says, a line each, how far it is. When nobody listens any more, it ends.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.study.bench import Bench, sentence
from fedrows.study.setting import Setting

TOLD_EVERY = 0.2  # seconds


def main() -> None:
    """Makes the runs that come in on stdin, and tells of them on stdout."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started it decides
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed is not for the pipe
    bench = Bench()

    def tell(**event: Any) -> None:
        print(json.dumps(event), file=out, flush=True)

    for line in sys.stdin:
        job = json.loads(line)
        told = 0.0

        def heard(round_: int, run: str = job["id"]) -> None:
            nonlocal told
            if time.monotonic() - told >= TOLD_EVERY:
                told = time.monotonic()
                tell(event="round", id=run, round=round_)

        try:
            settled = Setting(**job["setting"]).settled(job["seed"])
            bench.make(Path(job["folder"]), job["id"], settled, job["device"], heard)
        except BrokenPipeError:
            os._exit(1)  # nobody listens
        except Exception as error:
            if not isinstance(error, FedrowsError):
                traceback.print_exc()
            tell(event="failed", id=job["id"], why=sentence(error))
        else:
            tell(event="done", id=job["id"])


if __name__ == "__main__":
    main()
