"""Node keys for protocols: each node signs what it says, and knows the others' keys beforehand.

    STATE/signing.key    a node's own key, made at its first start
    peers.json           node → public key, in hex: pinned by whoever runs the node

The list of peers comes from the node's own configuration and never from the server, or a server
could put nodes of its own in their place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.files.whole import as_json, make_private, write_whole
from fedrows.flower.wire.message import Message, WireError
from fedrows.privacy.keys import KEY, NodeKey, signed_by

FILE, SIGNED = "signing.key", "signature"


def own_key(state: Path) -> NodeKey:
    """The node's signing key, made up if there is none yet."""
    path = state / FILE
    if not path.exists():
        make_private(state)
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
    """The public keys that a node trusts, by node; no name and no key may be there twice."""
    try:
        entries = json.loads(path.read_text("utf-8"), object_pairs_hook=list)
        pairs = [(str(name), bytes.fromhex(key)) for name, key in entries]
        if not all(len(key) == KEY for _, key in pairs):
            raise ValueError
    except (OSError, ValueError, AttributeError, TypeError):
        raise FedrowsError(
            f"{path} is no list of node keys: write a JSON object of nodes and their public keys."
        ) from None
    by_key: dict[bytes, str] = {}
    for name, key in pairs:
        if name in by_key.values():
            raise FedrowsError(f"{path} has node {name!r} twice: write each node once.")
        if key in by_key:
            raise FedrowsError(
                f"{path} has one key for {by_key[key]!r} and for {name!r}: each node has a key of "
                "its own, or one of them could play both."
            )
        by_key[key] = name
    return dict(pairs)


def sign_enrolment(key: NodeKey, run: Any, version: Any, message: Message) -> Message:
    """The registration of a node with the node's signature, for one request of one run."""
    signature = key.sign(_enrolment(run, version, message))
    return Message(message.kind, message.facts, {**message.parts, SIGNED: signature})


def check_enrolment(keys: Mapping[str, bytes], run: str, version: int, message: Message) -> None:
    """Raises a WireError unless the node that a registration names has signed all of it."""
    name = message.facts.get("node")
    if not isinstance(name, str) or name not in keys:
        raise WireError(
            f"Node {str(name)[:256]!r} is none of the nodes whose keys the server knows."
        )
    signature = message.parts.get(SIGNED, b"")
    if not signed_by(keys[name], signature, _enrolment(run, version, message)):
        raise WireError(
            f"The registration of node {name!r} is not signed with the key that the list of peers "
            "has for it: only the owner of the key has that name."
        )


def _enrolment(run: Any, version: Any, message: Message) -> bytes:
    """What a node signs of its registration: every fact and every part, for one request."""
    own = {name: part for name, part in message.parts.items() if name != SIGNED}
    parts = {name: hashlib.sha256(part).hexdigest() for name, part in own.items()}
    content = ["fedrows enrolment", run, version, message.kind, message.facts, parts]
    return json.dumps(content, sort_keys=True).encode()
