"""Made-up examples with a known answer: items from hot to cold, and clients whose groups differ.

    an item         with probability ∝ 1 / rank^skew, for every example anew (with replacement)
    a client        belongs to one of G groups; the number of its examples is log-normal
    the label       1 with probability σ(bias + group + item quality + the group's taste for it)

The logit is a sum of weights of one-hot features, so logistic regression can be exactly right, and
the best loss that any model can expect on the test examples is known: their mean entropy H(p).
Every draw is a function of the options and a counter: same options, same examples, anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedrows.data.federation import FederatedData
from fedrows.data.splits import Split, mark_validation, split_at_random
from fedrows.options import check, option
from fedrows.rows.params import Params
from fedrows.seeds import MAKE, below, bits, key, normal, uniform
from fedrows.task import Task

BIAS = 0.5
LEANING = 0.3  # spread of the groups' own weights
SPREAD = 1.0  # of the logarithm of a client's number of examples
FEWEST = 5  # examples of a client

# What is drawn; each has a stream of its own.
_GROUP, _SIZE, _ITEM, _LEANING, _QUALITY, _TASTE, _LABEL = range(7)


@dataclass(frozen=True)
class SyntheticOptions:
    """How large the federation is, and how uneven."""

    clients: int = option(5_000, "Number of clients.", least=1)
    items: int = option(2_500, "Number of items.", least=1)
    client_groups: int = option(3, "Groups of clients, each with a taste of its own.", least=1)
    examples_per_client: float = option(60.0, "Mean number of examples of a client.", least=5)
    skew: float = option(1.0, "Zipf exponent of the items' popularity; 0 is even.", least=0)
    quality: float = option(2.0, "Spread of the items' quality, in logits.", least=0)
    taste: float = option(0.5, "Spread of a group's taste for an item, in logits.", least=0)
    test_share: float = option(0.2, "Share of the examples held out at random.", least=0, most=0.9)
    validation: float = option(
        0.0, "Share of the training examples held out for validation, at random.", least=0, most=0.9
    )
    seed: int = option(0, "The same seed gives the same data.", least=0, most=2**63 - 1)

    def __post_init__(self) -> None:
        check(self)


def load(options: SyntheticOptions) -> FederatedData:
    """The examples, with the best achievable test loss."""
    items, groups = options.items, options.client_groups
    client = np.repeat(np.arange(options.clients), _sizes(options))
    first = groups + items  # where group×item begins
    features = _features(options, client)
    test = split_at_random(len(client), options.test_share, options.seed)
    label, best_loss = _labels(options, features, test)
    return FederatedData.build(
        name="synthetic",
        client=client,
        ids={"features": features},
        label=label,
        test=test,
        validation=mark_validation(
            Split.random(options.validation), test, client, None, options.seed
        ),
        tables={"weight": first + groups * items},
        fields={"features": "weight"},
        target=("features", 1),
        groups={
            "weight": {
                "group": (0, groups),
                "item": (groups, first),
                "group×item": (first, first + groups * items),
            }
        },
        best_loss=best_loss,
    )


def _features(options: SyntheticOptions, client: np.ndarray) -> np.ndarray:
    """The group, the item and the group×item of every example (n,): (n, 3)."""
    items, groups = options.items, options.client_groups
    group = below(_bits(options, _GROUP, options.clients), groups).numpy()[client]
    popularity = np.arange(1, items + 1) ** -options.skew
    edges = np.cumsum(popularity / popularity.sum())
    item = np.searchsorted(edges[:-1], uniform(_bits(options, _ITEM, len(client))).numpy())
    return np.stack([group, groups + item, groups + items + group * items + item], axis=1)


def _labels(
    options: SyntheticOptions, features: np.ndarray, test: np.ndarray
) -> tuple[np.ndarray, float | None]:
    """The label of every example, and the best loss of the test examples."""
    true = truth(options)
    weight = true.tables["weight"].numpy()[:, 0]
    logit = float(true.dense["bias"]) + weight[features].sum(1)
    p = 1 / (1 + np.exp(-logit))
    label: np.ndarray = uniform(_bits(options, _LABEL, len(features))).numpy() < p
    p = p[test]
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    return label, float(entropy.mean()) if len(p) else None


def truth(options: SyntheticOptions) -> Params:
    """The numbers that the labels were drawn with, as logistic regression would hold them."""
    items, groups = options.items, options.client_groups
    leaning = LEANING * normal(_bits(options, _LEANING, groups))
    quality = options.quality * normal(_bits(options, _QUALITY, items))
    taste = options.taste * normal(_bits(options, _TASTE, groups * items))
    weight = torch.cat([leaning, quality, taste])[:, None]
    return Params({"weight": weight}, {"bias": torch.tensor(BIAS, dtype=torch.float64)})


def _sizes(options: SyntheticOptions) -> np.ndarray:
    """The number of every client's examples: log-normal, but not below the fewest."""
    drawn = torch.exp(SPREAD * normal(_bits(options, _SIZE, options.clients)) - SPREAD**2 / 2)
    return (options.examples_per_client * drawn).round().clamp(min=FEWEST).long().numpy()


def _bits(options: SyntheticOptions, stream: int, count: int) -> Tensor:
    """Random bits number 0 … count−1 of one stream."""
    return bits(key(options.seed, MAKE, stream), torch.arange(count))


TASK = Task(
    name="synthetic",
    summary="Made-up items, hot and cold, rated by groups of clients; the best loss is known.",
    options=SyntheticOptions,
    load=load,
    model="logistic",
    plan={
        "clients_per_round": 50,
        "local_steps": 10,
        "batch_size": 5,
        "lr": 0.1,
        "weighting": "examples",
        "threads": 1,  # the steps of logistic regression are too small to share
    },
    algorithms={"fedadam": {"server_lr": 0.1, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}},
)
