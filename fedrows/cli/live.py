"""`--live`: a page that follows what a command does, served beside it while it goes.

parser: add_live(parser)            # --live and --live-port
page = LivePage.typed(typed)        # takes both flags out of what was typed
with page.following(folder): …      # says the address; nothing without --live
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrows.cli.flags import UsageError, whole_number
from fedrows.cli.show import say
from fedrows.live.start import beside, check_installed


def add_live(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--live", action="store_true", help="Serve a page on this machine that follows it."
    )
    parser.add_argument(
        "--live-port", metavar="N", help="The port of that page (default: a free one)."
    )


@dataclass(frozen=True)
class LivePage:
    """Whether a command is to be followed, and at which port."""

    wanted: bool = False
    port: int = 0

    @classmethod
    def typed(cls, typed: dict[str, Any]) -> LivePage:
        """What was typed, without the two flags; refuses before anything is made."""
        wanted, port = typed.pop("live", False), typed.pop("live_port", None)
        if port is not None and not wanted:
            raise UsageError("--live-port is the port of the live page: add --live.")
        if wanted:
            check_installed("--live")
        return cls(wanted, port_of("--live-port", port))

    @contextmanager
    def following(self, *folders: Path) -> Iterator[None]:
        """Follows folders meanwhile, also those that are not there yet."""
        if not self.wanted:
            yield
            return
        with beside(folders, self.port) as address:
            say(f"Live page: {address}")
            yield


def port_of(flag: str, typed: str | None) -> int:
    """A port that was typed; 0, which is a free one, if none was."""
    return whole_number(flag, "0" if typed is None else typed, 0, 65535)
