"""`fedrows init`: a small working project (data, model, a run, a test) to change into one's own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.errors import RunFolderError
from fedrows.files.whole import unwritable, write_whole

FILES = ("README.md", "data.py", "model.py", "run.py", "test_run.py")
USERS, ITEMS, RATINGS = 200, 100, 6_000


def main(words: Sequence[str]) -> int:
    parser = Parser("init", "Writes a small working project that you change into your own.")
    parser.add_argument("folder", metavar="DIR", nargs="?", help="The folder to make.")
    typed = parser.parse(words)
    if (folder := typed["folder"]) is None:
        raise UsageError("Name the folder to make, as in: fedrows init my-project.")
    write(Path(folder))
    say(f"Wrote {folder}: begin with its README.md, or at once with: cd {folder} && python run.py")
    return 0


def write(folder: Path) -> None:
    """The project's files in a new folder; one that has anything in it is left alone."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderError(f"{folder} exists already and is not empty: name a new folder.")
    source = resources.files("fedrows.cli") / "project"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in FILES:
            write_whole(folder / name, (source / name).read_bytes())
        write_whole(folder / "ratings.csv", _ratings().encode())
    except OSError as error:
        raise unwritable(folder, error) from error


def _ratings() -> str:
    """A log of ratings: few items are hot, and some are better than others."""
    draw = random.Random(0)
    quality = [draw.gauss(3.3, 0.9) for _ in range(ITEMS)]
    lines = ["user,item,stars,time"]
    for time in range(RATINGS):
        item = min(int(draw.paretovariate(0.8)) - 1, ITEMS - 1)
        stars = min(5, max(1, round(draw.gauss(quality[item], 0.8))))
        lines.append(f"u{draw.randrange(USERS)},i{item},{stars},{time}")
    return "\n".join(lines) + "\n"
