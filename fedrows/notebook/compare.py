"""A comparison in one call: `fedrows.compare`, the same as the command, also on your own data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from fedrows import catalogue
from fedrows.algorithm import Algorithm
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError, RunFolderError, UnknownKeywordError, UnknownNameError
from fedrows.files.whole import Json
from fedrows.measure.metric_choice import measured
from fedrows.measure.own_metrics import OwnMetrics
from fedrows.measure.summary import METRICS, Summary, Target, summarise
from fedrows.model import Loss, Model
from fedrows.options import keywords
from fedrows.options import options as options_of
from fedrows.plan import Plan
from fedrows.runs.folder import RunFolder, check_free
from fedrows.runs.own_run import in_python
from fedrows.runs.own_task import GivenAlgorithm, OwnTask, algorithm_of, own_class
from fedrows.runs.settings import Settings, check_clients, presets, resolve
from fedrows.simulation import threads
from fedrows.simulator.argument_checks import check_data_and_module
from fedrows.study.comparison import COMPARE, Comparison, config_of
from fedrows.study.frame import frame_of
from fedrows.study.scheduling import ReportProgress
from fedrows.study.study_job import load

SEEDS = (0, 1, 2)
MACHINE = ("device", "threads")  # of the plan: what a comparison that goes on may have otherwise


@dataclass(frozen=True, repr=False)
class Compared:
    """A comparison that has ended: the metric lines of all its runs."""

    name: str  # of the task or the data
    lines: list[Json]  # as in metrics.jsonl, of every algorithm and seed
    target: Target
    folder: Path | None  # None: nothing was kept

    def __repr__(self) -> str:
        seeds = len({line["seed"] for line in self.lines})
        rounds = max((line["round"] for line in self.lines), default=0)
        names = ", ".join(dict.fromkeys(line["algorithm"] for line in self.lines))
        count = f"{seeds} seed{'s' if seeds > 1 else ''}"
        return f"Compared({names} on {self.name}: {count}, {rounds} rounds)"

    def _repr_html_(self) -> str | None:
        """A table and the curves, for notebooks; None where jinja2 is not installed."""
        try:
            from fedrows.report.view import view
        except ImportError:
            return None
        return view(repr(self), self.lines)

    @property
    def summary(self) -> Summary:
        """What summary.json has: rounds to the target, and the metrics of each algorithm."""
        return summarise(self.lines, self.target)

    def frame(self, package: str = "polars") -> Any:
        """A row per algorithm, seed and evaluated round, in polars or pandas."""
        names = ["algorithm", "seed", "round", *measured(self.lines)]
        return frame_of({name: [line.get(name) for line in self.lines] for name in names}, package)


def compare(
    data: str | FederatedData,
    module: nn.Module | Model | None = None,
    algorithms: GivenAlgorithm | Sequence[GivenAlgorithm] = (catalogue.BASELINE, catalogue.DEFAULT),
    *,
    seeds: Sequence[int] = SEEDS,
    rates: Mapping[str, Mapping[str, Any]] | None = None,
    options: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    target_metric: str = "train_loss",
    target_value: float | None = None,
    target_rounds: int | None = None,
    checkpoint_seconds: float = 30.0,
    progress: ReportProgress | None = None,
    embeddings: Mapping[str, str | Sequence[str]] | None = None,
    dense: Sequence[str] = (),
    personal: Sequence[str] = (),
    one_by_one: bool = False,
    loss: Loss | None = None,
    metrics: OwnMetrics | None = None,
    **plan: Any,
) -> Compared:
    """Trains algorithms with several seeds, one run after another, and gives all their metrics.

    data: federated data together with a module, or the name of a task, with options of its own.
    algorithms: names, classes or instances, each of another name. All start from the numbers that
    the module has. rates: options by algorithm, such as `tuned.rates`. out: the folder to write, as
    `fedrows compare --out` does, with a page and a run folder for each run. resume goes on with the
    comparison that is there, or adds seeds or rounds to it; give it the same arguments. overwrite
    replaces it. Without out, nothing is kept. The target is CentralSGD's best, or target_value.
    progress is called with runs done, runs in all, a run's label and its round. embeddings, dense,
    personal, one_by_one, loss and metrics are those of `simulate`. The rest is the plan's.
    """
    known = {item.name for item in options_of(Plan)}
    for name in plan:
        if name not in known or name == "seed":
            raise UnknownKeywordError("compare", name, {*keywords(compare), *known} - {"seed"})
    listed = [algorithms] if isinstance(algorithms, str | type | Algorithm) else list(algorithms)
    task: str | OwnTask
    if isinstance(data, str):
        task = data
    else:
        check_data_and_module(data, module)
        assert module is not None, "it was refused"
        task = OwnTask(data, module, embeddings, dense, personal, one_by_one, loss, metrics)
    if out is None and (resume or overwrite):
        raise PlanError(
            f"{'resume' if resume else 'overwrite'} is True, but no folder is named: name it, as "
            'in out="runs/mine".'
        )
    if resume and overwrite:
        raise PlanError("overwrite and resume cannot be used together: choose one.")
    seeds = _checked_seeds(seeds)
    with ExitStack() as stack:
        given = stack.enter_context(_known(task, listed))
        settings = {
            name: _settings(task, name, one, options or {}, {**plan, **(rates or {}).get(name, {})})
            for name, one in given.items()
        }
        for name in rates or {}:
            if name not in settings:
                raise UnknownNameError("algorithm in this comparison", name, list(settings))
        path = Path(out or stack.enter_context(TemporaryDirectory()))
        target = _target(target_metric, target_value, target_rounds)
        try:
            comparison = _comparison(settings, seeds, target, path, resume, overwrite, plan)
        except RunFolderError as error:
            raise RunFolderError(in_python(str(error))) from error
        with threads(comparison.plan.threads):
            comparison.run(progress=progress, checkpoint_seconds=checkpoint_seconds)
        lines = comparison.folder.lines()
        if out is not None:
            _write_page(path, comparison.target)
        shown = data if isinstance(data, str) else data.name
        return Compared(shown, lines, comparison.target, None if out is None else path)


@contextmanager
def _known(
    task: str | OwnTask, listed: Sequence[GivenAlgorithm]
) -> Iterator[dict[str, Algorithm | None]]:
    """The algorithms by name, and everything known by its name; None: given by name alone."""
    given: dict[str, Algorithm | None] = {}
    with ExitStack() as stack:
        if isinstance(task, OwnTask):
            stack.enter_context(task.known())
        for one in listed:
            made = algorithm_of(one)
            if made.name in given:
                raise PlanError(
                    f"The algorithm {made.name} is given twice, and a comparison tells them apart "
                    "by name: leave one out, or use a Study, whose settings have labels."
                )
            given[made.name] = made if isinstance(one, Algorithm) else None
            if not isinstance(one, str) and (of := own_class(made)) is not None:
                stack.enter_context(catalogue.known_here("algorithm", made.name, of))
        if not given:
            raise PlanError("There is no algorithm to compare: name at least one.")
        yield given


def _settings(
    task: str | OwnTask,
    name: str,
    given: Algorithm | None,
    task_options: Mapping[str, Any],
    values: Mapping[str, Any],
) -> Settings:
    """The run of one algorithm: presets, then what was given."""
    chosen = catalogue.task(task.name if isinstance(task, OwnTask) else task)
    of = catalogue.algorithm(name)
    preset, own = presets(chosen, name)
    if given is not None:
        own = asdict(given)
    has = {item.name for item in options_of(of)}
    plan = {key: value for key, value in values.items() if key not in has}
    own |= {key: value for key, value in values.items() if key in has}
    of_plan = [item.name for item in options_of(Plan)]
    for option in plan:
        if option not in of_plan:
            raise UnknownNameError(f"option of {name} or of the plan", option, [*has, *of_plan])
    known = [item.name for item in options_of(chosen.options)]
    for option in task_options:
        if option not in known:
            raise UnknownNameError(f"option of task {chosen.name}", option, known)
    return Settings(chosen, chosen.options(**task_options), of(**own), Plan(**{**preset, **plan}))


def _comparison(
    settings: Mapping[str, Settings],
    seeds: list[int],
    target: Target,
    path: Path,
    resume: bool,
    overwrite: bool,
    given: Mapping[str, Any],
) -> Comparison:
    """The comparison in its folder, before its next run."""
    first = next(iter(settings.values()))
    if target.rounds is None:
        target = replace(target, rounds=max(1, first.plan.rounds * 2 // 3))
    if resume:
        _check_task(path, first)
        old = Comparison.opened(path)
        made = _extended(old, settings, seeds, given)
        made = replace(made, target=target if made.plan.rounds > old.plan.rounds else old.target)
        data = load(first.task.name, **asdict(first.options))
    else:
        resolved = {name: one.resolved() for name, one in settings.items()}
        check_free(path, overwrite=overwrite or not any(path.glob("*")))
        data = load(first.task.name, **asdict(first.options))
        for one in resolved.values():
            check_clients(one.plan, data)
            one.check_data(data)
        config = config_of(resolved, resolve(first.plan), seeds, target)
        folder = RunFolder.create(path, COMPARE, config, overwrite=True)
        made = Comparison(folder, resolved, seeds, target)
    with made.folder.locked():
        made.begin(data)
    return made


def _check_task(path: Path, wanted: Settings) -> None:
    """Raises a RunFolderError if a folder is a comparison of another task."""
    was = RunFolder.open(path, COMPARE).config["task"]["name"]
    if was != wanted.task.name:
        raise RunFolderError(
            f"The data and the module are {wanted.task.name}, but {path} is a comparison of {was}: "
            "give it the same ones, with the same start values (torch.manual_seed), or start a new "
            "one with --out."
        )


def _extended(
    old: Comparison, settings: Mapping[str, Settings], seeds: list[int], given: Mapping[str, Any]
) -> Comparison:
    """The old comparison with more seeds and rounds; a PlanError if something else is another."""
    path = old.folder.path
    if list(settings) != list(old.settings):
        names = f"{', '.join(settings)}, but {path} compares {', '.join(old.settings)}"
        raise PlanError(f"The algorithms are {names}: give it the same ones, in the same order.")
    if missing := sorted(set(old.seeds) - set(seeds)):
        raise PlanError(f"The seeds have no {missing[0]}, which {path} has: give it all of them.")
    rounds = next(iter(settings.values())).plan.rounds
    if rounds < old.plan.rounds:
        raise PlanError(f"rounds is {rounds}, but {path} has {old.plan.rounds}: give it no fewer.")
    made = {}
    for name, new in settings.items():
        was = old.settings[name]
        kept = {key: getattr(was.plan, key) for key in MACHINE if key not in given}
        one = replace(new, plan=replace(new.plan, **kept, seed=was.plan.seed))
        if replace(one, plan=replace(one.plan, rounds=was.plan.rounds)) != was:
            raise PlanError(
                f"{_difference(one, was)} of {name} would change the comparison in {path}: give it "
                "the same, or start a new one in another folder."
            )
        made[name] = one
    return replace(old, settings=made, seeds=seeds)


def _difference(new: Settings, old: Settings) -> str:
    """The first option in which two runs differ, and its two values."""
    for now, was in ((new.algorithm, old.algorithm), (new.plan, old.plan)):
        before = asdict(was)
        for key, value in asdict(now).items():
            if key != "rounds" and before.get(key) != value:
                return f"{key} {value} instead of {before.get(key)}"
    return "The options"


def _target(metric: str, value: float | None, rounds: int | None) -> Target:
    if metric not in METRICS:
        raise UnknownNameError("metric", metric, METRICS)
    if value is not None and not math.isfinite(value):
        raise PlanError(f"target_value is {value}, but must be a finite number.")
    if rounds is not None and rounds < 1:
        raise PlanError(f"target_rounds is {rounds}, but must be at least 1.")
    return Target(metric, value, rounds)


def _checked_seeds(seeds: Sequence[int]) -> list[int]:
    listed = list(seeds)
    for seed in listed:
        if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
            raise PlanError(f"seeds has {seed!r}, but must be whole numbers of at least 0.")
    if not listed or len(set(listed)) < len(listed):
        raise PlanError(f"seeds is {listed}, but must name at least one, and each once.")
    return sorted(listed)


def _write_page(folder: Path, target: Target) -> None:
    """Writes summary.json and report.html, as `fedrows compare` does at its end."""
    try:
        from fedrows import report
    except ImportError:  # a machine with torch and numpy alone
        return
    report.write_summary(folder, target)
    report.write(folder)
