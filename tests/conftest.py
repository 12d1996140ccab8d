"""What all tests share: no deadlines, one thread, no disk, data, browser, order, no quiet skips."""

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from nursery import Nursery

Report = pytest.TestReport | pytest.CollectReport
TOGETHER = {"movielens", "package", "paper_page", "site"}  # made once, not once for each worker

settings.register_profile(
    "fedrows",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],  # it measures the machine, not the code
)
settings.load_profile("fedrows")
torch.set_num_threads(1)  # sums in a fixed order
for name in ("fsync", "fdatasync"):  # no test cuts the power, and a disk takes milliseconds
    setattr(os, name, lambda file: None)
# A shell that runs tests in the background has Ctrl-C ignored, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder of raw data sets."""
    if not os.environ.get("FEDROWS_DATA"):
        pytest.skip("needs data: set FEDROWS_DATA")
    return Path(os.environ["FEDROWS_DATA"])


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's chromium."""
    found = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    path = next(filter(None, found), None)
    if path is None:
        pytest.skip("needs a browser: install chromium")
    return path


@pytest.fixture(scope="session")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    """A process that has imported what federations need, and forks theirs."""
    nursery = Nursery(tmp_path_factory.mktemp("nursery"))
    yield nursery
    nursery.close()


@pytest.fixture
def quick_starts(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Federations whose processes start at once: for tests that are not about starting."""
    forking = SimpleNamespace(**{**vars(subprocess), "Popen": nursery.start})
    monkeypatch.setattr("fedrows.flower.launch.processes.subprocess", forking)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Reads no file without a slow test if only those are wanted: to read all takes a while."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return True if "mark.slow" not in collection_path.read_text("utf-8") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadscope`, gives each worker one test at a time, but for the files of TOGETHER.

    The mark `xdist_group` is for that, but has no effect with pytest 9.2 and pytest-xdist 3.8.
    """
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return work_unit(nodeid)

    return Scheduling(config, log)


def work_unit(nodeid: str) -> str:
    """What one worker runs in one go: a test, or a file whose tests share what takes a minute."""
    file = nodeid.partition("::")[0]
    return file if Path(file).stem.removeprefix("test_") in TOGETHER else nodeid


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest tests first, or one worker has them in the end while another has nothing."""
    items.sort(key=minutes, reverse=True)


def pytest_collection_finish() -> None:
    """Spares the garbage collector all tests and modules: it went through them all the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def minutes(item: pytest.Item) -> float:
    """How long a test says it takes."""
    mark = item.get_closest_marker("slow")
    return 0.0 if mark is None else mark.kwargs.get("minutes", 0.0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Report, Report]:
    return fail_if_skipped((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Report, Report]:
    return fail_if_skipped((yield))


def fail_if_skipped(report: Report) -> Report:
    """The report, failed if it is a skip that FEDROWS_NO_SKIP forbids; a GPU may be missing."""
    if report.skipped and not hasattr(report, "wasxfail") and os.environ.get("FEDROWS_NO_SKIP"):
        assert isinstance(report.longrepr, tuple)  # file, line, "Skipped: " and the reason
        reason = report.longrepr[2].removeprefix("Skipped: ")
        if not reason.startswith("needs a GPU"):
            report.outcome = "failed"
            report.longrepr = f"skipped although FEDROWS_NO_SKIP is set: {reason}"
    return report
