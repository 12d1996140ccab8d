"""pfl-research: federated averaging in its simulated backend.

One process, as many threads of PyTorch as fedrows has; users are made when they are drawn, from
arrays in memory; no evaluation while training; SGD with sparse gradients of the embedding.
"""

from __future__ import annotations

import numpy as np
import torch
from peers import modules
from peers.worker import Federation, Orders
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

PACKAGES = ("pfl", "torch")


class Trainable(nn.Module):
    """The model with what pfl asks of one."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def loss(self, ids: Tensor, label: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(self.module(ids), label)

    @torch.no_grad()
    def metrics(self, ids: Tensor, label: Tensor) -> dict[str, Weighted]:
        return {"loss": Weighted(float(self.loss(ids, label)) * len(ids), len(ids))}


class Obey(TrainingProcessCallback):
    """Holds the training after so many rounds, until the next order."""

    def __init__(self, orders: Orders) -> None:
        self._orders = iter(orders)
        self._left = next(self._orders, 0)

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        self._left -= 1
        if self._left == 0:
            self._left = next(self._orders, 0)
        return self._left == 0, Metrics()


def follow(federation: Federation, orders: Orders) -> None:
    """Trains as told."""
    rng = np.random.default_rng(0)

    def user(client: int) -> PyTorchTensorDataset:
        ids, label = federation.draw(client, rng)
        return PyTorchTensorDataset((torch.from_numpy(ids), torch.from_numpy(label)))

    sampler = get_user_sampler("random", list(range(federation.clients)))
    users = FederatedDataset(user, sampler)
    module = Trainable(modules.module_for(federation))
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    orders.loss = lambda: modules.loss(module.module, federation)
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**9,
            evaluation_frequency=10**9,
            train_cohort_size=federation.clients_per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=federation.lr,
            local_batch_size=federation.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Obey(orders)],
        send_metrics_to_platform=False,
    )
