"""Where the data and the model of a finished run come from: a task, simulated or deployed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import FedrowsError, RunFolderError
from fedrows.files.plugins import attribute, import_file, import_module
from fedrows.flower.wire.contract import DeployedTask
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.report.spent import covered
from fedrows.runs.folder import RunFolder
from fedrows.runs.settings import from_config, loaded


@dataclass(frozen=True)
class RunSource:
    """What a run was made of."""

    task: str  # its name
    plan: Plan
    algorithm: Algorithm
    make: Callable[[], tuple[FederatedData, Model]]
    # The name or the reference of what builds the model; None: it is given at load.
    builder: Callable[[FederatedData], str | None]
    released: bool  # whether only its release may leave it

    def about(self, round_: int) -> dict[str, str]:
        """What an exported file says of itself."""
        return {
            "task": self.task,
            "algorithm": self.algorithm.name,
            "seed": str(self.plan.seed),
            "round": str(round_),
        }


def simulated_source(folder: RunFolder) -> RunSource:
    """What `fedrows run` was told."""
    [settings] = from_config(folder.config, folder.path).values()
    task, plan = settings.task, replace(settings.plan, device="cpu")
    return RunSource(
        task.name,
        plan,
        settings.algorithm,
        lambda: settings.made(loaded(task, settings.options)),
        lambda data: task.model,
        covered(folder.config),
    )


def deployed_source(folder: RunFolder, reference: str | None) -> RunSource:
    """What a server was told, and its task, which is imported.

    reference: module:NAME or file.py:NAME of the task; None: where the server found it.
    """
    stored: Mapping[str, Any] = folder.config["task"]
    task = _task(folder.path, reference or stored.get("reference"))
    if task.name != stored["name"]:
        raise RunFolderError(
            f"{folder.path} is a run of task {stored['name']}, but {reference} is task {task.name}."
        )
    entry = dict(folder.config["algorithm"])
    of = catalogue.algorithm(entry["name"])
    own = {item.name: entry[item.name] for item in options(of)}
    plan = replace(Plan(**folder.config["plan"]), device="cpu")

    def make() -> tuple[FederatedData, Model]:
        try:
            data = task.server(stored.get("config", {}))
        except KeyError as error:
            raise RunFolderError(
                f"The task of {folder.path} asks for {error} of the run's configuration, which its "
                "config.json does not have: add it there, under task and config."
            ) from error
        made = task.model(data, plan.seed)
        return data, made if isinstance(made, Model) else Lifted(made, data)

    return RunSource(
        task.name,
        plan,
        of(**own),
        make,
        task.model_name or (lambda data: _reference(task)),
        folder.config["deploy"].get("privacy") == "full",
    )


def _task(path: Path, reference: str | None) -> DeployedTask:
    remedy = "name it with --task, as in --task project/task.py:TASK"
    where, _, word = (reference or "").rpartition(":")
    if not where or not word:
        raise RunFolderError(f"{path} does not say where its task is: {remedy}.")
    called = f"The task {reference!r} of {path}"
    try:
        file = Path(where).expanduser().absolute()
        module = (
            import_file(file, called) if where.endswith(".py") else import_module(where, called)
        )
        task = attribute(module, word, called)
    except FedrowsError as error:
        raise RunFolderError(f"{str(error).rstrip('.')}: {remedy}.") from error
    if not isinstance(task, DeployedTask):
        raise RunFolderError(f"{called} is a {type(task).__name__}, not a DeployedTask: {remedy}.")
    return task


def _reference(task: DeployedTask) -> str | None:
    """The reference of the function that builds a deployed task's model, if it has a name."""
    module, name = getattr(task.model, "__module__", ""), getattr(task.model, "__qualname__", "")
    return f"{module}:{name}" if module and name.isidentifier() else None
