"""fedrows: federated learning that moves rows, not models."""

from typing import TYPE_CHECKING, Any

from fedrows.version import __version__

__all__ = [
    "FederatedData",
    "Hashed",
    "OwnTask",
    "Plan",
    "Scaled",
    "Simulation",
    "Split",
    "Study",
    "Vocabulary",
    "compare",
    "load",
    "open_data",
    "read_parquet",
    "save_data",
    "simulate",
    "tune",
    "with_personal",
    "__version__",
]

if TYPE_CHECKING:
    from fedrows.data.federation import FederatedData
    from fedrows.data.personal import with_personal
    from fedrows.data.scaled import Scaled
    from fedrows.data.splits import Split
    from fedrows.data.stored.parquet import read_parquet
    from fedrows.data.stored.store import open_data, save_data
    from fedrows.data.vocabulary import Hashed, Vocabulary
    from fedrows.notebook.compare import compare
    from fedrows.notebook.simulate import simulate
    from fedrows.plan import Plan
    from fedrows.runs.own_task import OwnTask
    from fedrows.serving.served_model import load
    from fedrows.simulation import Simulation
    from fedrows.study import Study
    from fedrows.tuning.tune import tune

_HOMES = {
    "FederatedData": "data.federation",
    "OwnTask": "runs.own_task",
    "Plan": "plan",
    "compare": "notebook.compare",
    "Simulation": "simulation",
    "simulate": "notebook.simulate",
    "Scaled": "data.scaled",
    "Split": "data.splits",
    "Study": "study",
    "Hashed": "data.vocabulary",
    "Vocabulary": "data.vocabulary",
    "load": "serving.served_model",
    "open_data": "data.stored.store",
    "read_parquet": "data.stored.parquet",
    "save_data": "data.stored.store",
    "tune": "tuning.tune",
    "with_personal": "data.personal",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first used, so that `fedrows --help` need not wait."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(f"fedrows.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'fedrows' has no attribute {name!r}")
