"""The settings of a run that belong to no algorithm and to no task."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedrows.errors import PlanError
from fedrows.options import check, option


@dataclass(frozen=True)
class Plan:
    """How a run goes: how many rounds, whom it samples, what a client does."""

    rounds: int = option(300, "How many rounds to run.", least=1)
    clients_per_round: int = option(50, "K: how many clients train in a round.", least=1)
    local_steps: int = option(10, "I: SGD steps that a client takes in a round.", least=1)
    batch_size: int = option(5, "B: examples in a client's step.", least=1)
    batches: str = option(
        "draw",
        "draw: every batch is drawn with replacement from the client's examples (Algorithm 1); "
        "epoch: a client goes through its examples in a new order, and local-steps is not used.",
        choices=("draw", "epoch"),
    )
    epochs: int = option(1, "With batches=epoch: passes over the data in a round.", least=1)
    lr: float = option(0.1, "Local learning rate.", above=0)
    lr_decay: float = option(
        1.0, "The local learning rate is multiplied by this after every round.", above=0, most=1
    )
    clip: float | None = option(
        None, "Clip each client's gradient to this norm before it is used.", above=0
    )
    weighting: str = option(
        "examples",
        "Weigh clients by their number of training examples, or all the same.",
        choices=("examples", "uniform"),
    )
    seed: int = option(0, "The same seed gives the same run.", least=0, most=2**63 - 1)
    evaluate_every: int = option(10, "Evaluate after every N rounds.", least=1)
    train_sample: int = option(
        10_000, "Size of the fixed sample of training examples for the train loss.", least=1
    )
    chunk: int | None = option(
        None,
        "Clients that train in one batched step; measured in the first round if not given.",
        least=1,
    )
    tables: str = option(
        "memory",
        "Where rows live: in memory, or (mapped) in files of the run folder that hold only the "
        "rows that were touched.",
        choices=("memory", "mapped"),
    )
    threads: int | None = option(None, "CPU threads; as PyTorch chooses if not given.", least=1)
    deterministic: bool = option(
        False, "On a GPU, add in a fixed order: slower, but the same seed gives the same bits."
    )
    device: str = option("auto", "auto, cpu, cuda or cuda:1; auto takes a GPU if there is one.")
    dtype: str = option("float32", "Numbers of the model.", choices=("float32", "float64"))

    def __post_init__(self) -> None:
        check(self)

    def lr_at(self, round_: int) -> float:
        """The local learning rate of a round, counted from 1."""
        return self.lr * self.lr_decay ** (round_ - 1)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as PyTorch's own."""
        return torch.float64 if self.dtype == "float64" else torch.float32

    @property
    def torch_device(self) -> torch.device:
        """The device as PyTorch's own; `auto` is resolved here."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        kind, _, number = self.device.partition(":")
        if kind not in ("cpu", "cuda") or not (number.isdecimal() or self.device == kind):
            raise PlanError(f"device is {self.device!r}, but must be auto, cpu, cuda or cuda:N.")
        if kind == "cuda" and int(number or 0) >= torch.cuda.device_count():
            raise PlanError(
                f"device is {self.device!r}, but PyTorch finds {torch.cuda.device_count()} GPUs: "
                "use one of those, or cpu."
            )
        return torch.device(self.device)
