"""The live page without a browser: what is read, thinned and streamed, and who is let in."""

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fedrows.cli import main
from fedrows.errors import FedrowsError, RunFolderError
from fedrows.live import start
from fedrows.live.curve import thinned
from fedrows.live.followed import Followed
from fedrows.live.followed_path import check
from fedrows.live.growing_lines import GrowingLines
from fedrows.live.page import page
from fedrows.live.server import Viewers
from fedrows.runs.folder import RunFolder
from fedrows.runs.status_file import STATUS, StatusFile, process_alive, process_facts, read_status
from fedrows.study.scheduling import written
from fedrows.watch import RoundReport

CONFIG = {"task": {"name": "synthetic"}, "algorithm": {"name": "fedavg"}, "plan": {"rounds": 100}}


def line(at: int, loss: float = 0.5, **more: Any) -> dict[str, Any]:
    return {"algorithm": "fedavg", "seed": 0, "round": at, "train_loss": loss, **more}


def made(path: Path, rounds: int = 0, **config: Any) -> RunFolder:
    folder = RunFolder.create(path, "run", CONFIG | config)
    for at in range(1, rounds + 1):
        folder.append(line(at, 1 / at))
    return folder


def the_run(content: dict[str, Any] | None) -> dict[str, Any]:
    assert content is not None
    [run] = content["runs"]
    return run


def test_lines_are_read_once_they_are_whole_and_anew_when_the_file_is_replaced(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lines"
    lines = GrowingLines(path)
    assert lines.read() == ([], False)
    path.write_bytes(b'{"a": 1}\n{"a": 2}\n{"a"')
    assert lines.read() == ([{"a": 1}, {"a": 2}], False)
    with path.open("ab") as file:
        file.write(b': 3}\nnonsense\n{"a": 4}\n')
    assert lines.read() == ([{"a": 3}, {"a": 4}], False)
    assert lines.read() == ([], False)
    other = tmp_path / "other"
    other.write_bytes(b'{"b": 1}\n')
    os.replace(other, path)
    assert lines.read() == ([{"b": 1}], True)


def test_a_thin_curve_keeps_its_ends_and_every_spike() -> None:
    x, y = list(range(10_000)), [0.0] * 10_000
    y[4321] = 9.0
    y[77] = -9.0
    few, values = thinned(x, y, 200)
    assert len(few) <= 200
    assert (few[0], few[-1]) == (0, 9999)
    assert dict(zip(few, values, strict=True))[4321] == 9.0
    assert dict(zip(few, values, strict=True))[77] == -9.0
    assert few == sorted(few)
    assert thinned([1, 2], [3, 4], 200) == ([1, 2], [3, 4])


def test_a_page_gets_a_snapshot_and_then_what_is_new(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 3)
    followed = Followed([tmp_path / "run"])
    assert the_run(followed.look())["curves"]["train_loss"][0] == [1, 2, 3]
    assert followed.look() is None
    folder.append(line(4, 0.2))
    assert the_run(followed.look())["add"] == {"train_loss": ([4], [0.2])}
    assert the_run(followed.snapshot())["curves"]["train_loss"][0] == [1, 2, 3, 4]
    folder.keep_lines([line(1), line(2)])  # as a run that goes back to its checkpoint
    assert the_run(followed.look())["curves"]["train_loss"][0] == [1, 2]


def test_a_run_that_dies_is_seen_and_seen_to_come_back(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 3)
    followed = Followed([tmp_path / "run"])
    followed.look()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    status = {**process_facts(), "pid": ended.pid, "round": 3, "rounds": 100, "time": time.time()}
    (folder.path / STATUS).write_text(json.dumps(status))
    facts = the_run(followed.look())["facts"]
    assert facts["state"] == "dead"
    assert "ended after round 3 of 100" in facts["said"]
    assert facts["again"].startswith("fedrows run --resume")
    StatusFile(folder.path, 3, 100)
    facts = the_run(followed.look())["facts"]
    assert (facts["state"], facts["said"], facts["again"]) == ("running", None, None)


def test_a_status_says_who_answered_and_what_was_refused(tmp_path: Path) -> None:
    status = StatusFile(tmp_path, 0, 10)
    status.nodes(1, {"a": "", "b": "its node is away"}, {"a": 2, "b": 3})
    status.round(RoundReport(1, 5, 4, 1, {"too long": 1}, 10.0, 20.0))
    status.nodes(2, {"a": ""}, {"a": 2})
    status.round(RoundReport(10, 5, 5, 0, {"too long": 2}, 10.0, 20.0))
    said = read_status(tmp_path)
    assert (said["round"], said["asked"], said["answered"]) == (10, 10, 9)
    assert said["rejected"] == {"too long": 3}
    assert (said["bytes_down"], said["bytes_up"]) == (20.0, 40.0)
    assert said["nodes"]["a"] | {"heard": 0} == {
        "asked": 2, "answered": 2, "heard": 0, "round": 2, "said": "", "clients": 2,
    }  # fmt: skip
    assert said["nodes"]["b"]["said"] == "its node is away"
    assert process_alive(said)
    assert process_alive(said | {"started": "1"}) is False
    assert process_alive(said | {"host": "elsewhere"}) is None
    status.end(failed="The loss\nis not finite.")
    assert read_status(tmp_path)["failed"] == "The loss is not finite."


def test_a_status_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "nowhere", 0, 10)
    status.round(RoundReport(1, 5, 4))
    assert read_status(tmp_path / "nowhere") == {}


def test_refusals_and_nodes_of_a_deployment(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 2, deploy={"privacy": "none"})
    rounds = [
        {"round": 1, "refused": {"too long": ["node 'a'"] * 2}, "dropped": {"away": ["x", "y"]}},
        {"round": 2, "refused": {}, "dropped": {"away": ["x"]}, "bytes_down": 7, "bytes_up": 8},
    ]
    (folder.path / "rounds.jsonl").write_text("".join(json.dumps(x) + "\n" for x in rounds))
    StatusFile(folder.path, 0, 10).notice("Waiting for nodes: 1 are here.")
    facts = the_run(Followed([folder.path]).look())["facts"]
    assert facts["refused"] == [{"round": 1, "why": "too long", "who": "node 'a'"}]
    assert facts["left_out"] == {"away": 3}
    assert facts["moved"] == [7, 8]
    assert (facts["state"], facts["said"]) == ("waiting", "Waiting for nodes: 1 are here.")


@pytest.mark.parametrize(
    "config", [{"privacy": {"privacy": "full"}}, {"deploy": {"privacy": "full"}}]
)
def test_a_run_under_privacy_full_shows_what_epsilon_covers(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    folder = made(tmp_path / "run", **config)
    folder.append(line(1, bytes_down=3, epsilon={"model/user": 1.5, "server/set": 9.0}))
    StatusFile(folder.path, 0, 10).round(RoundReport(10, 1, 1, bytes_down=5.0))
    run = the_run(Followed([folder.path]).look())
    assert run["curves"] == {}
    assert run["facts"]["epsilon"] == {"model/user": 1.5}
    assert run["facts"]["hidden"]
    assert not {"bytes", "moved", "buckets"} & run["facts"].keys()


def test_a_folder_is_waited_for_and_one_without_runs_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "later"
    followed = Followed([path])
    first = followed.look()
    assert first is not None
    assert first["folders"][0]["kind"] == "waiting"
    check(path)
    made(path, 1)
    assert the_run(followed.look())["label"] == "FedAvg seed 0"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "letter.txt").write_text("Dear")
    with pytest.raises(RunFolderError, match="is not the folder of a run"):
        check(tmp_path / "other")
    assert main(["watch", str(tmp_path / "other")]) == 2
    assert main(["watch"]) == 2
    assert main(["watch", str(path), "--port", "x"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_several_runs_lie_over_one_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        made(tmp_path / "runs" / name, 2)
    content = Followed([tmp_path / "runs"]).look()
    assert content is not None
    assert [run["label"] for run in content["runs"]] == [
        "FedAvg seed 0 (one)",
        "FedAvg seed 0 (two)",
    ]
    assert len(set(content["groups"].values())) == 2


def finished_run(folder: Path, name: str, lines: list[dict[str, Any]]) -> None:
    content = {"seed": 3, "seconds": 2.0, "lines": lines, "setting": {"algorithm": "fedavg"}}
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    (folder / "runs" / f"{name}.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))


def test_a_study_shows_finished_runs_and_those_being_made(tmp_path: Path) -> None:
    finished_run(tmp_path, "a", [line(1), line(2)])
    progress = written(tmp_path, None)
    progress(1, 3, "fedavg seed 4", 17)
    followed = Followed([tmp_path])
    content = followed.look()
    assert the_run(content)["label"] == "FedAvg seed 3"
    assert content["folders"][0] | {"path": ""} == {
        "path": "", "kind": "study", "said": "", "task": "", "of": 3,
        "running": {"fedavg seed 4": 17},
    }  # fmt: skip
    (tmp_path / "runs" / "b.json.gz").write_bytes(b"cut short")
    content = followed.look()
    assert content is not None
    assert "1 files are cut short" in content["folders"][0]["said"]
    finished_run(tmp_path, "c", [line(1)])
    assert len((followed.look() or {})["runs"]) == 1


def test_a_hundred_runs_and_ten_thousand_rounds_are_less_than_a_megabyte(tmp_path: Path) -> None:
    lines = [line(at, 1 / at, test_auc=0.5, test_loss=at / 7) for at in range(1, 401)]
    for number in range(100):
        finished_run(tmp_path / "study", str(number), lines)
    long = made(tmp_path / "long")
    long.keep_lines([line(at, 1 / at, test_auc=0.5) for at in range(1, 10_001)])
    for path in (tmp_path / "study", tmp_path / "long"):
        followed = Followed([path])
        followed.look()
        size = len(json.dumps(followed.snapshot())) + len(page().encode())
        assert size < 1_000_000


def test_a_viewer_that_does_not_keep_up_is_let_go(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 1)

    async def watch() -> list[bytes]:
        viewers = Viewers([folder.path])
        await viewers.look()
        stream = viewers.events()
        seen = [await anext(stream)]
        for at in range(2, 120):
            folder.append(line(at))
            await viewers.look()
        seen += [data async for data in stream]
        return seen

    [snapshot] = asyncio.run(watch())
    assert snapshot.startswith(b"event: snapshot\ndata: {")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RunFolder]]:
    folder = made(tmp_path_factory.mktemp("live") / "run", 3)
    with start.beside([folder.path]) as address:
        yield address, folder


def test_who_is_let_in(served: tuple[str, RunFolder]) -> None:
    address, _ = served
    with httpx.Client(timeout=20) as client:
        answer = client.get(address)
        assert answer.status_code == 200
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
        plain = address.partition("?")[0]
        for wrong in (
            plain,
            f"{plain}?token=",
            f"{address}x",
            f"{plain}events",
            f"{plain}?token=é",
        ):
            assert client.get(wrong).status_code == 403, wrong
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"):
            assert client.request(method, address).status_code == 405, method
        for host in ("evil.example", "127.0.0.1.evil.example", ""):
            assert client.get(address, headers={"host": host}).status_code == 400, host
        assert client.get(address, headers={"host": "localhost:9"}).status_code == 200
        events = address.replace("/?", "/events?")
        cross = client.get(events, headers={"sec-fetch-site": "cross-site"})
        assert cross.status_code == 403
        assert client.get(address.replace("/?", "/config.json?")).status_code == 404


def test_the_stream_tells_a_new_line(served: tuple[str, RunFolder]) -> None:
    address, folder = served
    events = address.replace("/?", "/events?")
    with httpx.stream("GET", events, timeout=120) as answer:  # benchmarks/live.py measures seconds
        lines = answer.iter_lines()
        assert next(lines) == "event: snapshot"
        assert '"train_loss":[[1,2,3]' in next(lines)
        folder.append(line(50, 0.25))
        news = next(text for text in lines if '"add"' in text)
        assert '"add":{"train_loss":[[50],[0.25]]}' in news


def test_the_page_ends_with_its_command_and_says_so(tmp_path: Path) -> None:
    folder = made(tmp_path / "run", 1)
    with start.beside([folder.path]) as address:
        stream = httpx.stream("GET", address.replace("/?", "/events?"), timeout=20)
        answer = stream.__enter__()
        lines = answer.iter_lines()
        next(lines)
    rest = list(lines)
    stream.__exit__(None, None, None)
    assert any("To see the page again: fedrows watch" in text for text in rest)


def test_a_port_in_use_and_a_missing_package_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(FedrowsError, match="cannot be opened"):
            start.listen(taken.getsockname()[1])
    monkeypatch.setattr(start, "NEEDED", ("starlette", "no_such_package"))
    with pytest.raises(FedrowsError, match=r"pip install fedrows\[live\]"):
        start.check_installed("--live")


def test_flags_of_the_live_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "synthetic", "--live-port", "9"]) == 2
    assert main(["run", "synthetic", "--live", "--live-port", "70000"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("metrics.jsonl", '{"round": 1, "train_loss": 0.5, "buckets": [3]}\n'),
        ("metrics.jsonl", '{"round": 1, "train_loss": 0.5, "epsilon": 3}\n'),
        ("metrics.jsonl", "[" * 10**6 + "\n"),
        ("status.json", '{"round": [], "rounds": "x"}'),
        ("status.json", "[" * 10**6),
        ("config.json", '{"kind": "run", "plan": "x", "fedrows": "0"}'),
        ("config.json", "[" * 10**6),
    ],
)
def test_damaged_files_of_one_run_leave_the_page_to_the_others(
    tmp_path: Path, file: str, content: str
) -> None:
    made(tmp_path / "whole", 3)
    made(tmp_path / "odd", 3)
    (tmp_path / "odd" / file).write_text(content)
    followed = Followed([tmp_path / "whole", tmp_path / "odd"])
    for _ in range(2):
        followed.look()
    runs = followed.snapshot()["runs"]
    assert [one["facts"]["round"] for one in runs if "whole" in one["label"]] == [3]
