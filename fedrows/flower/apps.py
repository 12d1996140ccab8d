"""The two Flower apps of a task: a ClientApp for nodes and a ServerApp, in a line each.

    app = client_app(TASK)        # client_app.py
    app = server_app(TASK)        # server_app.py

Flower starts the ServerApp beside the SuperLink and the ClientApp on every node, carries their
messages, and knows who is there. The run's configuration (pyproject.toml and `fedrows deploy run
--config`) has the options of plan, algorithm and deployment by their names on the command line, and
`out`, the folder that the server writes to. A run whose folder exists goes on from its last
finished round.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedrows import watch
from fedrows.errors import FedrowsError, PlanError
from fedrows.flower.deployment import Deployment
from fedrows.flower.journal import Journal, carry_out
from fedrows.flower.launch.bell import BELL, Bell
from fedrows.flower.launch.flwr_patches import pull_objects_sooner
from fedrows.flower.launch.notices import LEFT, leave_notice
from fedrows.flower.launch.operator_folder import EVENTS, FOLDER, OperatorFolder
from fedrows.flower.node.joining import NodeMaker, answer, file_in
from fedrows.flower.node.state import NodeState
from fedrows.flower.run_progress import ProgressWriter
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.options import options
from fedrows.watch import logs

RECORD, FIELD = "fedrows", "message"  # the one record of a Flower message, and its field
GRACE = 0.02  # seconds from an answer's first part to its last one
PRIVATE = 0o077  # files of an app are its user's alone
log = logging.getLogger("fedrows.flower")


def client_app(task: DeployedTask) -> ClientApp:
    """The app of a node; its --node-config has the folder `state`, and what the shard asks."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        os.umask(PRIVATE)
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        config = context.node_config
        state = NodeState(file_in(config, "state", "folder"))
        try:
            make = _gateway_maker() if config.get("gateway") else None
            reply = answer(task, context.run_config, config, state, _content(message), make)
        except FedrowsError as error:
            state.refuse(str(error))
            raise
        content = RecordDict({RECORD: ConfigRecord({FIELD: reply})})
        return Message(content, reply_to=message)

    return app


def _patience(timeout: float) -> float:
    """How many seconds the server waits for a part of an answer that has begun to come.

    Meanwhile it takes no other answer, so it is little; but who allows slow nodes more time for a
    round also allows them more for a part.
    """
    return max(1.0, min(10.0, timeout / 4), timeout / 12)


def server_app(task: DeployedTask) -> ServerApp:
    """The app that runs the rounds, in the folder `out` of the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        os.umask(PRIVATE)
        config: dict[str, Any] = dict(context.run_config)
        out = file_in(config, "out", "folder")
        folder = OperatorFolder.named(os.environ.get(FOLDER))
        names = {item.name: item.name.replace("_", "-") for item in options(watch.Watching)}
        seen = {n: config.pop(flag) for n, flag in names.items() if config.get(flag, "") != ""}
        seen = {"log": "text", **folder.watching(), **seen}
        with _events(os.environ.get(EVENTS)), watch.opened(watch.Watching(**seen)) as observer:
            agreed = make_contract(task, config)
            pull_objects_sooner(_patience(agreed.options.timeout))
            deployment = Deployment(agreed, GridTransport(grid), config, log.info)
            fleet, run = deployment.fleet, int(context.run_id)
            progress = ProgressWriter(folder, run, deployment)
            fleet.notice = partial(_notice, progress)
            fleet.revoked = folder.revoked
            with Journal.opened(out, deployment) as journal, _failing(progress):
                watchers = watch.Observers([observer, progress])
                carry_out(deployment, journal, watchers, lambda: folder.is_to_stop(run))

    return app


@contextmanager
def _events(path: str | None) -> Iterator[None]:
    """Adds every event to a file, as lines of JSON, if there is to be one."""
    handler = logs.start("json", Path(path)) if path else None
    try:
        yield
    finally:
        if handler is not None:
            logs.stop(handler)


@contextmanager
def _failing(progress: ProgressWriter) -> Iterator[None]:
    """Tells operators if the run fails."""
    try:
        yield
    except FedrowsError as error:
        with suppress(OSError):
            progress.failed(str(error))
        raise


def _notice(progress: ProgressWriter, sentence: str) -> None:
    """Tells operators what a run waits for."""
    leave_notice(sentence, os.environ.get(LEFT))
    with suppress(OSError):  # a full disk is told of elsewhere
        progress.waits(sentence)


class GridTransport:
    """Carries messages by Flower's Grid, as one record of one field, which costs the least."""

    def __init__(self, grid: Grid) -> None:
        self._grid, self._bell = grid, Bell(os.environ.get(BELL))

    def nodes(self) -> list[int]:
        return list(self._grid.get_node_ids())

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        until, pause = time.monotonic() + seconds, 0.5
        while True:
            try:
                return self._push(messages, seconds, round_)
            except (ObjectPushError, httpx.HTTPError) as error:
                if time.monotonic() + pause > until:
                    return {}  # the round goes on without answers
                log.warning("messages of round %d were not taken (%s): sent again", round_, error)
                time.sleep(pause)
                pause = min(2 * pause, 5.0)

    def _push(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        requests = [
            Message(
                RecordDict({RECORD: ConfigRecord({FIELD: content})}),
                dst_node_id=node,
                message_type="train",
                ttl=seconds,
                group_id=str(round_),
            )
            for node, content in messages.items()
        ]
        sent = self._grid.push_messages(requests)
        return {id_: node for id_, node in zip(sent, messages, strict=True) if id_}

    def wait(self, seconds: float) -> None:
        if self._bell.wait(seconds):
            time.sleep(GRACE)

    def receive(self, message_ids: Iterable[str]) -> dict[str, bytes | str]:
        answers: dict[str, bytes | str] = {}
        for reply in self._grid.pull_messages(list(message_ids)):
            asked = reply.metadata.reply_to_message_id
            if reply.has_error():
                answers[asked] = f"it failed ({str(reply.error.reason)[:300]})"
                continue
            try:
                answers[asked] = _content(reply)
            except PlanError as error:
                answers[asked] = str(error)
        return answers


def _gateway_maker() -> NodeMaker:
    """What makes the node of a gateway; other nodes need none of what that imports."""
    from fedrows.flower.gateway.joining_devices import gateway_of

    return gateway_of


def _content(message: Message) -> bytes:
    try:
        content = message.content[RECORD][FIELD]
    except KeyError:
        content = None
    if not isinstance(content, bytes):
        raise PlanError("A message has come that is not one of fedrows.")
    return content
