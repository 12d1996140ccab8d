"""Which node a gateway is in a run, and which runs devices can take part in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrows.flower.gateway.device_runs import why_declined
from fedrows.flower.gateway.forms import CODING
from fedrows.flower.gateway.gateway_node import GatewayNode
from fedrows.flower.gateway.private_gateway import PrivateGatewayNode
from fedrows.flower.node.joining import allowed_run, text_in
from fedrows.flower.node.node import ClientNode
from fedrows.flower.node.policy import PolicyError
from fedrows.flower.node.state import NodeState
from fedrows.flower.wire.contract import DeployedTask


def gateway_of(
    task: DeployedTask, run: Mapping[str, Any], config: Mapping[str, Any], state: NodeState
) -> ClientNode:
    """The node that answers a run's messages for devices, if it may take part in that run."""
    agreed, policy, peers = allowed_run(task, run, config)
    if agreed.options.coding != CODING or agreed.plan.dtype != CODING:
        name = "coding" if agreed.options.coding != CODING else "dtype"
        raise PolicyError(f"The run's {name} is not {CODING}, which is all that devices know.")
    data = task.shard(config)
    if data.labels == "ranking":
        raise PolicyError(
            f"The labels of {data.name} are ranking, but the program of a device draws no "
            "negatives: let devices take part in runs on other labels."
        )
    arguments = (agreed, data, state, text_in(config, "name"), policy, config)
    if not agreed.secret:
        return GatewayNode(*arguments)
    if why := why_declined(agreed.privacy, agreed.plan.weighting, data):
        raise PolicyError(why)
    if peers is None:
        raise PolicyError(
            "The run is private, but this gateway has no list of peers: start it with --peers."
        )
    return PrivateGatewayNode(*arguments, peers=peers)
