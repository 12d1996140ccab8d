"""All benchmarks, one after another, each in a process of its own, for a folder of results.

`lr` and `lstm` are not among them: `peers` measures the same contenders, and the peers beside them.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.machine import facts
from fedrows.cli.flags import Parser, UsageError
from fedrows.errors import FedrowsError

ORDER = ("peers", "din", "own", "cohort", "memory", "scale", "billion", "ranks")
_ROOMY = 16  # GiB of memory, with which the largest tables can be made
_MORE = {"scale": ["--large", "100000000"]}  # what is measured then


class BenchmarkError(FedrowsError):
    """A benchmark that did not come to its end."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs them; one that fails does not keep the others from running."""
    parser = Parser("bench all", (__doc__ or "").split("\n")[0])
    usual, names = "benchmarks/results", ",".join(ORDER)
    parser.add_argument("--out", metavar="FOLDER", default=usual, help=f"Default: {usual}.")
    parser.add_argument("--only", metavar="NAMES", default=names, help=f"Of {names} (default).")
    if any(word in ("-h", "--help") for word in argv or ()):
        parser.print_help()
        return
    typed = parser.parse(list(argv or ()))
    chosen = typed["only"].split(",")
    for name in chosen:
        if name not in ORDER:
            raise UsageError(f"--only names {name!r}, but must name some of {names}.")
    failed = [name for name in chosen if not _run(name, Path(typed["out"]) / f"{name}.json")]
    if failed:
        raise BenchmarkError(
            f"{len(failed)} of {len(chosen)} benchmarks failed ({', '.join(failed)}): what they "
            "said is above, and the results of the others are written."
        )


def _run(name: str, file: Path) -> bool:
    start = time.perf_counter()
    more = _MORE.get(name, []) if facts()["memory_gib"] >= _ROOMY else []
    words = ["bench", name, *more, "--out", str(file)]
    print(shlex.join(["fedrows", *words]), flush=True)
    code = subprocess.run([sys.executable, "-m", "fedrows", *words], check=False).returncode
    print(f"  {time.perf_counter() - start:.0f} s\n", flush=True)
    return code == 0
