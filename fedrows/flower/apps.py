"""The two Flower apps of a task: a ClientApp for nodes and a ServerApp, in a line each.

    app = client_app(TASK)        # client_app.py
    app = server_app(TASK)        # server_app.py

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

from fedrows import catalogue, watch
from fedrows.errors import FedrowsError, PlanError
from fedrows.flower.deployment import Deployment, Journal, carry_out
from fedrows.flower.launch.flwr_patches import pull_objects_sooner
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.private_node import PrivateNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.options import options

RECORD, FIELD = "fedrows", "message"  # the one record of a Flower message, and its field
log = logging.getLogger("fedrows.flower")


def client_app(task: DeployedTask) -> ClientApp:
    """The app of a node; its --node-config has the folder `state`, and what the shard asks."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(int(context.node_config.get("threads", 1)))
        state = NodeState(_folder(context.node_config, "state"))
        try:
            answer = node_of(task, context.run_config, context.node_config, state).answer(
                _content(message)
            )
        except FedrowsError as error:
            state.refuse(str(error))
            raise
        content = RecordDict({RECORD: ConfigRecord({FIELD: answer})})
        return Message(content, reply_to=message)

    return app


def node_of(
    task: DeployedTask, run: Mapping[str, Any], config: Mapping[str, Any], state: NodeState
) -> ClientNode:
    """The node that answers a run's messages; one of a private run knows its peers' keys."""
    use_plugins(config)
    agreed = make_contract(task, run)
    parts = (agreed, task.shard(config), state, _text(config.get("name")))
    if not agreed.secret:
        return ClientNode(*parts)
    least = int(config.get("min-nodes-in-sum", 2))
    return PrivateNode(*parts, peers=_file(config, "peers"), least=least)


def use_plugins(config: Mapping[str, Any]) -> None:
    """Loads the algorithms in the node's own `plugins`, so that a run may name them.

    They are the choice of the node's operator: no message makes a node import a file.
    """
    for reference in (_text(config.get("plugins")) or "").split(","):
        if reference.strip():
            catalogue.algorithm(reference.strip())


def server_app(task: DeployedTask) -> ServerApp:
    """The app that runs the rounds, in the folder `out` of the run's configuration."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config: dict[str, Any] = dict(context.run_config)
        out = _folder(config, "out")
        names = {item.name: item.name.replace("_", "-") for item in options(watch.Watching)}
        seen = {n: config.pop(flag) for n, flag in names.items() if config.get(flag, "") != ""}
        with watch.opened(watch.Watching(**{"log": "text", **seen})) as observer:
            agreed = make_contract(task, config)
            pull_objects_sooner(
                max(1.0, min(10.0, agreed.options.timeout / 4))
            )  # of half-sent replies
            deployment = Deployment(agreed, GridTransport(grid), config, log.info)
            with Journal.opened(out, deployment) as journal:
                carry_out(deployment, journal, observer)

    return app


class GridTransport:
    """Carries messages by Flower's Grid, as one record of one field, which costs the least."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[int]:
        return list(self._grid.get_node_ids())

    def send(self, messages: Mapping[int, bytes], seconds: float, round_: int) -> dict[str, int]:
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


def _content(message: Message) -> bytes:
    try:
        content = message.content[RECORD][FIELD]
    except KeyError:
        content = None
    if not isinstance(content, bytes):
        raise PlanError("A message has come that is not one of fedrows.")
    return content


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
