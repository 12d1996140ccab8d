"""The settings of a run that belong to no algorithm and to no task."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fedrows.errors import PlanError
from fedrows.options import check, option

CLOCKS = ("none", "constant", "log-normal", "heavy-tail")  # kinds of devices; or a file of them


@dataclass(frozen=True)
class Plan:
    """How a run goes: how many rounds, whom it samples, what a client does."""

    rounds: int = option(300, "How many rounds to run.", least=1, most=2**31 - 1)
    clients_per_round: int = option(50, "K: how many clients train in a round.", least=1)
    local_steps: int = option(10, "I: steps that a client takes in a round.", least=1)
    batch_size: int = option(5, "B: examples in a client's step.", least=1)
    batches: str = option(
        "draw",
        "draw: every batch is drawn with replacement from the client's examples (Algorithm 1); "
        "epoch: a client goes through its examples in a new order, and local-steps is not used.",
        choices=("draw", "epoch"),
    )
    epochs: int = option(1, "With batches=epoch: passes over the data in a round.", least=1)
    negatives: int = option(
        4, "For ranking: negatives that are drawn for each positive of a step.", least=1
    )
    negatives_pool: int = option(
        100,
        "For ranking: items that a client draws in a round, of those it does not hold, and whose "
        "rows it downloads with its own; negatives are drawn from them.",
        least=1,
    )
    lr: float = option(0.1, "Local learning rate.", above=0, search="0.003..10")
    lr_decay: float = option(
        1.0, "The local learning rate is multiplied by this after every round.", above=0, most=1
    )
    lr_schedule: str = option(
        "constant",
        "How the local learning rate goes on after the warm-up: cosine or linear, down to almost 0 "
        "in the last round, or step: a tenth after half of the rounds, a hundredth after three "
        "quarters. lr-decay comes on top.",
        choices=("constant", "cosine", "linear", "step"),
    )
    warmup: int = option(
        0, "Rounds in which the local learning rate rises to lr, in equal steps.", least=0
    )
    optimizer: str = option(
        "sgd",
        "What clients step with; its state starts at zero in every round. adamw: adam whose weight "
        "decay is apart from the gradient.",
        choices=("sgd", "momentum", "adagrad", "adam", "adamw"),
    )
    local_momentum: float = option(
        0.9, "With optimizer=momentum: its μ; with adam and adamw: β1.", least=0, most=0.9999
    )
    local_beta2: float = option(0.999, "With optimizer=adam and adamw: β2.", least=0, most=0.999999)
    weight_decay: float = option(
        0.0, "Pulls the rows and dense tensors that a client holds towards 0 in its steps.", least=0
    )
    start: str = option(
        "zero",
        "Biases start at zero, or (counted) at the log-odds of items and clients, which are "
        "counted before the first round.",
        choices=("zero", "counted"),
    )
    start_pseudo: float = option(
        5.0, "With start=counted: pull log-odds towards the prior by so many examples.", above=0
    )
    start_near: int = option(
        0,
        "With start=counted: let the prior of an item be that of so many items before and behind "
        "it, halved; for items whose ids stand in an order that means something.",
        least=0,
    )
    clip: float | None = option(
        None, "Clip each client's gradient to this norm before it is used.", above=0
    )
    weighting: str = option(
        "examples",
        "Weigh clients by their number of training examples, or all the same.",
        choices=("examples", "uniform"),
    )
    weight_quantile: float | None = option(
        None,
        "With weighting=examples: count no more than this quantile of all clients' examples, "
        "rounded up to a power of two.",
        above=0,
        most=1,
    )
    row_clip: float | None = option(
        None,
        "Clip each client's largest row and the root mean square of its rows, before and after the "
        "correction, at this quantile of the last 1,000 clients'.",
        above=0,
        most=1,
    )
    seed: int = option(0, "The same seed gives the same run.", least=0, most=2**63 - 1)
    evaluate_every: int = option(10, "Evaluate after every N rounds.", least=1)
    patience: int | None = option(
        None,
        "Stop after so many evaluations without a better watch-metric; the best model counts.",
        least=1,
    )
    watch_metric: str = option(
        "validation_loss", "With patience: train_loss, or a metric of the validation examples."
    )
    go_on: bool = option(
        False, "Go on when the training loss is not finite, or explodes, instead of stopping."
    )
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
    threads: int | None = option(
        None,
        "CPU threads; as PyTorch chooses if not given, fewer while others keep the cores busy.",
        least=1,
        most=1024,  # with a hundred thousand, PyTorch ends in a segmentation fault
    )
    deterministic: bool = option(
        False,
        "The same seed gives the same bits: add in a fixed order on a GPU, which is slower, and "
        "measure no chunks on a CPU.",
    )
    device: str = option("auto", "auto, cpu, cuda or cuda:1; auto takes a GPU if there is one.")
    dtype: str = option("float32", "Numbers of the model.", choices=("float32", "float64"))

    clock: str = option(
        "none",
        "Simulate how long clients take, on devices of a kind: constant, log-normal or heavy-tail, "
        "or those of a file that ends in .csv.",
    )
    over_select: float = option(
        1.0,
        "With a clock, in mode sync: ask so many times K clients, and take the first K.",
        least=1,
    )
    deadline: float | None = option(
        None,
        "With a clock, in mode sync: end a round after so many virtual seconds, with whoever has "
        "answered.",
        above=0,
    )
    mode: str = option(
        "sync",
        "sync: a round waits for its clients; async: clients come and go, and the server takes a "
        "step whenever `buffer` updates have come in. A round is one such step.",
        choices=("sync", "async"),
    )
    buffer: int | None = option(
        None, "In mode async: M, updates in a step; clients-per-round if not given.", least=1
    )
    concurrency: int | None = option(
        None,
        "In mode async: C, clients that train at a time; ten times the buffer if not given, but "
        "not more than half of all.",
        least=1,
    )
    staleness: str = option(
        "row",
        "In mode async: an update counts for less, the older it is. row: each row by how often it "
        "was moved since its client read it; version: the whole update by how many steps the "
        "server took; none: not at all.",
        choices=("row", "version", "none"),
    )
    max_age: int | None = option(
        None, "In mode async: throw an update away that is more steps old than this.", least=0
    )

    def __post_init__(self) -> None:
        check(self)
        self._check_clock()
        if self.warmup and self.warmup >= self.rounds:
            raise PlanError(
                f"warmup is {self.warmup}, but must be below rounds, which is {self.rounds}."
            )
        if self.watch_metric != "train_loss" and not self.watch_metric.startswith("validation_"):
            raise PlanError(
                f"watch-metric is {self.watch_metric!r}, but must be train_loss or a metric of the "
                "validation examples, such as validation_loss: a run must not know its test."
            )
        if self.patience is not None and self.tables == "mapped":
            raise PlanError(
                "patience keeps a copy of the best model, which mapped tables are not made for: "
                "leave it out, or choose tables memory."
            )

    def _check_clock(self) -> None:
        if self.clock not in CLOCKS and not self.clock.endswith(".csv"):
            raise PlanError(
                f"clock is {self.clock!r}, but must be one of {', '.join(CLOCKS)}, or a file that "
                "ends in .csv."
            )
        other_mode = "sync" if self.mode == "async" else "async"
        for name, unset, mode in (
            ("over_select", 1.0, "sync"),
            ("deadline", None, "sync"),
            ("buffer", None, "async"),
            ("concurrency", None, "async"),
            ("max_age", None, "async"),
        ):
            flag, value = name.replace("_", "-"), getattr(self, name)
            if value != unset and mode != self.mode:
                raise PlanError(
                    f"{flag} is {value}, but it is for mode {other_mode}, and mode is {self.mode}: "
                    "leave one of them out."
                )
            if value != unset and mode == "sync" and self.clock == "none":
                raise PlanError(f"{flag} is {value}, but there is no clock: choose one, or none.")
        if self.concurrency is not None and self.buffer_size > self.concurrency:
            raise PlanError(
                f"buffer is {self.buffer_size}, but only {self.concurrency} clients train at a "
                "time (concurrency): make the buffer smaller, or concurrency larger."
            )

    @property
    def buffer_size(self) -> int:
        """How many updates a step of the server takes: M in mode async, K in mode sync."""
        return self.clients_per_round if self.buffer is None else self.buffer

    @property
    def in_virtual_time(self) -> bool:
        """Whether who trains when is simulated: by a clock, or without one in mode async."""
        return self.clock != "none" or self.mode == "async"

    def lr_at(self, round_: int) -> float:
        """The local learning rate of a round, counted from 1; a function of the plan alone."""
        return self.lr * self.lr_decay ** (round_ - 1) * self._scheduled(round_)

    @property
    def lr_changes(self) -> bool:
        """Whether the local learning rate is another in some rounds."""
        return self.lr_decay != 1 or self.warmup > 0 or self.lr_schedule != "constant"

    def _scheduled(self, round_: int) -> float:
        """The share of the rate that warm-up and schedule leave in a round: above 0, at most 1."""
        if round_ <= self.warmup:
            return round_ / (self.warmup + 1)
        done = (round_ - 1 - self.warmup) / (self.rounds - self.warmup)  # 0 ≤ done < 1
        if self.lr_schedule == "cosine":
            return (1 + math.cos(math.pi * done)) / 2
        if self.lr_schedule == "linear":
            return 1 - done
        if self.lr_schedule == "step":
            return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
        return 1.0

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
