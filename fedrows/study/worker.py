"""A worker process: calls the functions that come in over a pipe, `python -m fedrows.study.worker`.

It reads (function, argument) from stdin and answers ("heard", round) or ("done", result) on stdout,
all pickled. When nobody listens any more, it ends.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time

from fedrows.runs.signals import ENDING

HEARD_EVERY = 0.2  # seconds


def main() -> None:
    """Does what comes in on stdin, and answers on stdout."""
    for number in (signal.SIGINT, *ENDING):
        signal.signal(number, signal.SIG_IGN)  # whoever started it decides, and may save first
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever else is printed is not for the pipe
    last = 0.0

    def answer(kind: str, content: object) -> None:
        try:
            pickle.dump((kind, content), out)
            out.flush()
        except BrokenPipeError:
            os._exit(1)  # nobody listens

    def heard(round_: int) -> None:
        nonlocal last
        if time.monotonic() - last >= HEARD_EVERY:
            last = time.monotonic()
            answer("heard", round_)

    while True:
        try:
            call, argument = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        answer("done", call(argument, heard))


if __name__ == "__main__":
    main()
