"""MLflow: every metric by round, the settings as parameters, the report as an artefact.

A run that goes on is the same run in MLflow, and steps that are there already are not logged
again. MLflow sends no telemetry from here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedrows.version import __version__
from fedrows.watch.logs import without_secrets
from fedrows.watch.observer import NumberWriter, RunInfo, WatchError, settings_of
from fedrows.watch.watching import Watching, imported, why

EXPERIMENT = "fedrows"  # or what MLFLOW_EXPERIMENT_NAME says
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
EVERY, MOST = 2.0, 900  # seconds, or metrics, that are sent together; MLflow takes up to 1,000
LONGEST = 6_000  # letters of a parameter


def opened(watching: Watching) -> MLflow | None:
    """The writer, if a server or a folder was named for it."""
    if watching.mlflow is None:
        return None
    os.environ.update(QUIET)
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    return MLflow(watching.mlflow, imported("mlflow", "--mlflow", "mlflow-skinny", "mlflow"))


class MLflow(NumberWriter):
    """Writes to an MLflow server, or to a folder."""

    def __init__(self, where: str, module: Any) -> None:
        if "://" not in where and not where.startswith(("file:", "databricks")):
            where = Path(where).absolute().as_uri()
        if where.startswith("file:"):  # or MLflow refuses: it would rather have a database
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._mlflow, self._waiting, self._next = module, list[Any](), 0.0
        self._done: dict[str, int] = {}  # metric → its last step so far
        self._run: str | None = None
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        try:
            self._client = module.MlflowClient(where)
            experiment = self._client.get_experiment_by_name(name)
            if experiment is None:
                self._experiment = self._client.create_experiment(name)
            else:
                self._experiment = experiment.experiment_id
        except Exception as error:  # whatever the store, the network or the server raises
            raise WatchError(
                f"--mlflow {without_secrets(where)} cannot be reached ({why(error)}): "
                "start the server, or name a folder."
            ) from error

    def begin(self, run: RunInfo) -> None:
        folder = str((run.folder or Path(run.name)).absolute())
        earlier = self._earlier(folder) if run.at else None
        if earlier is None:
            tags = {"fedrows.run": run.name, "fedrows.folder": folder, "fedrows": __version__}
            made = self._client.create_run(self._experiment, run_name=run.name, tags=tags)
            self._run, self._done = made.info.run_id, {}
            self._log_settings(run)
            return
        self._run = earlier.info.run_id
        self._client.update_run(self._run, status="RUNNING")
        self._done = {name: self._last_step(name) for name in earlier.data.metrics}

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        if name == "report" and self._run is not None:
            self._client.log_artifact(self._run, str(fields["path"]))

    def end(self, done: bool) -> None:
        if self._run is None:
            return
        try:
            self._send()
        finally:
            run, self._run = self._run, None
            self._waiting.clear()
            self._client.set_terminated(run, "FINISHED" if done else "KILLED")

    def close(self) -> None:
        self.end(done=False)

    def _earlier(self, folder: str) -> Any:
        """The newest run of this folder; None if there is none."""
        quoted = folder.replace("\\", "\\\\").replace("'", "\\'")
        runs = self._client.search_runs(
            [self._experiment],
            f"tags.`fedrows.folder` = '{quoted}'",
            order_by=["attributes.start_time DESC"],
            max_results=1,
        )
        return next(iter(runs), None)

    def _last_step(self, name: str) -> int:
        return max((x.step for x in self._client.get_metric_history(self._run, name)), default=0)

    def _log_settings(self, run: RunInfo) -> None:
        settings = settings_of(without_secrets(run.config))
        param = self._mlflow.entities.Param
        params = [param(name, str(value)[:LONGEST]) for name, value in settings.items()]
        for low in range(0, len(params), 100):  # no more go into one request
            self._client.log_batch(self._run, params=params[low : low + 100])

    def add(self, numbers: Mapping[str, float], step: int) -> None:
        now, metric = int(time.time() * 1000), self._mlflow.entities.Metric
        self._waiting += [
            metric(name, value, now, step)
            for name, value in numbers.items()
            if step > self._done.get(name, 0)
        ]
        if time.monotonic() >= self._next or len(self._waiting) >= MOST:
            self._send()

    def _send(self) -> None:
        self._next = time.monotonic() + EVERY
        while self._waiting:
            some = self._waiting[:MOST]
            self._client.log_batch(self._run, metrics=some)
            del self._waiting[: len(some)]
