"""`fedrows data`: which data sets there are, where their files lie, and how to get them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fedrows import catalogue
from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.show import say
from fedrows.errors import DataError, PluginError, UnknownNameError
from fedrows.files import fetch
from fedrows.measure.summary import show_bytes

ACTIONS = {
    "list": "show all data sets",
    "path": "say where the file of NAME lies, or would",
    "fetch": "get the file of NAME from whoever publishes it",
}


def main(words: Sequence[str]) -> int:
    parser = Parser("data", "; ".join(f"{name}: {text}" for name, text in ACTIONS.items()) + ".")
    add = parser.add_argument
    add("action", metavar="list|path|fetch", nargs="?", help="What to do (list).")
    add("name", metavar="NAME", nargs="?", help="A task.")
    add("--force", action="store_true", help="Fetch even if the file is there.")
    typed = parser.parse(words)
    action, name, force = typed["action"] or "list", typed["name"], typed["force"]
    if action not in ACTIONS:
        raise UnknownNameError("action", action, ACTIONS)
    if force and action != "fetch":
        raise UsageError(f"--force is for fetch, not for {action}: leave it out.")
    if action == "list":
        if name is not None:
            raise UsageError(f"{name!r} is one word too many: list shows all data sets.")
        _list()
        return 0
    if name is None:
        known = ", ".join(catalogue.names("task"))
        raise UsageError(f"Name the data set to {action}: one of {known}.")
    source = _source(name)
    if action == "path":
        say(str(fetch.path(source)))
    else:
        _fetch(source, force)
    return 0


def _list() -> None:
    rows = []
    for name in catalogue.names("task"):
        try:
            task = catalogue.task(name)
        except PluginError as error:
            rows.append((name, "A plug-in that cannot be used.", str(error)))
            continue
        where = "made on the spot"
        if task.source is not None:
            path = fetch.path(task.source)
            where = str(path) if path.is_file() else f"not here: fedrows data fetch {name}"
            if not path.is_file() and path.parent.is_dir() and any(path.parent.iterdir()):
                where = f"not as published, but see {path.parent}"
        rows.append((name, task.summary, where))
    if sys.stdout.isatty():
        for name, summary, where in rows:
            say(f"{name}\n    {summary}\n    {where}")
    else:
        for row in rows:
            say("\t".join(row))


def _source(name: str) -> fetch.Source:
    source = catalogue.task(name).source
    if source is None:
        raise DataError(f"{name} needs no file: its data are made on the spot.")
    return source


def _fetch(source: fetch.Source, force: bool) -> None:
    say(f"{source.url}\nLicence: {source.licence}")
    live = sys.stdout.isatty()

    def progress(done: int, total: int | None) -> None:
        if live:
            of = f" of {show_bytes(total)}" if total else ""
            print(f"\r{show_bytes(done)}{of}   ", end="", flush=True)

    fetched = fetch.fetch(source, progress, force=force)
    if live:
        print()
    if fetched.note:
        say(f"Note: {fetched.note}")
    say(f"File: {fetched.path}")
