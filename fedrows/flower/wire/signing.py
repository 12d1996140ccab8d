"""Node keys for protocols: each node signs what it says, and knows the others' keys beforehand.

    STATE/signing.key    a node's own key, made at its first start
    peers.json           node → public key, in hex: pinned by whoever runs the node

The list of peers comes from the node's own configuration and never from the server, or a server
could put nodes of its own in their place.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from fedrows.errors import FedrowsError
from fedrows.files.whole import as_json, write_whole
from fedrows.privacy.keys import KEY, NodeKey

FILE = "signing.key"


def own_key(state: Path) -> NodeKey:
    """The node's signing key, made up if there is none yet."""
    path = state / FILE
    if not path.exists():
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(NodeKey().secret)
    secret = path.read_bytes()
    if len(secret) != KEY:
        raise FedrowsError(f"{path} is no signing key: restore it, or join as a new node.")
    return NodeKey(secret)


def write_peers(path: Path, keys: Mapping[str, bytes]) -> None:
    """Writes a list of nodes and their public keys."""
    write_whole(path, as_json({name: key.hex() for name, key in sorted(keys.items())}, indent=1))


def read_peers(path: Path) -> dict[str, bytes]:
    """The public keys that a node trusts, by node."""
    try:
        entries = json.loads(path.read_text("utf-8"))
        keys = {str(name): bytes.fromhex(key) for name, key in entries.items()}
        if not all(len(key) == KEY for key in keys.values()):
            raise ValueError
    except (OSError, ValueError, AttributeError, TypeError):
        raise FedrowsError(
            f"{path} is no list of node keys: write a JSON object of nodes and their public keys."
        ) from None
    return keys
