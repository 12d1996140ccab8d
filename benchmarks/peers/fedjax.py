"""FedJAX: its own federated averaging, a jitted step for one client after another.

One process, as many threads as XLA takes by itself; its default backend, where a client's step is
jitted; the LSTM is a scan over time of Haiku's cells inside that step; data in memory.
"""

from __future__ import annotations

from itertools import pairwise

import jax

if not hasattr(jax, "tree_map"):
    jax.tree_map = jax.tree_util.tree_map  # gone from JAX, and FedJAX 0.0.17 still calls it

import fedjax
import haiku as hk
import jax.numpy as jnp
import numpy as np
from fedjax.algorithms import fed_avg
from peers.worker import Federation, Orders

PACKAGES = ("fedjax", "jax", "dm-haiku")


def forward(federation: Federation) -> hk.Transformed:
    """The model: ids of a batch in, (B,) logits out."""

    def logistic(batch: dict[str, jax.Array]) -> jax.Array:
        weight = hk.get_parameter("weight", [federation.rows], init=jnp.zeros)
        bias = hk.get_parameter("bias", [], init=jnp.zeros)
        return weight[batch["x"]].sum(1) + bias

    def text(batch: dict[str, jax.Array]) -> jax.Array:
        words = hk.Embed(federation.rows, 25)(batch["x"])  # (B, T, 25)
        stack = hk.DeepRNN([hk.LSTM(100), hk.LSTM(100)])
        start = stack.initial_state(words.shape[0])
        hidden, _ = hk.dynamic_unroll(stack, words, start, time_major=False)
        return hk.Linear(1)(hidden[:, -1])[:, 0]

    return hk.transform({"lr": logistic, "lstm": text}[federation.model])


def cross_entropy(batch: dict[str, jax.Array], logits: jax.Array) -> jax.Array:
    """The loss of each example."""
    return jnp.logaddexp(0, logits) - batch["y"] * logits


def follow(federation: Federation, orders: Orders) -> None:
    """Trains as told."""
    ids, splits = federation.ids.astype(np.int32), federation.splits
    clients = {
        client: {"x": ids[low:high], "y": federation.label[low:high]}
        for client, (low, high) in enumerate(pairwise(splits))
    }
    data = fedjax.InMemoryFederatedData(clients)
    model = fedjax.create_model_from_haiku(
        transformed_forward_pass=forward(federation),
        sample_batch={"x": ids[: federation.batch_size], "y": federation.label[:1]},
        train_loss=cross_entropy,
    )
    algorithm = fed_avg.federated_averaging(
        fedjax.model_grad(model),
        client_optimizer=fedjax.optimizers.sgd(federation.lr),
        server_optimizer=fedjax.optimizers.sgd(1.0),
        client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
            batch_size=federation.batch_size, num_steps=federation.local_steps, num_epochs=None
        ),
    )
    state = algorithm.init(model.init(jax.random.PRNGKey(0)))
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        data, federation.clients_per_round, seed=0
    )
    x, y = federation.some()
    sample = {"x": x.astype(np.int32), "y": y}

    def loss() -> float:
        return float(cross_entropy(sample, model.apply_for_eval(state.params, sample)).mean())

    orders.loss = loss
    for count in orders:
        for _ in range(count):
            state, _ = algorithm.apply(state, sampler.sample())
        jax.block_until_ready(state.params)
