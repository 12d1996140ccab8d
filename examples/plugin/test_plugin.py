"""What must hold of the plug-in; it has to be installed."""

import torch

import fedrows
from fedrows import catalogue


def test_everything_is_found_by_name() -> None:
    for kind, name in (("algorithm", "fedavgm"), ("model", "taste"), ("task", "coins")):
        assert name in catalogue.names(kind)


def test_without_momentum_it_is_fedavg() -> None:
    task = catalogue.task("coins")
    data = task.load(task.options())
    results = [
        fedrows.simulate(data, catalogue.model("taste")(data, 0), algorithm, rounds=5, lr=0.1)
        for algorithm in ("fedavg", catalogue.algorithm("fedavgm")(momentum=0.0))
    ]
    first, second = (result.params.tables["coin"] for result in results)
    torch.testing.assert_close(first, second)
