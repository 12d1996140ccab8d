"""Prometheus reads everything that happened, in a file and behind a port."""

import math
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from fedrows.watch import RoundReport, RunInfo, Watching, opened
from fedrows.watch.writers.prometheus import BUCKETS, Prometheus

CONFIG = {"task": {"name": "x", "size": 3}, "algorithm": {"name": "fedavg"}, "plan": {"lr": 0.1}}
SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\.)*",?)*)\} (\S+)')


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def facts(round_: int, **more: Any) -> RoundReport:
    sizes = {"bytes_down": 100.0, "bytes_up": 50.0}
    return RoundReport(round_, asked=5, answered=4, dropped=1, **sizes, **more)


def parsed(text: str) -> dict[str, float]:
    """The samples of an exposition by name and labels; every line must be one, or a comment."""
    found = {}
    for row in text.splitlines():
        if not re.match(r"# (HELP|TYPE) fedrows_\w+ \S", row):
            match = SAMPLE.fullmatch(row)
            assert match, row
            labels = re.findall(r'\w+="(?:[^"\\\n]|\\.)*"', match[2])
            labels.sort(key=lambda x: (x[:4] != "run=", x[:3] == "le="))  # the run's name first
            found[f"{match[1]}{{{','.join(labels)}}}"] = float(match[3])
    return found


@given(st.text(), st.floats())
def test_any_label_and_number_is_a_sample(reason: str, value: float) -> None:
    prometheus = Prometheus(prometheus_client)
    prometheus.begin(RunInfo(reason))
    prometheus.measured({"round": 1, "train_loss": value})
    families = text_string_to_metric_families(prometheus.text())
    [sample] = next(x for x in families if x.name == "fedrows_train_loss").samples
    assert sample.labels == {"run": reason}
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))


def test_prometheus_counts_what_happened() -> None:
    prometheus = Prometheus(prometheus_client)
    prometheus.begin(RunInfo("a", CONFIG, 9, 2))
    prometheus.round(facts(3, rejected={'bad "ids"\n': 2}, seconds={"wait": 0.5}))
    prometheus.round(facts(4, seconds={"wait": 7.0}))
    prometheus.measured({"round": 4, "train_loss": 0.25})
    prometheus.event("saved", {})
    found = parsed(prometheus.text())
    assert found['fedrows_round{run="a"}'] == 4
    assert found['fedrows_rounds_total{run="a"}'] == 2
    assert found['fedrows_answers_total{run="a"}'] == 8
    assert found['fedrows_dropouts_total{run="a"}'] == 2
    assert found['fedrows_bytes_total{run="a",direction="down"}'] == 200
    assert found['fedrows_rejected_uploads_total{run="a",reason="bad \\"ids\\"\\n"}'] == 2
    assert found['fedrows_train_loss{run="a"}'] == 0.25
    assert found['fedrows_events_total{run="a",event="saved"}'] == 1
    wait = 'fedrows_phase_seconds_{}{{run="a",phase="wait"{}}}'
    buckets = [found[wait.format("bucket", f',le="{x}"')] for x in BUCKETS]
    assert buckets == [2 if x >= 7 else 1 if x >= 0.5 else 0 for x in BUCKETS]
    assert found[wait.format("bucket", ',le="+Inf"')] == 2
    assert found[wait.format("sum", "")] == 7.5
    assert found[wait.format("count", "")] == 2
    prometheus.end(done=True)
    assert parsed(prometheus.text())['fedrows_running{run="a"}'] == 0


def test_prometheus_own_parser_reads_the_text() -> None:
    prometheus = Prometheus(prometheus_client)
    prometheus.begin(RunInfo('a\\"b', CONFIG, 9))
    prometheus.round(facts(1, rejected={"late\n": 1}, seconds={"wait": 0.5}))
    found = {x.name: x for x in text_string_to_metric_families(prometheus.text())}
    assert found["fedrows_phase_seconds"].type == "histogram"
    [sample] = found["fedrows_rejected_uploads"].samples
    assert sample.labels == {"run": 'a\\"b', "reason": "late\n"}


def test_the_metrics_file_is_whole_and_there_from_the_start() -> None:
    path = Path("a.prom")
    with opened(Watching(metrics_file=str(path))) as observer:
        assert parsed(path.read_text()) == {}
        observer.begin(RunInfo("a", CONFIG, 9))
        assert parsed(path.read_text())['fedrows_running{run="a"}'] == 1
        observer.round(facts(1))
    assert parsed(path.read_text())['fedrows_rounds_total{run="a"}'] == 1
    assert parsed(path.read_text())['fedrows_running{run="a"}'] == 0
    assert [x.name for x in Path().iterdir()] == ["a.prom"]


def test_the_endpoint_answers_and_goes_away() -> None:
    with opened(Watching(metrics_port=0)) as observer:
        [address] = observer.addresses
        observer.begin(RunInfo("a", CONFIG, 9))
        with urllib.request.urlopen(address) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert parsed(answer.read().decode())['fedrows_running{run="a"}'] == 1
        with pytest.raises(urllib.error.HTTPError, match="404") as error:
            urllib.request.urlopen(address.replace("/metrics", "/"))
        error.value.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)
