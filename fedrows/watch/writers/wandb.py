"""Weights & Biases: every metric by round, the settings as its config, the report as a file.

A run that goes on has the id of the run before, so it is the same run there, and rounds that are
there already are not logged again. With WANDB_MODE=offline nothing leaves the machine: the run is
written below WANDB_DIR, or into the folder `wandb`, and `wandb sync` sends it later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.watch.logs import without_secrets
from fedrows.watch.observer import NumberWriter, RunInfo, WatchError, settings_of
from fedrows.watch.watching import Watching, imported, why

ROUND = "round"  # what every metric is drawn over


def opened(watching: Watching) -> WeightsAndBiases | None:
    """The writer, if a project was named for it."""
    if watching.wandb is None:
        return None
    module = imported("wandb", "--wandb", "wandb", "wandb")
    if not watching.wandb.strip():
        raise WatchError("--wandb is '', but must name a project.")
    return WeightsAndBiases(watching.wandb, module)


class WeightsAndBiases(NumberWriter):
    """Writes into a project of Weights & Biases."""

    def __init__(self, project: str, module: Any) -> None:
        self._project, self._wandb = project, module
        self._run: Any = None

    def begin(self, run: RunInfo) -> None:
        self.close()
        folder = str((run.folder or Path(run.name)).absolute())
        quiet = self._wandb.Settings(silent=True, console="off", x_disable_stats=True)
        try:
            self._run = self._wandb.init(
                project=self._project,
                name=run.name,
                id=hashlib.sha256(folder.encode()).hexdigest()[:16],
                resume="allow" if run.at else None,
                config=dict(settings_of(without_secrets(run.config))),
                settings=quiet,
                reinit="create_new",
            )
        except Exception as error:  # whatever the network, the server or the key raises
            raise WatchError(
                f"--wandb {self._project} cannot be reached ({why(error)}): log in with "
                "`wandb login`, or set WANDB_MODE=offline."
            ) from error
        self._run.define_metric("*", step_metric=ROUND)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "report" and self._run is not None:
            artifact = self._wandb.Artifact(f"report-{self._run.id}", "report")
            artifact.add_file(str(fields["path"]))
            self._run.log_artifact(artifact)

    def end(self, done: bool) -> None:
        run, self._run = self._run, None
        if run is not None:
            run.finish(exit_code=0 if done else 1)

    def close(self) -> None:
        self.end(done=False)

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({ROUND: step, **numbers})
