"""Whoever watches a run sees all of it once, and cannot harm it."""

import json
import math
import shutil
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from test_prometheus import facts, parsed

from fedrows import catalogue
from fedrows.cli import main
from fedrows.errors import FedrowsError
from fedrows.runs.folder import RunFolder
from fedrows.watch import Observers, RoundReport, RunInfo, Watching, opened
from fedrows.watch.observer import WatchError, metrics_of, numbers_of, settings_of
from fedrows.watch.observers import FAILURES

SMALL = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
RUN = ["run", "synthetic", *SMALL, "--evaluate-every", "2"]
CONFIG = {"task": {"name": "x", "size": 3}, "algorithm": {"name": "fedavg"}, "plan": {"lr": 0.1}}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line(round_: int) -> dict[str, Any]:
    bucket = {"low": 1, "high": 2, "examples": 3, "loss": 0.5, "auc": None}
    return {"round": round_, "train_loss": 1 / round_, "test_auc": math.nan, "buckets": [bucket]}


def watch(watching: Watching, at: int, until: int, done: bool = True) -> None:
    """A run that does the rounds after `at`."""
    with opened(watching) as observer:
        observer.begin(RunInfo("cmp/a", CONFIG, 20, at, Path("cmp/a")))
        for number in range(at + 1, until + 1):
            observer.measured(line(number))
            observer.round(facts(number, seconds={"round": 0.25}))
        observer.end(done)


class Recorder:
    """An observer that remembers, and fails when told to."""

    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.fails = False

    def _see(self, what: Any) -> None:
        self.seen.append(what)
        if self.fails:
            raise RuntimeError("no room at http://me:hunter2@host")

    def begin(self, run: RunInfo) -> None:
        self._see(run.name)

    def round(self, facts: RoundReport) -> None:
        self._see(facts.round)

    def measured(self, line: Mapping[str, Any]) -> None:
        self._see(line)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        self._see(name)

    def end(self, done: bool) -> None:
        self._see(done)

    def close(self) -> None:
        self._see("closed")


def test_metrics_without_a_value_are_left_out() -> None:
    assert metrics_of(line(2)) == {"train_loss": 0.5, "heat/1-2/loss": 0.5}


def test_a_round_is_numbers_and_a_config_settings() -> None:
    found = numbers_of(facts(1, rejected={"too big": 2, "late": 1}, seconds={"wait": 3.0}))
    assert found["round/rejected"] == 3
    assert found["round/rejected_by/too_big"] == 2
    assert found["round/seconds/wait"] == 3.0
    assert settings_of(CONFIG)["plan.lr"] == 0.1
    assert settings_of(CONFIG)["task.size"] == 3


def test_the_writers_are_found_by_name() -> None:
    assert catalogue.built_in("writer") == ["log", "mlflow", "prometheus", "tensorboard", "wandb"]


def test_nothing_is_opened_unasked() -> None:
    with opened(Watching()) as observer:
        observer.begin(RunInfo("a"))
        observer.round(facts(1))
        observer.end(True)
    assert list(Path().iterdir()) == []


def test_an_observer_that_fails_is_left_out_and_the_run_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad, good = Recorder(), Recorder()
    observers = Observers([bad, good])
    observers.begin(RunInfo("one"))
    bad.fails = True
    for number in range(1, 10):
        observers.round(facts(number))
    assert good.seen == ["one", *range(1, 10)]
    assert bad.seen == ["one", *range(1, FAILURES + 1)]
    assert len(caplog.records) == 2
    assert "hunter2" not in caplog.text
    bad.fails = False
    observers.begin(RunInfo("two"))  # a new run, a new chance
    observers.round(facts(1))
    assert bad.seen[-2:] == ["two", 1]
    bad.fails = True
    observers.begin(RunInfo("three"))
    observers.round(facts(1))
    assert bad.seen[-1] == "three"
    observers.close()
    assert (bad.seen[-1], good.seen[-1]) == ("closed", "closed")


def test_a_run_is_not_begun_unseen() -> None:
    bad = Recorder()
    bad.fails = True
    with pytest.raises(
        WatchError, match=r"^Recorder cannot be written \(no room at http://\*\*\*@"
    ):
        Observers([bad]).begin(RunInfo("one"))


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows of a folder: the steps and values of every scalar."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = module.EventAccumulator(str(folder))
    shown.Reload()
    return {x: [(e.step, e.value) for e in shown.Scalars(x)] for x in shown.Tags()["scalars"]}


def test_tensorboard_has_every_step_once_when_a_run_goes_on() -> None:
    pytest.importorskip("tensorboard")
    watching = Watching(tensorboard="tb")
    watch(watching, 0, 7, done=False)
    watch(watching, 4, 9)  # the checkpoint was older than the metrics
    shown = events(Path("tb/cmp/a"))
    assert [step for step, _ in shown["train_loss"]] == list(range(1, 10))
    assert shown["train_loss"][3] == (4, 0.25)
    assert [value for _, value in shown["round/answered"]] == [4] * 9
    assert "heat/1-2/loss" in shown


def test_mlflow_goes_on_with_the_same_run_and_no_step_twice() -> None:
    mlflow = pytest.importorskip("mlflow")
    watching = Watching(mlflow="ml")
    watch(watching, 0, 7, done=False)
    Path("report.html").write_text("seen")
    with opened(watching) as observer:
        observer.begin(RunInfo("cmp/a", CONFIG, 20, 4, Path("cmp/a")))
        for number in range(5, 10):
            observer.measured(line(number))
        observer.event("report", {"path": "report.html"})
        observer.end(True)
    client = mlflow.MlflowClient(Path("ml").absolute().as_uri())
    experiment = client.get_experiment_by_name("fedrows")
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert (run.info.run_name, run.data.params["plan.lr"]) == ("cmp/a", "0.1")
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert sorted(x.step for x in history) == list(range(1, 10))
    assert [x.path for x in client.list_artifacts(run.info.run_id)] == ["report.html"]
    watch(watching, 0, 1)  # another run in the same folder is another run
    assert len(client.search_runs([experiment.experiment_id])) == 2


def test_weights_and_biases_writes_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    Path("report.html").write_text("seen")
    with opened(Watching(wandb="demo")) as observer:
        observer.begin(RunInfo("cmp/a", CONFIG, 20, 0, Path("cmp/a")))
        for number in range(1, 4):
            observer.measured(line(number))
        observer.event("report", {"path": "report.html"})
        observer.end(True)
    [path] = Path("wandb").glob("offline-run-*/run-*.wandb")
    until = time.monotonic() + 60  # its service may write the file after the run has ended
    while b"train_loss" not in (written := path.read_bytes()):
        assert time.monotonic() < until, written
        time.sleep(0.01)
    assert b"plan.lr" in written
    with pytest.raises(WatchError, match="must name a project"):
        opened(Watching(wandb=" ")).__enter__()


def test_mlflow_sends_no_telemetry() -> None:
    pytest.importorskip("mlflow")
    with opened(Watching(mlflow="ml")):
        from mlflow.telemetry.utils import is_telemetry_disabled

        assert is_telemetry_disabled()


@pytest.mark.parametrize(
    ("flag", "package", "extra"),
    [
        ("tensorboard", "torch.utils.tensorboard", "tensorboard"),
        ("mlflow", "mlflow", "mlflow"),
        ("wandb", "wandb", "wandb"),
        ("metrics_file", "prometheus_client", "prometheus"),
    ],
)
def test_a_missing_package_is_one_sentence(
    flag: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FedrowsError, match=rf"pip install fedrows\[{extra}\]\.$"):
        opened(Watching(**{flag: "there"})).__enter__()


@pytest.fixture
def taken() -> Any:
    """A port in use."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield str(sock.getsockname()[1])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--metrics-port", "PORT"], "cannot be opened (Address already in use): name another"),
        (["--metrics-port", "70000"], "metrics-port is 70000, but must be at most 65535."),
        (["--metrics-port", "x"], "metrics-port is 'x', but must be a whole number."),
        (["--metrics-file", "no/where"], "--metrics-file no/where cannot be written"),
        (["--metrics-file", "."], "--metrics-file . cannot be written (it is a folder)"),
        (["--log-file", "no/where"], "--log-file no/where cannot be written"),
        (["--log", "loud"], "log is 'loud', but must be one of text, json, off."),
        (["--mlflow", "http://me:hunter2@127.0.0.1:PORT/x"], "cannot be reached"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence_and_nothing_is_left(
    words: list[str],
    sentence: str,
    taken: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "--mlflow" in words:
        pytest.importorskip("mlflow")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    words = [word.replace("PORT", taken) for word in words]
    assert main([*RUN, "--rounds", "2", *words]) == 2
    out, err = capsys.readouterr()
    assert sentence in err
    assert err.count("\n") == 1
    assert "hunter2" not in out + err
    assert not Path("runs").exists()


def test_a_simulated_run_tells_of_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    seen = ["--log", "json", "--log-file", "log", "--metrics-file", "a.prom"]
    assert main([*RUN, "--rounds", "5", "--out", "a", *seen]) == 0
    assert main(["run", "--resume", "a", "--rounds", "6", *seen]) == 0
    said = [json.loads(text) for text in Path("log").read_text().splitlines()]
    assert {x["run"] for x in said} == {"a"}
    assert [x["round"] for x in said if x["event"] == "round"] == [1, 2, 3, 4, 5, 6]
    evaluated = [x for x in said if x["event"] == "measured"]
    assert [x["round"] for x in evaluated] == [2, 4, 5, 6]
    kept = RunFolder.open(Path("a")).lines()
    assert evaluated[-1]["train_loss"] == kept[-1]["train_loss"]
    first = next(x for x in said if x["event"] == "round")
    assert first["bytes_down"] > 0
    assert first["asked"] == first["answered"] == 5
    assert set(first["seconds"]) == {"round"}
    assert [x["event"] for x in said].count("report") == 2
    found = parsed(Path("a.prom").read_text())
    assert found['fedrows_round{run="a"}'] == 6
    assert found['fedrows_rounds_total{run="a"}'] == 1


def test_a_run_that_breaks_off_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFolder, "append", fail)
    seen = ["--log", "json", "--log-file", "log", "--metrics-file", "a.prom"]
    assert main([*RUN, "--rounds", "5", "--out", "a", *seen]) == 2
    last = json.loads(Path("log").read_text().splitlines()[-1])
    assert (last["event"], last["level"], last["round"]) == ("broken off", "warning", 1)
    assert parsed(Path("a.prom").read_text())['fedrows_running{run="a"}'] == 0


def test_the_numbers_are_the_same_whoever_watches() -> None:
    for name, more in {"a": [], "b": ["--metrics-port", "0", "--log-file", "log"]}.items():
        assert main([*RUN, "--rounds", "4", "--out", name, *more]) == 0
    a, b = (RunFolder.open(Path(name)).lines() for name in "ab")
    assert [x | {"seconds": 0} for x in a] == [x | {"seconds": 0} for x in b]


def test_a_comparison_names_its_runs() -> None:
    words = ["compare", *RUN[1:], "--rounds", "2", "--algorithms", "fedavg,centralsgd"]
    assert main([*words, "--seeds", "0", "--out", "c", "--log", "json", "--log-file", "log"]) == 0
    said = [json.loads(text) for text in Path("log").read_text().splitlines()]
    ends = [x["run"] for x in said if x["event"] == "end"]
    assert ends == ["c/fedavg-seed0", "c/centralsgd-seed0", "c"]
    pooled = [x for x in said if x["event"] == "round" and "central" in x["run"]]
    assert all("bytes_down" not in x for x in pooled)


def test_a_password_in_an_address_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedrows.watch.writers.mlflow.opened", lambda watching: None)
    words = ["--mlflow", "http://me:hunter2@host"]
    assert main([*RUN, "--rounds", "2", "--out", "a", *words]) == 0
    assert not [x for x in Path("a").iterdir() if b"hunter2" in x.read_bytes()]
    shutil.rmtree("a")
