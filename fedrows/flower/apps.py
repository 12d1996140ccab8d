"""The two Flower apps of a job: a ClientApp for nodes and a ServerApp, in a line each.

    app = client_app(JOB)        # client_app.py
    app = server_app(JOB)        # server_app.py

Flower starts the ServerApp beside the SuperLink and the ClientApp on every node, carries their
messages, and knows who is there. The run's configuration (pyproject.toml, `flwr run --run-config`)
has the options of plan, algorithm and deployment by their names on the command line, and `out`, the
folder that the server writes to. A run whose folder exists goes on from its last finished round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedrows import watch
from fedrows.errors import FedrowsError, PlanError
from fedrows.flower.deployment import Deployment, Journal, carry_out
from fedrows.flower.job import Job, contract
from fedrows.flower.node import ClientNode
from fedrows.flower.patience import shorten_pulls
from fedrows.flower.private_node import PrivateNode
from fedrows.flower.state import NodeState
from fedrows.options import options

LETTER, BYTES = "fedrows", "letter"  # the one record of a message, and its one field
log = logging.getLogger("fedrows.flower")


def client_app(job: Job) -> ClientApp:
    """The app of a node. Its --node-config has `state`, a folder, and what the job's shard asks."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        state = NodeState(_folder(context.node_config, "state"))
        try:
            answer = node_of(job, context.run_config, context.node_config, state).answer(
                _letter(message)
            )
        except FedrowsError as error:
            state.refuse(str(error))
            raise
        content = RecordDict({LETTER: ConfigRecord({BYTES: answer})})
        return Message(content, reply_to=message)

    return app


def node_of(
    job: Job, run: Mapping[str, Any], config: Mapping[str, Any], state: NodeState
) -> ClientNode:
    """The node that answers a run's letters; one of a private run knows its peers' keys."""
    agreed = contract(job, run)
    parts = (agreed, job.shard(config), state, _text(config.get("name")))
    if not agreed.secret:
        return ClientNode(*parts)
    least = int(config.get("min-nodes-in-sum", 2))
    return PrivateNode(*parts, peers=_file(config, "peers"), least=least)


def server_app(job: Job) -> ServerApp:
    """The app that runs the rounds, in the folder `out` of the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        out = _folder(config, "out")
        names = {item.name: item.name.replace("_", "-") for item in options(watch.Watching)}
        seen = {n: config.pop(flag) for n, flag in names.items() if config.get(flag, "") != ""}
        with watch.opened(watch.Watching(**{"log": "text", **seen})) as observer:
            agreed = contract(job, config)
            shorten_pulls(max(1.0, min(10.0, agreed.terms.timeout / 4)))  # of half-sent replies
            deployment = Deployment(agreed, GridPost(grid), config, log.info)
            carry_out(deployment, Journal.opened(out, deployment), observer)

    return app


class GridPost:
    """Letters by way of Flower's Grid: one record of one field of bytes, which costs the least."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        return list(self._grid.get_node_ids())

    def send(self, letters: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
        messages = [
            Message(
                RecordDict({LETTER: ConfigRecord({BYTES: letter})}),
                dst_node_id=node,
                message_type="train",
                ttl=seconds,
                group_id=str(round_),
            )
            for node, letter in letters.items()
        ]
        sent = self._grid.push_messages(messages)
        return {message: node for message, node in zip(sent, letters, strict=True) if message}

    def receive(self, messages: Iterable[str]) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for reply in self._grid.pull_messages(list(messages)):
            asked = reply.metadata.reply_to_message_id
            if reply.has_error():
                found[asked] = f"it failed ({str(reply.error.reason)[:300]})"
                continue
            try:
                found[asked] = _letter(reply)
            except PlanError as error:
                found[asked] = str(error)
        return found


def _letter(message: Message) -> bytes:
    try:
        letter = message.content[LETTER][BYTES]
    except KeyError:
        letter = None
    if not isinstance(letter, bytes):
        raise PlanError("A message that is not a letter of fedrows has come.")
    return letter


def _folder(config: Mapping[str, Any], name: str) -> Path:
    return _file(config, name, "folder")


def _file(config: Mapping[str, Any], name: str, kind: str = "file") -> Path:
    text = _text(config.get(name))
    if text is None:
        raise PlanError(f"The configuration does not name the {kind} {name!r}: add it.")
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise PlanError(f"{name} is {text}, but apps have no folder of their own: give all of it.")
    return path


def _text(value: Any) -> str | None:
    return str(value) if value not in (None, "") else None
