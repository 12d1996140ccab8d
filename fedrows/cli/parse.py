"""What `run` and `compare` have in common on the command line."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.cli.flags import (
    HELP,
    Parser,
    UsageError,
    add_options,
    asks_for_help,
    comma_list,
    values_for,
    whole_number,
)
from fedrows.cli.live import LivePage, add_live
from fedrows.cli.settings import add_mechanisms, add_settings, seconds
from fedrows.cli.show import say
from fedrows.errors import FedrowsError, UnknownNameError
from fedrows.privacy.mechanism import Mechanism
from fedrows.task import Task
from fedrows.watch import Observers, Watching, opened
from fedrows.watch.logs import without_secrets

HERE = ""  # --resume without a folder: the one of --out, or the usual one
SECONDS = 30.0  # between two checkpoints


@dataclass(frozen=True)
class TrainingCommand:
    """What a command that trains was told beside the settings of its runs."""

    task: str | None
    algorithms: list[str]
    out: str | None
    resume: str | None
    overwrite: bool
    anchors: bool
    checkpoint_seconds: float
    words: str  # what was typed, without secrets
    live: LivePage
    observer: Observers

    @classmethod
    def taken(cls, typed: dict[str, Any], observer: Observers) -> TrainingCommand:
        algorithms = algorithms_of(typed)
        for name in ("algorithm", "algorithms"):
            typed.pop(name, None)
        return cls(
            typed.pop("task"),
            algorithms,
            typed.pop("out"),
            typed.pop("resume", None),
            typed.pop("overwrite"),
            typed.pop("anchors", False),
            typed.pop("checkpoint_seconds", SECONDS),
            typed.pop("command"),
            LivePage.typed(typed),
            observer,
        )

    def folder(self, name: str) -> Path:
        """The folder to write or to go on with: the one that was typed, or runs/TASK-NAME."""
        if self.resume is None:
            task_named(self.task)
        return folder_of(self.resume, self.out, self.task, name)


def task_named(name: str | None) -> Task:
    if name is None:
        raise UsageError(f"Name a task: one of {', '.join(catalogue.names('task'))}.")
    return catalogue.task(name)


def parser_of(
    command: str, description: str, out: str, resume: str = "", *, saves: bool = True
) -> Parser:
    """A parser with the words and flags of a command that runs something in a folder.

    saves: whether its runs are saved and watched while they go.
    """
    parser = Parser(command, description)
    add = parser.add_argument
    tasks = ", ".join(catalogue.names("task"))
    add("task", metavar="TASK", nargs="?", help=f"One of {tasks}.")
    add("--out", metavar="DIR", help=out)
    if resume:
        add("--resume", metavar="DIR", nargs="?", const=HERE, help=resume)
    add("--overwrite", action="store_true", help="Replace the folder if it is a run folder.")
    if saves:
        add(
            "--checkpoint-seconds",
            metavar="X",
            type=seconds,
            default=SECONDS,
            help=f"Save the run at least every so many seconds (default: {SECONDS:g}).",
        )
    add(
        "--metric",
        metavar="REF",
        action="append",
        default=argparse.SUPPRESS,
        help="A metric of your own, as module:name or path/to/file.py:name; may be given again.",
    )
    add(
        "--personal",
        metavar="NAME,NAME",
        default=argparse.SUPPRESS,
        help="Parameters or submodules of the model that stay on their clients.",
    )
    add_live(parser)
    if saves:
        add_options(parser, "watching", [Watching], {})
    return parser


@contextmanager
def watched(typed: dict[str, Any]) -> Iterator[Observers]:
    """Everyone who is to watch, by flags that are taken out of what was typed."""
    values, rest = values_for(Watching, typed)
    for name in typed.keys() - rest.keys():
        del typed[name]
    with opened(Watching(**values)) as observers:
        for address in observers.addresses:
            say(f"Metrics: {address}")
        yield observers


def parse(
    words: Sequence[str], build: Callable[[], Parser], without: Collection[str] = ()
) -> dict[str, Any]:
    """What was typed, as text where it is an option of a dataclass; --help ends the command.

    The help has the options of what is named beside it: the task, algorithms and the mechanism.
    """
    if not asks_for_help(words):
        parser = with_settings(words, build, without)
        typed = named(parser.parse(words))
        typed["command"] = without_secrets([*parser.prog.split(), *words])
        return typed
    asked = [word for word in words if word not in HELP]
    task, algorithms, mechanisms = None, [], []
    try:
        typed = named(with_settings(asked, build, without).parse(asked))
        task, algorithms = typed["task"], algorithms_of(typed)
        mechanisms = [typed["mechanism"]] if "mechanism" in typed else []
    except FedrowsError:
        pass  # help for everything, then
    parser = build()
    add_mechanisms(parser, mechanisms)
    add_settings(parser, task, algorithms, only=True, without=without)
    return parser.parse(["--help"])


def with_settings(
    words: Sequence[str], build: Callable[[], Parser], without: Collection[str] = ()
) -> Parser:
    """A parser with the flags of all tasks and algorithms of ours, and of the plug-ins named."""
    algorithms = _algorithms_in(words)

    def built(task: str | None) -> Parser:
        parser = build()
        add_mechanisms(parser, _mechanisms_in(words))
        add_settings(parser, task, algorithms, without=without)
        return parser

    parser = built(None)
    task = task_in(words, parser)
    return parser if task is None or task in catalogue.built_in("task") else built(task)


def _algorithms_in(words: Sequence[str]) -> list[str]:
    """The algorithms that are named on a command line, before it is known which flags there are."""
    texts = _after(words, "--algorithm", "--algorithms")
    names = [name for text in texts for name in algorithms_of({"algorithm": text})]
    return [catalogue.algorithm(name)().name for name in names]


def _mechanisms_in(words: Sequence[str]) -> list[str]:
    """The privacy mechanisms that are named on a command line, likewise."""
    return [_mechanism_name(text) for text in _after(words, "--mechanism") if text]


def _after(words: Sequence[str], *flags: str) -> list[str]:
    """The values of some flags, as --flag value or --flag=value."""
    values = []
    for word, after in pairwise([*words, ""]):
        flag, equals, text = word.partition("=")
        if flag in flags:
            values.append(text if equals else after)
    return values


def task_in(words: Sequence[str], parser: Parser) -> str | None:
    """The task that is named on a command line, if there is one."""
    try:
        name = parser.parse_known_args(words)[0].task
        return None if name is None else catalogue.task(name).name
    except (argparse.ArgumentError, UsageError, UnknownNameError):
        return None  # an error when the command line is parsed, if it is one


def folder_of(resume: str | None, out: str | None, task: str | None, name: str) -> Path:
    """The folder to write or to go on with: the one that was typed, or runs/TASK-NAME."""
    if resume and out is not None and Path(out) != Path(resume):
        raise UsageError(f"--resume says {resume}, but --out says {out}: name one folder.")
    if typed := resume or out:
        return Path(typed)
    if task is None:
        raise UsageError("Name the folder to go on with, as in: --resume runs/NAME.")
    return Path("runs") / f"{task}-{name}"


def named(typed: dict[str, Any]) -> dict[str, Any]:
    """The same with names of task, algorithms and mechanism for references; they must exist."""
    if typed.get("overwrite") and typed.get("resume") is not None:
        raise UsageError("--overwrite and --resume cannot be used together: choose one.")
    for flag in ("out", "resume"):
        if (flag == "out" and typed.get(flag) == "") or "\0" in (typed.get(flag) or ""):
            raise UsageError(f"--{flag} is {typed[flag]!r}, but must be the name of a folder.")
    if typed["task"] is not None:
        typed["task"] = catalogue.task(typed["task"]).name
    for flag in ("algorithm", "algorithms"):
        if typed.get(flag) is not None:
            listed_once(f"--{flag}", typed[flag])
            names = [catalogue.algorithm(name)().name for name in algorithms_of(typed)]
            typed[flag] = ",".join(names)
    if "mechanism" in typed:
        typed["mechanism"] = _mechanism_name(typed["mechanism"])
    return typed


def _mechanism_name(text: str) -> str:
    """The name of a privacy mechanism, which may be given by reference."""
    made: Mechanism = catalogue.mechanism(text if ":" in text else text.lower())()
    return made.name


def algorithms_of(typed: Mapping[str, Any]) -> list[str]:
    """The names and references after --algorithm or --algorithms."""
    text = typed.get("algorithm") or typed.get("algorithms") or ""
    return list(dict.fromkeys(word if ":" in word else word.lower() for word in comma_list(text)))


def listed_once(flag: str, text: str) -> list[str]:
    """The words of a list with commas; a UsageError if there is none, or one comes twice."""
    words = comma_list(text)
    if not words:
        raise UsageError(
            f"{flag} is {text!r}, but must name at least one: leave it out, or name it."
        )
    lowered = [word.lower() for word in words]
    for position, word in enumerate(lowered):
        if word in lowered[:position]:
            raise UsageError(f"{flag} has {words[position]} twice: name each once.")
    return words


def seeds_of(flag: str, text: str) -> list[int]:
    """The seeds that were typed, each once; 1 and 01 are one seed."""
    seeds = [whole_number(flag, word, 0) for word in listed_once(flag, text)]
    listed_once(flag, ",".join(map(str, seeds)))
    return seeds
