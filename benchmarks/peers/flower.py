"""Flower: FedAvg in its simulation, every client a virtual node.

The simulation runtime on Ray, an actor of one thread on every core, which keeps data and module
between messages; federated evaluation off; SGD with sparse gradients of the embedding.
"""

from __future__ import annotations

import os
from functools import cache

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers import modules
from peers.worker import Federation, Orders
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

PACKAGES = ("flwr", "ray", "torch")
PLACE = "PEERS_FEDERATION"  # the variable that tells an actor where the data are

client_app = ClientApp()


@cache
def at_hand(path: str) -> tuple[Federation, nn.Module, np.random.Generator]:
    """What an actor keeps from one message to the next."""
    torch.set_num_threads(1)
    federation = Federation.read(path)
    return federation, modules.module_for(federation), np.random.default_rng(os.getpid())


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """One client's round."""
    federation, module, rng = at_hand(os.environ[PLACE])
    client = int(context.node_config["partition-id"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(module.parameters(), lr=federation.lr)
    ids, label = map(torch.from_numpy, federation.draw(client, rng))
    size = federation.batch_size
    for x, y in zip(ids.split(size), label.split(size), strict=True):
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(module(x), y).backward()
        optimiser.step()
    examples = int(federation.splits[client + 1] - federation.splits[client])
    content = RecordDict(
        {
            "arrays": ArrayRecord(module.state_dict()),
            "metrics": MetricRecord({"num-examples": examples}),
        }
    )
    return Message(content=content, reply_to=message)


def follow(federation: Federation, orders: Orders) -> None:
    """Trains as told."""
    os.environ[PLACE] = federation.path  # Ray's actors inherit it
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=federation.clients_per_round / federation.clients,
            fraction_evaluate=0.0,
            min_train_nodes=federation.clients_per_round,
            min_available_nodes=federation.clients,
        )
        module = modules.module_for(federation)
        arrays = ArrayRecord(module.state_dict())

        def loss() -> float:
            module.load_state_dict(arrays.to_torch_state_dict())
            return modules.loss(module, federation)

        orders.loss = loss
        for count in orders:
            arrays = strategy.start(grid, arrays, num_rounds=count).arrays

    run_simulation(
        server_app,
        client_app,
        num_supernodes=federation.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
