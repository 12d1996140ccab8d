"""What nodes were asked to do in an asynchronous run; gateways are asked device by device.

A gateway answers as soon as one of its devices has sent something, or after a few seconds. While
devices are under way it is asked again and again. Each message says what the server still waits
for: the gateway forgets all other work, and sends what has come in of this. So an answer that is
lost is sent again, one that comes twice counts once, and a device that never answers costs its own
work only.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from fedrows.flower.server.registry import RegisteredClient
from fedrows.flower.server.train_requests import RowHashes
from fedrows.flower.wire.clients import ClientName
from fedrows.rows.index import Index

ANSWER = 60.0  # seconds at most that a gateway's next answer takes; it holds one for a few
PAUSE = 1.0  # seconds until a gateway is asked again that has answered with an error, or nothing


@dataclass(frozen=True)
class NodeWork:
    """What a node was asked to do, and has not answered yet."""

    node: str
    address: int
    version: int  # of the node's list of clients
    tag: int
    began: int  # the step that it began before
    until: float  # when it is given up
    # Of clients that begin with it, if any do:
    members: list[RegisteredClient] = field(default_factory=list)  # as they were registered then
    index: dict[str, Index] = field(default_factory=dict)  # the rows that each of them has
    read: dict[str, Tensor] = field(default_factory=dict)  # how often those had been moved (R,)
    hashes: RowHashes = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)  # when it was asked

    def apart(self) -> Iterator[NodeWork]:
        """The work of each client by itself."""
        rows = {table: self.index[table].lengths.tolist() for table in self.read}
        read = {table: x.split(rows[table]) for table, x in self.read.items()}
        for i, client in enumerate(self.members):
            index = {table: x.slice(i, i + 1) for table, x in self.index.items()}
            own = {table: x[i] for table, x in read.items()}
            yield replace(self, members=[client], index=index, read=own, hashes={})


class GatewayWork:
    """Messages to gateways that are not answered, and work of devices that is under way."""

    def __init__(self) -> None:
        self.messages: dict[str, NodeWork] = {}  # by message id: what it has begun
        self._devices: dict[str, dict[str, NodeWork]] = {}  # by node and TAG/PLACE
        self._paused: dict[str, float] = {}  # gateways that have failed → asked again at

    def devices(self) -> list[NodeWork]:
        """The work of every device that is under way."""
        return [work for own in self._devices.values() for work in own.values()]

    def waiting(self, node: str) -> list[tuple[int, list[int]]]:
        """What is waited for, in a message: tags, and places in the message that had the tag."""
        places: dict[int, list[int]] = {}
        for key in self._devices.get(node, {}):
            tag, position = map(int, key.split("/"))
            places.setdefault(tag, []).append(position)
        return list(places.items())

    def begin(self, message_id: str, work: NodeWork) -> None:
        """Notes a message to a gateway, with the devices that begin with it."""
        until = min(work.until, time.monotonic() + ANSWER)
        self.messages[message_id] = replace(work, until=until)
        own = self._devices.setdefault(work.node, {})
        own.update(
            (f"{work.tag}/{position}", device) for position, device in enumerate(work.apart())
        )

    def end(self, node: str, key: str) -> NodeWork | None:
        """The work of a device, which is over with this; None if nobody waits for it."""
        return self._devices.get(node, {}).pop(key, None)

    def lost(self, addresses: Mapping[str, int]) -> Iterator[tuple[NodeWork, bool]]:
        """Work that is given up now, and whether it is because its gateway has left."""
        now = time.monotonic()
        for own in self._devices.values():
            for key, work in list(own.items()):
                left = addresses.get(work.node) != work.address
                if left or work.until <= now:
                    del own[key]
                    yield work, left

    def is_hasty(self, message: NodeWork) -> bool:
        """Whether a gateway has answered at once; one that has nothing to say holds its answer."""
        return time.monotonic() < message.since + PAUSE

    def pause(self, node: str) -> None:
        """Asks a gateway a little later."""
        self._paused[node] = time.monotonic() + PAUSE

    def idle(self) -> list[str]:
        """The gateways to be asked what has come in: devices are under way, and no message is."""
        asked, now = {message.node for message in self.messages.values()}, time.monotonic()
        return [
            node
            for node, own in self._devices.items()
            if own and node not in asked and self._paused.get(node, 0.0) <= now
        ]


def marked(numbers: Mapping[tuple[str, ClientName], int], works: list[NodeWork]) -> Tensor:
    """The numbers of the clients of some work that are registered still."""
    names = [(work.node, client.name) for work in works for client in work.members]
    return torch.tensor([numbers[x] for x in names if x in numbers], dtype=torch.int64)
