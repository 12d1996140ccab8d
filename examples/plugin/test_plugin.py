"""What must hold of the plug-in; it has to be installed."""

import torch

import fedrows
from fedrows import catalogue
from fedrows.privacy.options import Privacy


def test_everything_is_found_by_name() -> None:
    names = {"algorithm": "fedavgm", "model": "taste", "task": "coins", "mechanism": "allrows"}
    for kind, name in names.items():
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


def test_the_mechanism_accounts_for_every_round() -> None:
    task = catalogue.task("coins")
    data = task.load(task.options())
    privacy = Privacy.of("full", mechanism="allrows", dp_noise=2.0)
    model = catalogue.model("taste")(data, 0)
    result = fedrows.simulate(data, model, "fedavg", rounds=2, clients_per_round=5, privacy=privacy)
    assert 0 < result.history[-1]["epsilon"]["model/user-replaced"] < 20
