"""The process of a live page beside a run: `python -m fedrows.live FD`.

FD is a socket that listens. The first line of stdin says what to follow; its end ends the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedrows.live.server import serve


def main() -> None:
    with suppress(OSError):
        os.nice(10)  # the run comes first
    listening = socket.socket(fileno=int(sys.argv[1]))
    settings = json.loads(sys.stdin.buffer.readline())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(KeyboardInterrupt):
        asyncio.run(_serve(listening, settings))


async def _serve(listening: socket.socket, settings: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[str] = loop.create_future()

    def wait() -> None:
        sys.stdin.buffer.read()
        with suppress(RuntimeError):  # the loop has ended already
            loop.call_soon_threadsafe(ended.set_result, str(settings["said"]))

    threading.Thread(target=wait, daemon=True).start()
    await serve(
        listening, settings["token"], [Path(folder) for folder in settings["folders"]], ended
    )


if __name__ == "__main__":
    main()
