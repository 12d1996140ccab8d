"""What must hold after every change: pytest"""

from pathlib import Path

import fedrows
from fedrows import catalogue

from data import load
from run import train


def test_the_data_are_what_they_should_be() -> None:
    data = load()
    assert data.clients > 50
    assert len(data.test) > 0


def test_the_task_is_found_by_its_file() -> None:
    task = catalogue.task(f"{Path(__file__).with_name('data.py')}:TASK")
    data = task.load(task.options())
    model = catalogue.model(task.model)(data, 0)
    history = fedrows.simulate(data, model, rounds=2).history
    assert history[-1]["round"] == 2


def test_training_lowers_the_loss() -> None:
    _, history = train(rounds=40)
    assert history[-1]["train_loss"] < history[0]["train_loss"]
