"""fedrows: federated learning that moves rows, not models."""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "FederatedData",
    "Hashed",
    "Plan",
    "Simulation",
    "Split",
    "Study",
    "Vocabulary",
    "simulate",
    "__version__",
]

if TYPE_CHECKING:
    from fedrows.data import FederatedData
    from fedrows.plan import Plan
    from fedrows.simulation import Simulation, simulate
    from fedrows.splits import Split
    from fedrows.study import Study
    from fedrows.vocabulary import Hashed, Vocabulary

_HOMES = {
    "FederatedData": "data",
    "Plan": "plan",
    "Simulation": "simulation",
    "simulate": "simulation",
    "Split": "splits",
    "Study": "study",
    "Hashed": "vocabulary",
    "Vocabulary": "vocabulary",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used, so that `fedrows --help` need not wait."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"fedrows.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedrows' has no attribute {name!r}")
