"""Long polling in front of a SuperLink: a node's request for messages waits until there is one.

flwr answers such a request at once, so that nodes ask every few seconds and messages lie meanwhile.
Here a request that would get nothing is held for a while: nodes ask less often and hear at once.
When a node sends an answer, the bell is rung for the ServerApp, which waits on this machine.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from importlib import import_module
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedrows.flower.launch.bell import Bell

HOLD = 3.0  # seconds that a request is held at most
LARGEST = 1 << 20  # bytes of a message that is looked into
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
PART = "/v1/runtime/push-object"  # the parts of messages follow the messages themselves
ANSWER = "/v1/fleet/push-object"  # a part of a node's answer


class LongPoll:
    """A web application in front of another, which holds requests that would get nothing."""

    def __init__(self, app: ASGIApp, bell: Bell, seconds: float = HOLD) -> None:
        self.app, self.bell, self.seconds = app, bell, seconds
        self._sent: Counter[int] = Counter()  # messages to each node, so far
        self._quiet: set[int] = set()  # nodes that got nothing last time, and nothing since
        self._wake: dict[int, asyncio.Event] = {}
        self._parts = 0  # of messages that have come, and that have not come yet
        self._coming: set[int] = set()  # nodes whose messages have parts to come
        self._last_part = 0.0
        self._messages: Any = import_module("flwr.proto.fleet_pb2")
        self._runtime: Any = import_module("flwr.proto.runtime_pb2")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "") if scope["type"] == "http" else ""
        if path == PULL:
            await self._pull(scope, receive, send)
        elif path == PUSH:
            await self._push(scope, receive, send)
        else:
            await self.app(scope, receive, send)
            if path == ANSWER:
                self.bell.ring()
            if path == PART:
                self._expect(-1)

    async def _pull(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Holds a node's request until there may be a message for it."""
        body = _Body(receive)
        request = _parsed(self._messages.PullMessagesRequest, await body.read())
        node = request.node.node_id if request is not None else 0
        if node in self._quiet and not await self._held(node, body):
            return
        before, answer = self._sent[node], _Answer(send)
        await self.app(scope, body.receive, answer.send)
        got = _parsed(self._messages.PullMessagesResponse, answer.body)
        nothing = answer.status == 200 and got is not None and not got.messages_list
        if nothing and self._sent[node] == before:
            self._quiet.add(node)

    async def _held(self, node: int, body: _Body) -> bool:
        """Waits for a message to a node; False if the node has gone meanwhile."""
        wake = self._wake.setdefault(node, asyncio.Event())
        waiting = {asyncio.ensure_future(wake.wait()), asyncio.ensure_future(body.receive_more())}
        done, left = await asyncio.wait(
            waiting, timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED
        )
        for task in left:
            task.cancel()
        return not any(task.result() == "gone" for task in done)

    async def _push(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Wakes up the nodes that the ServerApp has sent messages to, once these are complete."""
        body, answer = _Body(receive), _Answer(send)
        request = _parsed(self._runtime.PushAppMessagesRequest, await body.read())
        await self.app(scope, body.receive, answer.send)
        if answer.status != 200:
            return
        if request is None:  # too long to look into: it may be for anybody
            nodes = {*self._quiet, *self._wake}
        else:
            nodes = {message.metadata.dst_node_id for message in request.messages_list}
        for node in nodes:
            self._sent[node] += 1
            self._quiet.discard(node)
        self._coming |= nodes
        got = _parsed(self._runtime.PushAppMessagesResponse, answer.body)
        self._expect(0 if got is None else len(got.objects_to_push))

    def _expect(self, parts: int) -> None:
        """Takes note of parts that will come, or have come; with the last one nodes wake up."""
        if time.monotonic() - self._last_part > HOLD:  # whoever sent the others has gone
            self._parts = 0
        self._last_part = time.monotonic()
        self._parts = max(self._parts + parts, 0)
        if not self._parts:
            for node in self._coming:
                if (wake := self._wake.pop(node, None)) is not None:
                    wake.set()
            self._coming.clear()


class _Body:
    """A request's body, which is read ahead and can then be read again."""

    def __init__(self, receive: Receive) -> None:
        self._receive, self._read = receive, list[Any]()

    async def read(self) -> bytes:
        """The body, or as much of it as may be looked into."""
        body = b""
        while len(body) < LARGEST:
            message = await self._receive()
            self._read.append(message)
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        return body

    async def receive(self) -> Any:
        """The next part, as if nothing had been read."""
        return self._read.pop(0) if self._read else await self._receive()

    async def receive_more(self) -> str:
        """Waits for what follows the body; "gone" when the one who asks has gone."""
        message = await self._receive()
        self._read.append(message)
        return "gone" if message["type"] == "http.disconnect" else "more"


class _Answer:
    """An answer on its way out, with its status and the beginning of its body."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.body = send, 0, b""

    async def send(self, message: Message) -> None:
        """Passes a part of the answer on."""
        self.status = message.get("status", self.status)
        if len(self.body) < LARGEST:
            self.body += message.get("body", b"")
        await self._send(message)


def _parsed(kind: Any, data: bytes) -> Any:
    """The message in some bytes; None if there is none, or they are too many."""
    if len(data) >= LARGEST:
        return None
    try:
        return kind.FromString(data)
    except Exception:  # protobuf's own errors; whoever is behind us refuses it
        return None
