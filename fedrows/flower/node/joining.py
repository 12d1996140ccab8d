"""A node is made for each message: from its own configuration, its policy, and the run's contract.

    shard, state, name     what the node is
    peers                  the other nodes' public keys, for private runs
    policy                 what a run may ask of it (`fedrows deploy policy`)
    plugins                algorithms that a run may name

A node with peers and without a policy has the default policy, which declines runs in the clear. A
node with neither takes part in anything: that is the choice of whoever runs it.

A node with peers answers one message at a time. Where files cannot be locked it declines private
runs, for two answers from one state of a secure sum would show what the masks hide.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.errors import FedrowsError, PlanError
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.node_sums import forget_sums
from fedrows.flower.node.noisy_node import NoisyNode
from fedrows.flower.node.policy import NodePolicy, PolicyError, read_policy
from fedrows.flower.node.private_node import NO_ANSWER, PrivateNode
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import Contract, DeployedTask, make_contract
from fedrows.flower.wire.message import Message, pack
from fedrows.flower.wire.signing import read_peers

NodeMaker = Callable[[DeployedTask, Mapping[str, Any], Mapping[str, Any], NodeState], ClientNode]
log = logging.getLogger("fedrows.flower")


def answer(
    task: DeployedTask,
    run: Mapping[str, Any],
    config: Mapping[str, Any],
    state: NodeState,
    request: bytes,
    make: NodeMaker | None = None,
) -> bytes:
    """The node's answer to a message; of a run that its policy forbids the server learns no more.

    run: the run's configuration, from the server. config: the node's own. make: what makes the
    node, `node_of` by default.
    """
    try:
        with state.answering() if config.get("peers") else nullcontext(False) as alone:
            forget_sums(state.folder)
            node = (make or node_of)(task, run, config, state)
            if isinstance(node, PrivateNode) and not alone:
                raise PolicyError(
                    f"The run is private, but files in {state.folder} cannot be locked: choose a "
                    "state folder on a file system with locks."
                )
            return node.answer(request)
    except PolicyError as error:
        state.decline(str(error))
        log.warning("This node declines: %s", error)
        return pack(Message("declined"))
    except Exception:
        if not config.get("peers") and not config.get("policy"):
            raise
        # Flower would send the error's text to the server, and it may speak of the node's data.
        log.exception("This node could not answer a message.")
        return pack(Message("silent", {"why": NO_ANSWER}))


def node_of(
    task: DeployedTask, run: Mapping[str, Any], config: Mapping[str, Any], state: NodeState
) -> ClientNode:
    """The node that answers a run's messages, if its policy allows that run."""
    agreed, policy, peers = allowed_run(task, run, config)
    if not agreed.secret:
        return ClientNode(agreed, task.shard(config), state, text_in(config, "name"), policy)
    if peers is None:
        raise PolicyError("The run is private, but this node has no list of peers: add `peers`.")
    return (NoisyNode if agreed.privacy.noise_in_sum else PrivateNode)(
        agreed, task.shard(config), state, text_in(config, "name"), policy, peers=peers
    )


def allowed_run(
    task: DeployedTask, run: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[Contract, NodePolicy, Path | None]:
    """The contract of a run, with the policy that allows it and the node's list of peers."""
    policy, peers = _own(config)
    use_plugins(config)
    agreed = make_contract(task, run)
    policy.check(agreed.privacy, task.name, peers)
    policy.check_weighting(agreed.privacy, agreed.plan.weighting)
    policy.check_start(agreed.plan.start)
    return agreed, policy, peers


def _own(config: Mapping[str, Any]) -> tuple[NodePolicy, Path | None]:
    """The node's policy and its list of peers; where they cannot be used, no run can be joined."""
    try:
        peers = file_in(config, "peers") if config.get("peers") else None
        if peers is not None:
            read_peers(peers)
        if config.get("policy"):
            return read_policy(file_in(config, "policy")), peers
    except FedrowsError as error:
        raise PolicyError(str(error)) from None
    return NodePolicy() if peers else NodePolicy.open(), peers


def use_plugins(config: Mapping[str, Any]) -> None:
    """Loads the algorithms in the node's own `plugins`, so that a run may name them.

    They are the choice of the node's operator: no message makes a node import a file.
    """
    for reference in (text_in(config, "plugins") or "").split(","):
        if reference.strip():
            catalogue.algorithm(reference.strip())


def file_in(config: Mapping[str, Any], name: str, kind: str = "file") -> Path:
    """A file that a configuration names."""
    text = text_in(config, name)
    if text is None:
        raise PlanError(f"The configuration does not name the {kind} {name!r}: add it.")
    path = Path(text).expanduser()
    if not path.is_absolute():
        raise PlanError(f"{name} is {text}, but apps have no folder of their own: give all of it.")
    return path


def text_in(config: Mapping[str, Any], name: str) -> str | None:
    """A text of a configuration; None if it is missing or empty."""
    value = config.get(name)
    return str(value) if value not in (None, "") else None
