"""Trains the model on the log file, evaluates it and saves it: python run.py"""

from typing import Any

import torch

import fedrows

from data import load
from model import Recommender, build


def train(rounds: int = 100) -> tuple[Recommender, list[dict[str, Any]]]:
    """The trained module, and a line of metrics per evaluated round."""
    data = load()
    module = build(data, seed=0)
    result = fedrows.simulate(data, module, rounds=rounds, lr=0.3, report=show)
    module.load_state_dict(result.state_dict())
    return module, result.history


def show(line: dict[str, Any]) -> None:
    """Prints a line of metrics."""
    loss, auc = line["test_loss"], line["test_auc"]
    print(f"round {line['round']:4}  test loss {loss:.4f}  AUC {auc:.4f}")


if __name__ == "__main__":
    trained, _ = train()
    torch.save(trained.state_dict(), "model.pt")
    print("Saved to model.pt.")
