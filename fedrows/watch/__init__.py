"""Who watches a run: logs, Prometheus, TensorBoard, MLflow, or an observer of your own.

    with watch.opened(Watching(log="json", metrics_port=9109)) as observer:
        observer.begin(Run("ratings", config, rounds=100))
        …                                       # observer.round(facts), observer.measured(line)
        observer.end(done=True)

Simulated and deployed runs tell the same observers the same things. A writer is one file in
`writers/`, found by name, and its package is imported only when it is asked for.
"""

from fedrows.watch.observer import Facts, Observer, Run
from fedrows.watch.opened import Observers, Watching, opened

__all__ = ["Facts", "Observer", "Run", "Observers", "Watching", "opened"]
