"""Watches runs: logs, Prometheus, TensorBoard, MLflow, or an observer of your own.

    with watch.opened(Watching(log="json", metrics_port=9109)) as observer:
        observer.begin(RunInfo("ratings", config, rounds=100))
        …                                       # observer.round(report), observer.measured(line)
        observer.end(done=True)

Simulated and deployed runs report the same things to the same observers. A writer is one file in
`writers/`, or a plug-in. Its package is imported only when it is asked for.
"""

from fedrows.watch.observer import BufferReport, NodeReport, Observer, RoundReport, RunInfo
from fedrows.watch.observers import Observers, opened
from fedrows.watch.watching import Watching

__all__ = [
    "BufferReport",
    "NodeReport",
    "Observer",
    "Observers",
    "RoundReport",
    "RunInfo",
    "Watching",
    "opened",
]
