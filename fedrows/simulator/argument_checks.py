"""What a simulation is given, checked by kind: no class for an instance, no frame for data."""

from __future__ import annotations

from typing import Any

from torch import nn

from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import DataError, ModelError, PlanError
from fedrows.model import Model


def check_data_and_module(data: Any, module: Any) -> None:
    """Raises an error that says which of them is of the wrong kind, and what to give."""
    if not isinstance(data, FederatedData):
        raise DataError(
            f"The data are {_kind(data)}, but must be FederatedData: make them with "
            "FederatedData.from_frame."
        )
    if not isinstance(module, nn.Module | Model):
        called = f"{module.__name__}(…)" if isinstance(module, type) else "an nn.Module"
        raise ModelError(f"The module is {_kind(module)}: give {called}.")


def check_algorithm(algorithm: Any) -> None:
    """The same for an algorithm."""
    if isinstance(algorithm, type) or not isinstance(algorithm, Algorithm):
        raise PlanError(
            f"The algorithm is {_kind(algorithm)}: give the name of one, such as 'fedsubavg', or "
            "an instance of an Algorithm."
        )


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}, not an instance"
    return f"a {type(value).__name__}"
