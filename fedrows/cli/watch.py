"""`fedrows watch`: a page that follows runs, comparisons, studies and deployments as they go."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from fedrows.cli.flags import Parser, UsageError
from fedrows.cli.live import port_of
from fedrows.cli.show import say
from fedrows.live.start import check_installed, listen


def main(words: Sequence[str]) -> int:
    parser = Parser(
        "watch",
        "Serves a page on this machine that follows runs as they go: curves, speed, ε, nodes. It "
        "only reads. Ctrl-C ends it; the runs go on.",
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        help="Folders of runs, comparisons, studies or deployments, or a folder of these; one that "
        "is not there yet is waited for.",
    )
    parser.add_argument("--port", metavar="N", help="The port (default: a free one).")
    typed = parser.parse(words)
    if not typed["folders"]:
        raise UsageError("Name the folder of a run, as in: fedrows watch runs/NAME.")
    port, paths = port_of("--port", typed["port"]), [Path(folder) for folder in typed["folders"]]
    check_installed("`fedrows watch`")
    from fedrows.live.followed_path import check
    from fedrows.live.server import serve

    for path in paths:
        check(path)
    listening, token, address = listen(port)
    with listening, suppress(KeyboardInterrupt):
        say(f"Live page: {address}")
        say("Who has this address can look. Ctrl-C ends the page.")
        asyncio.run(serve(listening, token, paths))
    return 0
