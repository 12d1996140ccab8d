"""Writes fedrows/cli/help.json: the help of every command, which is then shown without torch.

    python docs/make_help.py

Call it after a change of a command, a flag or an option. tests/test_help.py says when.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
from contextlib import redirect_stdout, suppress
from typing import Any

from fedrows import cli
from fedrows.cli.flags import Parser
from fedrows.cli.stored_help import FILE

REPOSITORY_ONLY = {"bench"}  # its files are not in the package; its help needs no torch anyway


def main() -> None:
    """Writes the file."""
    FILE.write_text(as_text(collected()), "utf-8")


def as_text(helps: dict[str, Any]) -> str:
    """The file's text: one line for each flag, so that a change is easy to read."""
    entries = []
    for words, kept in helps.items():
        if isinstance(kept, str):
            entries.append(f"{_json(words)}: {_json(kept)}")
            continue
        head = f"{_json(words)}: {_json({**kept, 'groups': []})[:-2]}"
        groups = [
            f"[{_json(title)}, [\n" + ",\n".join(map(_json, actions)) + "]]"
            for title, actions in kept["groups"]
        ]
        entries.append(head + ",\n".join(groups) + "]}")
    return "{\n" + ",\n".join(entries) + "}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def commands() -> list[str]:
    """Every command, and every subcommand of those that have some."""
    words = []
    for name in cli.COMMANDS:
        if name in REPOSITORY_ONLY:
            continue
        module = importlib.import_module(f"fedrows.cli.{name}")
        words.append(name)
        more = getattr(module, "ACTIONS", None) or getattr(module, "SUBCOMMANDS", {})
        words += [f"{name} {subcommand}" for subcommand in more]
    return words


def collected() -> dict[str, Any]:
    """What every command says when it is asked for help, by its words."""
    return {words: help_of(words) for words in commands()}


def help_of(words: str) -> Any:
    """A parser's flags, or plain text where a command prints its help by itself."""
    recorded: list[dict[str, Any]] = []
    printed, usual = io.StringIO(), Parser.print_help

    def record(parser: Parser, file: Any = None) -> None:
        recorded.append(described(parser))

    name, *rest = words.split()
    Parser.print_help = record  # type: ignore[assignment]
    try:
        with redirect_stdout(printed), suppress(SystemExit):
            importlib.import_module(f"fedrows.cli.{name}").main([*rest, "--help"])
    finally:
        Parser.print_help = usual  # type: ignore[method-assign]
    return recorded[0] if recorded else printed.getvalue()


def described(parser: Parser) -> dict[str, Any]:
    """A parser as help.json has it: what its help says, whatever the width of the terminal."""
    groups = [
        [group.title, [_described(action) for action in group._group_actions]]
        for group in parser._action_groups
    ]
    command = parser.prog.removeprefix("fedrows ")
    return {"command": command, "description": parser.description, "groups": groups}


def _described(action: argparse.Action) -> list[Any]:
    """A flag by its name, with what its line of help is made from."""
    values = {
        "flags": list(action.option_strings),
        "nargs": action.nargs,
        "metavar": action.metavar,
        "help": action.help,
    }
    return [action.dest, {key: value for key, value in values.items() if value not in (None, [])}]


if __name__ == "__main__":
    main()
