"""The options of watching: which writers there are to be, and where they write."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from fedrows.errors import FedrowsError
from fedrows.options import check, option
from fedrows.watch.logs import without_secrets

LONGEST = 200  # letters of an error that comes from elsewhere


@dataclass(frozen=True)
class Watching:
    """Who watches a run, and where they write."""

    log: str | None = option(
        None,
        "Log every round as lines of text or of JSON, on stderr unless --log-file names a file.",
        choices=("text", "json", "off"),
    )
    log_file: str | None = option(None, "The file that log lines are added to.")
    log_level: str = option(
        "info", "Log lines of this level and above.", choices=("info", "warning", "error")
    )
    metrics_file: str | None = option(
        None, "Keep a file for the textfile collector of Prometheus' node_exporter (NAME.prom)."
    )
    metrics_port: int | None = option(
        None, "Serve Prometheus on this port, at /metrics; 0 takes a free one.", least=0, most=65535
    )
    metrics_host: str = option("127.0.0.1", "The address that --metrics-port listens on.")
    tensorboard: str | None = option(None, "Write for TensorBoard into this folder.")
    mlflow: str | None = option(None, "Write to this MLflow server (http://…) or folder.")
    wandb: str | None = option(
        None, "Write to this project of Weights & Biases; WANDB_MODE=offline keeps it here."
    )
    writer: str | None = option(
        None,
        "Comma-separated writers of plug-ins: NAME or file.py:Name, and =TEXT for one that takes a "
        "text.",
    )

    def __post_init__(self) -> None:
        check(self)


def why(error: Exception) -> str:
    """An error in one line of bearable length."""
    text = without_secrets(" ".join(str(error).split())).rstrip(".") or type(error).__name__
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def imported(module: str, flag: str, package: str, extra: str) -> Any:
    """The module that a writer needs; an error that names its package if that is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise FedrowsError(
            f"{flag} needs the package {package}: pip install fedrows[{extra}]."
        ) from None
