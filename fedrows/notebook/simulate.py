"""A simulated run from data to trained model in one call: `fedrows.simulate`.

With `out` it leaves a run folder with its page, as `fedrows run` does. A notebook shows the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedrows import catalogue
from fedrows import report as report_files
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.data.personal import with_personal
from fedrows.errors import DataError, PlanError, UnknownKeywordError
from fedrows.lifting.lifted import Lifted
from fedrows.measure.evaluation import Evaluator
from fedrows.measure.metric_choice import chosen_line, measured
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.model import Loss, Model
from fedrows.options import keywords, options
from fedrows.plan import Plan
from fedrows.privacy.options import Privacy
from fedrows.rows.params import Params
from fedrows.runs.driver import InMemory, drive
from fedrows.runs.own_run import OwnRun, check_folder
from fedrows.runs.own_task import algorithm_of, lifted, own_task
from fedrows.simulation import Simulation, threads
from fedrows.simulator.argument_checks import check_data_and_module
from fedrows.tables import whole
from fedrows.watch.observer import Watcher


@dataclass
class Result:
    """A run that has ended."""

    params: Params
    history: list[dict[str, Any]]  # a line per evaluated round
    model: Model
    notes: tuple[str, ...] = ()  # what is odd about the data or the model
    stopped: str = ""  # why it ended before its last round: no ε was left, or no patience
    evaluator: Evaluator | None = None  # what measured it

    def __repr__(self) -> str:
        if not self.history:
            return "Result(no round was evaluated)"
        line = self.history[-1]
        values = [f"{name} {line[name]:.4g}" for name in measured([line])[:4]]
        return f"Result({line['algorithm']}, {line['round']} rounds: {', '.join(values)})"

    def _repr_html_(self) -> str:
        """A table and the curves."""
        from fedrows.report.view import view

        return view(repr(self), self.history)

    @property
    def metrics(self) -> dict[str, Any] | None:
        """The line of the round that the model is of; None if no round was evaluated."""
        return chosen_line(self.history) if self.history else None

    def per_client(self, part: str = "test") -> dict[str, np.ndarray]:
        """The trained model's metrics client by client, as columns of one length.

        They are client, examples, loss, and accuracy and auc, or rmse and mae, as the labels have
        it. `pandas.DataFrame(result.per_client())`, or polars', is a frame. part: train, validation
        or test; clients without such examples are left out.
        """
        if self.evaluator is None:
            raise DataError("This result has no data to measure on: simulate gives one that does.")
        return self.evaluator.per_client(self.params, part)

    def state_dict(self) -> dict[str, Tensor]:
        """The trained numbers, ready for `module.load_state_dict`."""
        if not isinstance(self.model, Lifted):
            return {**{t: whole(x) for t, x in self.params.tables.items()}, **self.params.dense}
        return self.model.export(self.params)


def simulate(
    data: FederatedData,
    module: nn.Module | Model,
    algorithm: str | type[Algorithm] | Algorithm = catalogue.DEFAULT,
    *,
    embeddings: Mapping[str, str | Sequence[str]] | None = None,
    dense: Sequence[str] = (),
    personal: Sequence[str] = (),
    one_by_one: bool = False,
    loss: Loss | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
    privacy: Privacy | None = None,
    metrics: OwnMetrics | None = None,
    folder: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 30.0,
    **plan: Any,
) -> Result:
    """Trains a module on a federation and gives the trained numbers and the history.

    module: any `nn.Module` for one client (embeddings, dense, personal, one_by_one and loss are
    what `Lifted` takes), or a `Model`. algorithm: a name, or an algorithm with options of its own.
    report is called with every evaluated round's metrics, by rank 0 if there are several processes.
    privacy: a mode, as `Privacy.of("index")`.
    metrics: your own, by name: functions of the scores, labels and clients of examples, as NumPy
    arrays. The history has each as test_NAME, and as validation_NAME if there are such examples.
    folder: where tables="mapped" keeps its files, instead of what an earlier run left there; they
    are temporary if it is not given.
    out: the run folder to write, as `fedrows run --out` does: settings, checkpoint, metrics, page.
    resume goes on with the run that is there, equal to the bit, or makes it longer; overwrite
    replaces it. A checkpoint is saved at least every checkpoint_seconds.
    Everything else is the plan's: rounds, lr, seed, …
    """
    known = {item.name for item in options(Plan)}
    for name in plan:
        if name not in known:
            raise UnknownKeywordError("simulate", name, {*keywords(simulate), *known})
    algorithm = algorithm_of(algorithm)
    check_data_and_module(data, module)
    check_folder(out, resume, overwrite)
    data = with_personal(data) if personal else data
    model = lifted(module, data, embeddings, dense, personal, one_by_one, loss)
    watched: list[Watcher] = [] if report is None else [_Reports(report)]
    if out is None:
        settings = Plan(**{"clients_per_round": min(50, data.clients), **plan})
        path = None if folder is None else Path(folder)
        simulation = Simulation(data, model, algorithm, settings, privacy, path, metrics=metrics)
        keeper = InMemory()
        with threads(settings.threads):
            drive(simulation, keeper, watched if simulation.leads else [])
        return _result(simulation, keeper.lines(), keeper.best, data, model)
    if folder is not None:
        raise PlanError("folder and out are both given, but a run folder has its tables: name one.")
    run = OwnRun(Path(out), data, model, algorithm, privacy or Privacy(), metrics, plan)
    with own_task(data, model, module, personal, metrics) as task:
        simulation, lines, best = run.made(task, watched, checkpoint_seconds, resume, overwrite)
    if simulation.leads:
        report_files.write_summary(run.path)
        report_files.write(run.path)
    return _result(simulation, lines, best, data, model)


def _result(
    simulation: Simulation,
    lines: list[dict[str, Any]],
    best: Params | None,
    data: FederatedData,
    model: Model,
) -> Result:
    notes = data.notes if model.note is None else (*data.notes, model.note)
    notes = (*notes, *simulation.notes)
    if best is not None:
        simulation.evaluator.calibrate(best)  # moments are those of the last round still
    trained = best or simulation.progress.whole()
    return Result(trained, lines, model, notes, simulation.stopped, simulation.evaluator)


class _Reports(Watcher):
    """Calls a function with the metrics of every evaluated round."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self._report = report

    def measured(self, line: Mapping[str, Any]) -> None:
        self._report(dict(line))
