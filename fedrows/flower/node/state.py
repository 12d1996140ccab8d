"""What a node keeps on its disk: who it is, and what its clients remember between rounds.

    answering.lock                    held while it answers a message, if it has peers
    node.json                         its name, and the secret that proves it is the same node
    declined.txt                      why it took no part in a run, the last time
    policy-use.json                   what runs have used of its policy
    RUN/enrolled/VERSION.safetensors  the clients that the server knows of
    RUN/registrations/…               of a gateway: which registration of each device that is
    RUN/cache/TAG.safetensors         the rows that it has of the model
    RUN/held/…-0.safetensors          rows that it holds back, in a private run
    RUN/sums/                         its part in a secure sum, while a private round is under way
    RUN/clients/KEY/TAG.safetensors   control variates, error feedback, rows that never leave

A tag names one try of one round. What a round leaves is written under the round's own tag, beside
what was there; the server's next message says which tag counted, and only that one stays. So a
client never moves on from a round that the server did not accept, whoever was killed when.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from fedrows.errors import FedrowsError
from fedrows.files.whole import as_json, make_private, reason, wait_for_lock, write_private
from fedrows.flower.wire.clients import ClientName

Memory = dict[str, Tensor]
NODE, REFUSED, DECLINED = "node.json", "refused.txt", "declined.txt"


class NodeState:
    """A node's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            make_private(folder)
        except OSError as error:
            raise FedrowsError(
                f"The state folder {folder} cannot be made ({reason(error)}): choose another."
            ) from error
        self.enrolled = TaggedTensors(folder / "enrolled")  # clients, by versions of the list
        self.cache = TaggedTensors(folder / "cache")
        self.held = TaggedTensors(folder / "held")
        self.registrations = TaggedTensors(folder / "registrations")  # by versions, too

    def answering(self) -> AbstractContextManager[bool]:
        """Waits until no other process answers for this node; False if there are no locks here.

        Two answers from one state of a secure sum would show the difference of their masks.
        """
        return locked(self.folder / "answering.lock")

    def identity(self, wanted: str | None = None) -> tuple[str, str]:
        """The node's name and its secret, made up at its first start."""
        path = self.folder / NODE
        if not path.exists():
            name = wanted or f"node-{secrets.token_hex(4)}"
            write_private(path, as_json({"name": name, "secret": secrets.token_hex(32)}))
        try:
            identity = json.loads(path.read_bytes())
            name, secret = identity["name"], identity["secret"]
        except (OSError, ValueError, KeyError, TypeError):
            raise FedrowsError(
                f"{path} is damaged: delete {self.folder} to join as a new node."
            ) from None
        if wanted is not None and wanted != name:
            raise FedrowsError(
                f"The state in {self.folder} is that of node {name!r}, not of {wanted!r}: "
                "give each node a folder of its own."
            )
        return name, secret

    def of_run(self, run: object) -> NodeState:
        """The part that belongs to one run of a server."""
        return NodeState(self._run(run))

    def has_run(self, run: object) -> bool:
        """Whether the node has enrolled in a run; no other message makes a folder."""
        return self._run(run).is_dir()

    def _run(self, run: object) -> Path:
        if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{16}", run):
            raise FedrowsError("The server's message does not say which run it belongs to.")
        return self.folder / run

    def refuse(self, why: str) -> None:
        """Leaves the reason for whoever started this node."""
        write_private(self.folder / REFUSED, why.encode() + b"\n")

    def decline(self, why: str) -> None:
        """Leaves the reason why this node takes no part in a run."""
        write_private(self.folder / DECLINED, why.encode() + b"\n")

    def of(self, client: ClientName) -> TaggedTensors:
        """What one client remembers."""
        return TaggedTensors(self.folder / "clients" / _key(client))

    def answers(self, client: ClientName, table: str) -> Path:
        """Where a client's permanent answers lie; they outlive every run."""
        return self.folder / "answers" / _key(client) / f"{_key(table)}.npz"

    def memories(self, clients: Sequence[ClientName], tags: Sequence[int]) -> list[Memory]:
        """What clients remember since the tags that count; all else is dropped."""
        pairs = zip(clients, tags, strict=True)
        return [self.of(client).settle(tag) or {} for client, tag in pairs]


class TaggedTensors:
    """Tensors under tags, a file each; one of them counts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def settle(self, tag: int) -> dict[str, Tensor] | None:
        """What was stored under the tag that counts; all else is dropped. None if it is lost."""
        for other in self.folder.glob("*.safetensors"):
            if other != self._path(tag):
                with suppress(OSError):
                    other.unlink()
        return self.get(tag)

    def get(self, tag: int) -> dict[str, Tensor] | None:
        """What was stored under a tag; None if it is lost or damaged."""
        try:
            return safetensors.torch.load(self._path(tag).read_bytes())
        except (OSError, safetensors.SafetensorError):
            return None

    def put(self, tag: int, tensors: Mapping[str, Tensor], **facts: Any) -> None:
        """Stores tensors under a tag, whole or not at all."""
        make_private(self.folder)
        # Copies: two names may stand for one tensor, such as the ids of a client's rows.
        plain = {name: x.detach().contiguous().clone() for name, x in tensors.items()}
        metadata = {name: json.dumps(value) for name, value in facts.items()}
        write_private(self._path(tag), safetensors.torch.save(plain, metadata or None))

    def facts(self, tag: int, name: str) -> Any:
        """A fact that was stored beside the tensors of a tag; None if there is none."""
        try:
            with safetensors.safe_open(self._path(tag), framework="pt") as file:
                return json.loads((file.metadata() or {})[name])
        except (OSError, safetensors.SafetensorError, KeyError, ValueError):
            return None

    def _path(self, tag: int) -> Path:
        return self.folder / f"{tag >> 31:08d}-{tag & (2**31 - 1):08x}.safetensors"


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Waits until no other process of this machine is in the block; False if it cannot know."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield wait_for_lock(handle)
    finally:
        os.close(handle)


def _key(name: ClientName) -> str:
    return hashlib.sha256(json.dumps(name).encode()).hexdigest()[:32]
