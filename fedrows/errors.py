"""The errors of this package; a message says what was wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

ELSEWHERE = {  # what other libraries call our keywords
    "learning_rate": "lr",
    "eta": "lr",
    "step_size": "lr",
    "num_rounds": "rounds",
    "n_rounds": "rounds",
    "random_state": "seed",
    "clients": "clients_per_round",
    "cohort_size": "clients_per_round",
    "batch": "batch_size",
    "output": "out",
    "output_dir": "out",
    "outdir": "out",
    "user": "client",
    "client_id": "client",
    "y": "label",
    "columns": "features",
    "test_size": "test",
    "validation_size": "validation",
    "algorithm": "algorithms",
    "seed": "seeds",
}
INTERRUPTED = 130  # the exit code of a command that was stopped from outside


class FedrowsError(Exception):
    """The parent of every error of this package; its message is written for a person."""


class PlanError(FedrowsError, ValueError):
    """A number or a choice of a run that cannot be right."""


class DataError(FedrowsError, ValueError):
    """Data that cannot be trained on, or a data file that cannot be read."""


class ModelError(FedrowsError, ValueError):
    """A module that does not fit its data, or cannot be lifted over a cohort."""


class RunFolderError(FedrowsError, OSError):
    """A run folder that cannot be written, read or resumed."""


class BundleError(FedrowsError, ValueError):
    """A bundle that cannot be written, read or used."""


class MemoryShortageError(FedrowsError, MemoryError):
    """Something that does not fit into the memory of this machine, or of its GPU."""


class NotFiniteError(FedrowsError, ArithmeticError):
    """A model or a loss that is infinite or NaN, or a loss that explodes: the training diverged."""


class PluginError(FedrowsError, ImportError):
    """A plug-in, such as an algorithm of somebody else's, that cannot be used."""


class UnknownNameError(FedrowsError, LookupError):
    """A name that nothing is called by."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}."
        super().__init__(f"There is no {kind} called {name!r}: {hint}")


class UnknownKeywordError(FedrowsError, TypeError):
    """A keyword that a function does not take."""

    def __init__(self, function: str, name: str, known: Iterable[str]) -> None:
        known = sorted(known)
        usual = ELSEWHERE.get(name.lower())
        near = [usual] if usual in known else difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}."
        super().__init__(f"{function} has no keyword {name!r}: {hint}")
