"""The help of every command, kept in help.json, so that showing it need not import torch.

Flags are made from dataclasses of modules that import torch, which takes seconds. So
`docs/make_help.py` writes the flags down beforehand, and tests/test_help.py checks that what is
kept is what the commands would say. Where a plug-in is installed or named, they say it themselves.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from fedrows.cli.flags import HELP, Parser, asks_for_help

FILE = Path(__file__).with_name("help.json")
OWN_GROUPS = ("positional arguments", "options")  # those that every parser has
PLUGINS = "fedrows."  # what the groups of their entry points begin with


def shown(words: Sequence[str]) -> bool:
    """Whether the help that these words ask for was kept, and is now printed."""
    if not asks_for_help(words):
        return False
    stored = _read().get(" ".join(word for word in words if word not in HELP))
    if stored is None or any(group.startswith(PLUGINS) for group in entry_points().groups):
        return False
    if isinstance(stored, str):
        sys.stdout.write(stored)
    else:
        parser_from(stored).print_help()
    return True


def parser_from(stored: Mapping[str, Any]) -> Parser:
    """A parser that has the same help; it parses nothing."""
    parser = Parser(stored["command"], stored["description"])
    for title, actions in stored["groups"]:
        group = parser if title in OWN_GROUPS else parser.add_argument_group(title)
        for name, more in actions:
            if name != "help":
                flags = more.get("flags") or [name]
                own = {key: more[key] for key in ("nargs", "metavar", "help") if key in more}
                group.add_argument(*flags, action=_Shown, **own)
    return parser


class _Shown(argparse.Action):
    """A flag that is only shown."""

    def __call__(self, *_: Any) -> None:
        pass


def _read() -> dict[str, Any]:
    try:
        return json.loads(FILE.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
