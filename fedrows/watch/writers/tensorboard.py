"""TensorBoard: every metric by round in a folder per run, beside its settings.

A run that goes on after round t tells TensorBoard to forget what lies past t, so no step is there
twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.files.whole import reason
from fedrows.watch.logs import without_secrets
from fedrows.watch.observer import NumberWriter, RunInfo, WatchError
from fedrows.watch.watching import Watching, imported


def opened(watching: Watching) -> TensorBoard | None:
    """The writer, if a folder was named for it."""
    if watching.tensorboard is None:
        return None
    module = imported("torch.utils.tensorboard", "--tensorboard", "tensorboard", "tensorboard")
    path = Path(watching.tensorboard)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise WatchError(
            f"--tensorboard {path} cannot be written ({reason(error)}): name another folder."
        ) from error
    return TensorBoard(path, module.SummaryWriter)


class TensorBoard(NumberWriter):
    """Writes event files into a folder per run."""

    def __init__(self, folder: Path, writer: Any) -> None:
        self._folder, self._make = folder, writer
        self._writer: Any = None

    def begin(self, run: RunInfo) -> None:
        self.close()
        self._writer = self._make(str(self._folder / run.name), purge_step=run.at + 1)
        settings = json.dumps(without_secrets(run.config), indent=1, default=str)
        if run.at == 0:
            self._writer.add_text("config", "\n".join(f"    {x}" for x in settings.splitlines()), 0)

    def measured(self, line: Mapping[str, Any]) -> None:
        super().measured(line)
        self._writer.flush()

    def end(self, done: bool) -> None:
        self.close()

    def close(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
