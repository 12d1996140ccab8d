"""Who makes the runs of a study: processes of this machine, Dask, Ray, or any other executor."""

import pickle
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_study import DATA, PLAN, numbers, small, stamps

from fedrows.errors import PlanError
from fedrows.study import Setting, Study, StudyError, processes
from fedrows.study.processes import WorkerProcesses
from fedrows.study.scheduling import executor_for


def test_a_worker_that_dies_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", "/bin/false")
    with pytest.raises(StudyError, match=r"seed 0, and 3 more like it, .* ended with code 1"):
        small().run(tmp_path, 2)


def test_one_run_needs_no_workers() -> None:
    assert executor_for(4, "cpu", 1) is None
    assert isinstance(executor_for(4, "cpu", 2), WorkerProcesses)
    with pytest.raises(PlanError, match="workers is 0"):
        executor_for(0, "cpu")


class Travelling(Executor):
    """An executor whose calls and answers are pickled, as those of another machine are."""

    def __init__(self, fails_on: int | None = None) -> None:
        self._fails_on, self._calls = fails_on, 0

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._calls == self._fails_on:
            future.set_exception(BrokenExecutor("a machine is gone"))
        else:
            call, arguments = pickle.loads(pickle.dumps((call, arguments)))
            future.set_result(pickle.loads(pickle.dumps(call(*arguments))))
        self._calls += 1
        return future


def test_any_executor_makes_the_runs(tmp_path: Path) -> None:
    study = small()
    here = study.run(tmp_path / "here", 1)
    there = Study(study.settings, study.seeds, Travelling()).run(tmp_path / "there")
    assert numbers(there) == numbers(here)


def test_what_an_executor_loses_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    study = small()
    with pytest.raises(StudyError, match=r"seed \d could not be run \(.*a machine is gone\): 3 ot"):
        Study(study.settings, study.seeds, Travelling(fails_on=1)).run(tmp_path)
    assert len(stamps(tmp_path)) == 3


def test_errors_elsewhere_arrive_as_they_are_here(tmp_path: Path) -> None:
    wrong = Setting("synthetic", "fedavg", {**PLAN, "clients_per_round": 31}, data=DATA)
    with pytest.raises(StudyError, match="31, but only 30 clients of synthetic"):
        Study([wrong], [0], Travelling()).run(tmp_path)


class OfOtherData(Travelling):
    """An executor that is asked for runs whose ids come from other data than it has."""

    def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
        [job] = arguments
        return super().submit(call, replace(job, id="0" * 16))


def test_other_data_elsewhere_are_refused(tmp_path: Path) -> None:
    study = Study(small().settings, [0], OfOtherData())
    with pytest.raises(StudyError, match="the data files of synthetic, or the version of fedrows"):
        study.run(tmp_path)


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_only_its_run_with_it(tmp_path: Path) -> None:
    long = Setting("synthetic", "fedavg", {**PLAN, "rounds": 10**6}, data=DATA)
    short = [Setting("synthetic", "fedavg", {**PLAN, "lr": rate}, data=DATA) for rate in (1, 2, 3)]
    executor = WorkerProcesses(2)

    def kill(done: int, of: int, label: str, round_: int) -> None:
        if done == 3:  # the short ones are made: what still goes on is the long one
            for process in executor._all:
                process.kill()

    with pytest.raises(StudyError, match=r"^fedavg on synthetic, seed 0 could .* code -9\): 3 o"):
        Study([long, *short], [0], executor).run(tmp_path, progress=kill)
    executor.shutdown()
    assert len(stamps(tmp_path)) == 3


@pytest.mark.slow
def test_dask_makes_the_runs(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    study = small()
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as two,
        distributed.Client(two) as client,
    ):
        there = Study(study.settings, study.seeds, client.get_executor()).run(tmp_path / "there")
    assert numbers(there) == numbers(study.run(tmp_path / "here", 1))


@pytest.mark.slow
def test_ray_makes_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")  # and nothing is sent anywhere
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # or a token is left in the home folder
    ray = pytest.importorskip("ray")

    class Ray(Executor):  # as in docs/studies.md
        def submit(self, call: Any, /, *arguments: Any, **named: Any) -> Future[Any]:
            future: Future[Any] = ray.remote(call).remote(*arguments, **named).future()
            return future

    study = small()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        there = Study(study.settings, study.seeds, Ray()).run(tmp_path / "there")
    finally:
        ray.shutdown()
    assert numbers(there) == numbers(study.run(tmp_path / "here", 1))


@pytest.mark.slow
def test_numbers_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    study = small(("fedsubavg", "scaffold", "centralsgd"))
    two, one = study.run(tmp_path / "two", 2), study.run(tmp_path / "one", 1)
    assert numbers(two) == numbers(one)
