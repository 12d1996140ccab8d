"""What must hold after every change: pytest"""

from data import load
from run import train


def test_the_data_are_what_they_should_be() -> None:
    data = load()
    assert data.clients > 50
    assert len(data.test) > 0


def test_training_lowers_the_loss() -> None:
    _, history = train(rounds=40)
    assert history[-1]["train_loss"] < history[0]["train_loss"]
