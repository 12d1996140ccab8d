"""Pinned apps: a node that runs only apps it knows by their hash.

The app of a run comes over the network, from whoever may submit runs. A node that pins apps checks
the very bytes that it is about to install: the SHA-256 of the .fab file that `flwr build` writes.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import re
from typing import Any

from fedrows.flower.launch.processes import LaunchError

APPS = "FEDROWS_APPS"


def hashes(text: str) -> list[str]:
    """Hashes from their comma-separated text."""
    found = [part.strip().lower() for part in text.split(",") if part.strip()]
    for one in found:
        if not re.fullmatch(r"[0-9a-f]{64}", one):
            raise LaunchError(
                f"{one!r} is not the hash of an app: give the SHA-256 of its .fab file, 64 digits."
            )
    return found


def pin_apps() -> None:
    """Has this process install only the apps that the environment names; any, if it names none."""
    allowed = hashes(os.environ.get(APPS, ""))
    if not allowed:
        return
    try:
        module: Any = importlib.import_module("flwr.supernode.runtime.run_clientapp")
        install = module.install_from_fab
    except (ImportError, AttributeError):
        raise LaunchError(
            "This flwr is not built as expected, so apps cannot be pinned: use flwr 1.41."
        ) from None

    def install_known(content: Any, *words: Any, **more: Any) -> Any:
        data = content if isinstance(content, bytes) else content.read_bytes()
        found = hashlib.sha256(data).hexdigest()
        if found not in allowed:
            raise LaunchError(f"This node does not run the app {found}: it is not pinned here.")
        return install(data, *words, **more)

    module.install_from_fab = install_known
