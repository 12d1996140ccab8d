"""What `run` and `compare` have in common on the command line."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import Parser, UsageError, add_options, value
from fedrows.cli.settings import add_settings, seconds
from fedrows.cli.show import say
from fedrows.errors import FedrowsError
from fedrows.options import options
from fedrows.watch import Observers, Watching, opened
from fedrows.watch.logs import without_secrets

HERE = ""  # --resume without a folder: the one of --out, or the usual one


def parser_of(command: str, description: str, out: str, resume: str) -> Parser:
    """A parser with the words and flags of a command that runs something in a folder."""
    parser = Parser(command, description)
    tasks = ", ".join(catalogue.names("task"))
    parser.add_argument("task", metavar="TASK", nargs="?", help=f"One of {tasks}.")
    parser.add_argument("--out", metavar="DIR", help=out)
    parser.add_argument("--resume", metavar="DIR", nargs="?", const=HERE, help=resume)
    parser.add_argument(
        "--overwrite", action="store_true", help="Replace the folder if it is a run folder."
    )
    parser.add_argument(
        "--checkpoint-seconds",
        metavar="X",
        type=seconds,
        default=30.0,
        help="Save the run at least every so many seconds (default: 30).",
    )
    add_watching(parser)
    return parser


def add_watching(parser: Parser) -> None:
    """The flags of those who watch a run."""
    add_options(parser, "watching", [Watching], {})


@contextmanager
def watched(typed: dict[str, Any]) -> Iterator[Observers]:
    """Everyone who is to watch, by flags that are taken out of what was typed."""
    flags = {item.name: item for item in options(Watching) if item.name in typed}
    found = {
        name: value(Watching, item, typed.pop(name), name.replace("_", "-"))
        for name, item in flags.items()
    }
    with opened(Watching(**found)) as observers:
        for address in observers.addresses:
            say(f"Metrics: {address}")
        yield observers


def parse(
    words: Sequence[str], build: Callable[[], Parser], without: Collection[str] = ()
) -> dict[str, Any] | None:
    """What was typed, as text where it is an option of a dataclass; None if help was wanted."""
    parser = build()
    add_settings(parser, without=without)
    wants_help = any(word in ("-h", "--help") for word in words)
    if not wants_help:
        typed = parser.parse(words)
        _known(typed)
        typed["command"] = without_secrets([*parser.prog.split(), *words])
        return typed
    task, algorithms = None, []
    try:
        typed = parser.parse([word for word in words if word not in ("-h", "--help")])
        _known(typed)
        task, algorithms = typed["task"], algorithms_of(typed)
    except FedrowsError:
        pass  # help for everything, then
    parser = build()
    add_settings(parser, task, algorithms, only=True, without=without)
    parser.print_help()
    return None


def out_of(resume: str, out: str | None, usual: Callable[[], Path]) -> Path:
    """The folder to go on with."""
    if resume != HERE and out is not None and Path(out) != Path(resume):
        raise UsageError(f"--resume says {resume}, but --out says {out}: name one folder.")
    named = resume or out
    return Path(named) if named else usual()


def _known(typed: dict[str, Any]) -> None:
    """Raises if a task or an algorithm does not exist."""
    if typed["task"] is not None:
        catalogue.task(typed["task"])
    for name in algorithms_of(typed):
        catalogue.algorithm(name)


def algorithms_of(typed: Mapping[str, Any]) -> list[str]:
    """The names after --algorithm or --algorithms."""
    given = typed.get("algorithm") or typed.get("algorithms") or ""
    return list(dict.fromkeys(name.strip().lower() for name in given.split(",") if name.strip()))
