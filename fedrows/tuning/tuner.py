"""Carries a search out: every algorithm with the same budget, all trials of a step together.

A finished trial is one file in DIR/runs, named by a hash of what decides its numbers. A search that
was killed asks for the same trials again, and makes only those that are missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedrows.errors import PlanError, UnknownNameError
from fedrows.files.whole import Json
from fedrows.measure.metric_choice import VALIDATION, about, best_line, measured
from fedrows.study import LIGHT, Say
from fedrows.study.finished import AbsentError, DamagedError, content_of, path_of
from fedrows.study.processes import WorkerProcesses
from fedrows.study.scheduling import ReportProgress, executor_for, make_all
from fedrows.tuning import methods
from fedrows.tuning.methods import Ask, Search
from fedrows.tuning.result import Confirmed, Trial, Tuned
from fedrows.tuning.space import Space
from fedrows.tuning.trials import ModuleRun, TrialJob, Tunable, trial_id, without_test

METHODS = ("halving", "grid", "random", "optuna")
SEED = 1000  # of trials: one that nobody reports
ETA = 4


@dataclass
class Tuner:
    """A search. budget: rounds for each algorithm; what the largest space needs if not given."""

    name: str  # of what is tuned: a task, or data
    runs: Mapping[str, Tunable]  # algorithm → its run, before anything is chosen
    spaces: Mapping[str, Space]
    method: str = "halving"
    metric: str = ""  # of validation examples; "": the usual one of such data
    budget: int | None = None
    eta: int = ETA
    seed: int = SEED
    sampler: str = "tpe"
    folder: Path | None = None
    executor: Executor | None = None
    workers: int | None = None
    device: str = "auto"
    say: Say | None = None
    progress: ReportProgress | None = None
    _checked: bool = False
    _known: dict[str, Json] = field(default_factory=dict)  # finished trials, by id

    def __post_init__(self) -> None:
        if not self.runs:
            raise PlanError("There is no algorithm to tune: name at least one.")
        if self.method not in METHODS:
            raise UnknownNameError("method of search", self.method, METHODS)
        for what, number, least in (("eta", self.eta, 2), ("seed", self.seed, 0)):
            if number < least:
                raise PlanError(f"{what} is {number}, but must be at least {least}.")
        sizes = [len(space.grid()) for space in self.spaces.values()]
        if self.budget is None:
            self.budget = methods.usual_budget(self.method, sizes, self.rounds, self.eta)
        methods.check_budget(self.method, sizes, self.rounds, self.budget)
        for name, space in self.spaces.items():  # every value is checked before anything runs
            for values in space.grid():
                self.runs[name].with_values(values)

    @property
    def rounds(self) -> int:
        """How many rounds a whole run has."""
        return next(iter(self.runs.values())).plan.rounds

    def run(self) -> Tuned:
        """Searches; returns all trials and what they come to."""
        self.check()
        searches = {name: self._search(space) for name, space in self.spaces.items()}
        pending = {name: next(search) for name, search in searches.items()}
        trials: list[Trial] = []
        with self._executing() as executor:
            while pending:
                made = self._make(pending, executor)
                trials += [trial for some in made.values() for trial in some]
                for name, some in made.items():
                    self._tell(name, some)
                    try:
                        pending[name] = searches[name].send([self._score(one) for one in some])
                    except StopIteration:
                        del pending[name]
        assert self.budget is not None
        return Tuned(
            self.name, self.metric, self.method, self.rounds, self.budget, self.seed,
            tuple(trials), dict(self.spaces),
        )  # fmt: skip

    def confirm(self, tuned: Tuned, seeds: Sequence[int]) -> Tuned:
        """The same result with what the chosen values come to on test examples.

        They train with every seed on training examples alone. Validation examples choose the round,
        and the test metrics of that one round are all that is kept of test examples.
        """
        if not seeds:
            raise PlanError("Name at least one seed to confirm with, such as 0.")
        self.check(tests=True)
        jobs = [
            (name, seed, self._job(name, Ask(trial.values, self.rounds), seed, tests=True))
            for name, trial in tuned.chosen.items()
            for seed in seeds
        ]
        with self._executing() as executor:
            self._carry_out([job for _, _, job in jobs], executor)
        by_algorithm: dict[str, dict[int, Mapping[str, float]]] = {}
        for name, seed, job in jobs:
            line = best_line(self._known[job.id]["lines"], self.metric) or {}
            tested = {metric: line[metric] for metric in measured([line]) if "test_" in metric}
            by_algorithm.setdefault(name, {})[seed] = tested
        return tuned.confirmed_by(
            [Confirmed(name, by_seed) for name, by_seed in by_algorithm.items()]
        )

    @contextmanager
    def _executing(self) -> Iterator[Executor | None]:
        """The executor of the search, which ends with it unless the caller has brought it."""
        workers, runs = self.workers, self.runs.values()
        if workers is None:
            work = sum(run.work / run.plan.rounds * (self.budget or 0) for run in runs)
            if work < LIGHT or any(isinstance(run, ModuleRun) for run in runs):
                workers = 1
        executor = self.executor or executor_for(workers, self.device)
        try:
            if isinstance(executor, WorkerProcesses):
                for run in runs:
                    _check_importable(run)
            yield executor
        finally:
            if executor is not None and executor is not self.executor:
                executor.shutdown()

    def _search(self, space: Space) -> Search:
        assert self.budget is not None
        rounds, budget = self.rounds, self.budget
        if self.method == "grid":
            return methods.grid(space, rounds, budget)
        if self.method == "random":
            return methods.random(space, rounds, budget, self.seed)
        if self.method == "optuna":
            return methods.optuna_search(space, rounds, budget, self.seed, self.sampler)
        return methods.halving(space, rounds, budget, self.eta, self.seed)

    def check(self, *, tests: bool = False) -> None:
        """Raises if there is nothing to choose on, no such metric, or no such sampler.

        tests: test examples are wanted as well.
        """
        first = next(iter(self.runs.values()))
        data = first.data()
        if tests and not len(data.test):
            raise PlanError(f"{self.name} has no test examples to confirm with: hold some out.")
        if self._checked:
            return
        for space in self.spaces.values():
            self._search(space)  # an extra that is missing
        if not len(data.validation):
            raise PlanError(
                f"{self.name} has no validation examples to choose on: hold some out, as in "
                "validation=0.1, of the task or of FederatedData.from_frame."
            )
        usual = "ndcg10" if data.labels == "ranking" else "loss"
        self.metric = self.metric or f"{VALIDATION}_{usual}"
        if not self.metric.startswith(f"{VALIDATION}_"):
            raise PlanError(
                f"Rates cannot be chosen by {self.metric!r}, which is not measured on validation "
                f"examples: name a metric such as {VALIDATION}_{usual}."
            )
        line = first.simulation(without_test(data), first.plan).evaluate()
        known = [name for name in measured([line]) if name.startswith(f"{VALIDATION}_")]
        if self.metric not in line:
            raise UnknownNameError("metric of these validation examples", self.metric, known)
        self._checked = True

    def _job(self, name: str, ask: Ask, seed: int, *, tests: bool = False) -> TrialJob:
        plan, rounds = self.runs[name].plan, ask.rounds
        every = plan.evaluate_every
        if rounds < self.rounds:  # a short trial is measured four times, or as often as a whole run
            every = max(every, math.ceil(rounds / 4))
        run = self.runs[name].with_values(
            ask.values,
            rounds=rounds,
            seed=seed,
            evaluate_every=min(every, rounds),
            warmup=min(plan.warmup, rounds // 2),
        )
        return TrialJob(
            trial_id(run, tests), run, ask.values, self.device, tests, self.folder, self._known
        )

    def _make(
        self, asked: Mapping[str, Sequence[Ask]], executor: Executor | None
    ) -> dict[str, list[Trial]]:
        """The trials that were asked for, made where they are missing."""
        jobs = {
            name: [self._job(name, ask, self.seed) for ask in some] for name, some in asked.items()
        }
        self._carry_out([job for some in jobs.values() for job in some], executor)
        return {name: [self._trial(name, job) for job in some] for name, some in jobs.items()}

    def _carry_out(self, jobs: Iterable[TrialJob], executor: Executor | None) -> None:
        missing = {job.id: job for job in jobs if not self._found(job)}
        make_all(list(missing.values()), executor, self.folder, self.progress, len(self._known))

    def _found(self, job: TrialJob) -> bool:
        """Whether a trial was made before."""
        if job.id not in self._known and self.folder is not None:
            try:
                self._known[job.id] = content_of(path_of(self.folder, job.id))
            except AbsentError:
                pass
            except DamagedError as error:
                if self.say is not None:
                    self.say(f"{str(error)[:-1]}: {job.label} is made again.")
        return job.id in self._known

    def _trial(self, name: str, job: TrialJob) -> Trial:
        made = self._known[job.id]
        line = None if made["diverged"] else best_line(made["lines"], self.metric)
        return Trial(
            name,
            job.values,
            job.rounds,
            None if line is None else line[self.metric],
            None if line is None else line["round"],
            made["seconds"],
            job.id,
        )

    def _score(self, trial: Trial) -> float:
        if trial.value is None:
            return -math.inf
        return trial.value if about(self.metric)[1] else -trial.value

    def _tell(self, name: str, trials: Sequence[Trial]) -> None:
        if self.say is None or not trials:
            return
        best = max(trials, key=self._score)
        count = f"{len(trials)} trial{'s' if len(trials) > 1 else ''} of {best.rounds} rounds"
        if best.value is None:
            self.say(f"{name}: {count}, all of which diverged")
        else:
            title, _, digits = about(self.metric)
            self.say(f"{name}: {count}; best {best.shown}, {title} {best.value:.{digits}f}")


def _check_importable(run: Tunable) -> None:
    """Raises if another process could not find the user's own classes."""
    own = [type(run.own.module), type(run.algorithm)] if isinstance(run, ModuleRun) else []
    for of in own:
        if of.__module__ == "__main__":
            raise PlanError(
                f"{of.__name__} is defined in the script itself, which other processes cannot "
                "import: move it into a file of its own, or leave workers out."
            )
