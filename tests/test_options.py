"""Options, the plan and errors: what cannot be right is refused in one sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import pytest
import torch

import fedrows.errors
from fedrows.errors import FedrowsError, PlanError, UnknownNameError
from fedrows.options import check, default, kind, option, options
from fedrows.plan import Plan

WHOLE = [
    "rounds", "clients_per_round", "local_steps", "batch_size", "epochs", "evaluate_every",
    "train_sample", "chunk", "threads",
]  # fmt: skip
BAD = [
    *((name, value) for name in WHOLE for value in (0, -1, 1.5, math.nan, math.inf, "2", True)),
    *((name, None) for name in WHOLE if name not in ("chunk", "threads")),
    *(("seed", value) for value in (-1, 2**63, 0.5, math.nan, -math.inf, None, "0", False)),
    *(
        (name, value)
        for name in ("lr", "lr_decay", "clip")
        for value in (0, -0.1, math.nan, math.inf, "0.1", True, [0.1], torch.tensor(0.1))
    ),
    ("lr", None),
    ("lr_decay", None),
    ("lr_decay", 1.01),
    *((name, v) for name in ("batches", "weighting", "dtype") for v in ("x", "", 1, None, b"draw")),
    ("device", None),
    ("device", 0),
]


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda x: repr(x)[:20])
def test_a_bad_value_is_named_with_its_flag(name, value):
    with pytest.raises(PlanError) as caught:
        Plan(**{name: value})
    said = str(caught.value)
    assert said.startswith(f"{name.replace('_', '-')} is {value!r}, but must be ")
    assert said.endswith(".")
    assert "\n" not in said


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_number_is_an_int(name):
    """2.0 would pass for 2 until the first range(2.0)."""
    with pytest.raises(PlanError, match=r"2\.0, but must be a whole number"):
        Plan(**{name: 2.0})
    assert getattr(Plan(**{name: 2}), name) == 2


@pytest.mark.parametrize(
    ("device", "complaint"),
    [
        ("gpu", "device is 'gpu', but must be auto, cpu, cuda or cuda:N."),
        ("", "device is '', but must be auto, cpu, cuda or cuda:N."),
        ("cuda:x", "device is 'cuda:x', but must be auto, cpu, cuda or cuda:N."),
        ("meta", "device is 'meta', but must be auto, cpu, cuda or cuda:N."),
    ],
)
def test_a_device_that_is_none(device, complaint):
    with pytest.raises(PlanError) as caught:
        _ = Plan(device=device).torch_device
    assert str(caught.value) == complaint


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(PlanError, match=r"device is 'cuda:1', but PyTorch finds 0 GPUs"):
        _ = Plan(device="cuda:1").torch_device
    assert Plan().torch_device == torch.device("cpu")


def test_one_gpu_too_far(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Plan(device="auto").torch_device == torch.device("cuda")
    assert Plan(device="cuda:1").torch_device == torch.device("cuda:1")
    with pytest.raises(PlanError, match=r"device is 'cuda:2'"):
        _ = Plan(device="cuda:2").torch_device


def test_plan_arithmetic():
    plan = Plan(lr=0.5, lr_decay=0.1, dtype="float64")
    assert [plan.lr_at(r) for r in (1, 2, 3)] == pytest.approx([0.5, 0.05, 0.005])
    assert plan.torch_dtype == torch.float64
    assert Plan().torch_dtype == torch.float32
    Plan(lr=1, clip=2)  # a whole number is a number


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        ("constant", [1 / 3, 2 / 3, 1, 1, 1, 1]),
        ("linear", [1 / 3, 2 / 3, 1, 3 / 4, 1 / 2, 1 / 4]),
        ("cosine", [1 / 3, 2 / 3, 1, (1 + math.sqrt(0.5)) / 2, 1 / 2, (1 - math.sqrt(0.5)) / 2]),
        ("step", [1 / 3, 2 / 3, 1, 1, 0.1, 0.01]),
    ],
)
def test_the_rate_warms_up_and_follows_its_schedule(schedule, shares):
    plan = Plan(rounds=6, warmup=2, lr=0.5, lr_schedule=schedule)
    assert [plan.lr_at(r) for r in range(1, 7)] == pytest.approx([0.5 * x for x in shares])
    assert plan.lr_changes
    assert not Plan().lr_changes
    halved = Plan(rounds=6, warmup=2, lr=0.5, lr_schedule=schedule, lr_decay=0.5)
    assert halved.lr_at(4) == pytest.approx(plan.lr_at(4) / 8)  # the decay comes on top


def test_a_warm_up_ends_before_the_run():
    with pytest.raises(PlanError, match="warmup is 6, but must be below rounds, which is 6"):
        Plan(rounds=6, warmup=6)


def test_every_number_of_the_plan_is_an_option_with_help():
    assert [item.name for item in options(Plan)] == [item.name for item in fields(Plan)]
    assert all(item.metadata["help"].endswith(".") for item in options(Plan))


@dataclass(frozen=True)
class Some:
    size: int = option(3, "A size.", least=2, most=5)
    share: float | None = option(None, "A share.", above=0)
    quick: bool = option(False, "Whether.")
    colour: str = option("red", "Which.", choices=("red", "blue"))
    inner: int = 7  # not an option

    def __post_init__(self) -> None:
        check(self)


def test_an_option_knows_its_type_default_and_domain():
    found = {item.name: (*kind(Some, item), default(item)) for item in options(Some)}
    assert found == {
        "size": (int, False, 3),
        "share": (float, True, None),
        "quick": (bool, False, False),
        "colour": (str, False, "red"),
    }


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"size": 1}, "size is 1, but must be at least 2."),
        ({"size": 6}, "size is 6, but must be at most 5."),
        ({"share": 0}, "share is 0, but must be above 0."),
        ({"share": math.nan}, "share is nan, but must be a finite number."),
        ({"quick": 1}, "quick is 1, but must be true or false."),
        ({"quick": None}, "quick is None, but must be given as true or false."),
        ({"colour": "green"}, "colour is 'green', but must be one of red, blue."),
        ({"colour": 3}, "colour is 3, but must be text."),
    ],
)
def test_complaints_word_by_word(values, complaint):
    with pytest.raises(PlanError) as caught:
        Some(**values)
    assert str(caught.value) == complaint


def test_the_edges_of_a_domain_are_inside():
    Some(size=2, share=1e-300)
    Some(size=5, share=None, inner=-1)


def test_errors_can_be_caught_together_or_as_pythons_own():
    kinds = {
        name: value
        for name, value in vars(fedrows.errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert all(issubclass(error, FedrowsError) for error in kinds.values())
    assert issubclass(kinds["PlanError"], ValueError)
    assert issubclass(kinds["DataError"], ValueError)
    assert issubclass(kinds["ModelError"], ValueError)
    assert issubclass(kinds["RunFolderError"], OSError)


def test_an_unknown_name_is_met_with_the_nearest_or_with_all():
    near = str(UnknownNameError("model", "logistik", ["din", "logistic"]))
    assert near == "There is no model called 'logistik': did you mean logistic?"
    far = str(UnknownNameError("model", "x", ["logistic", "din"]))
    assert far == "There is no model called 'x': choose one of din, logistic."
