"""The benchmarks' own machinery: turns, bars, results, peers, the page. No time is asserted."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.speed import all as all_of_them
from benchmarks.speed import (
    baselines,
    billion,
    blocks,
    cohort,
    environments,
    memory,
    models,
    peers,
    shapes,
)
from benchmarks.speed.bars import Faster, at_least, at_most, contest
from benchmarks.speed.environments import PeerError
from benchmarks.speed.processes import InProcesses
from benchmarks.speed.worker import Worker
from fedrows import cli
from fedrows.algorithms.fedavg import FedAvg
from fedrows.cli.flags import Parser
from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.server import begin, rounds
from fedrows.simulator import fast_paths

ROOT = Path(__file__).parent.parent


def tiny(clients: int = 6, examples: int = 1, **plan: Any) -> shapes.Shape:
    """Clients with so many examples of three features each."""
    rng, owner = np.random.default_rng(0), np.repeat(np.arange(clients), examples)
    data = FederatedData.build(
        client=owner,
        ids={"features": rng.integers(0, 20, (len(owner), 3))},
        label=rng.integers(0, 2, len(owner)),
        test=np.zeros(len(owner), dtype=bool),
        tables={"weight": 20},
        fields={"features": "weight"},
    )
    its = {"clients_per_round": clients, "local_steps": 3, "batch_size": 1, "device": "cpu"}
    return shapes.Shape(data, lambda: Logistic(data), Plan(rounds=10**9, **(its | plan)))


def one_sentence(text: str) -> bool:
    return text.endswith(".") and "\n" not in text and ". " not in text


def test_everyone_gets_a_turn_before_anyone_gets_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "_PAUSE", 0)
    turns: list[tuple[str, int]] = []
    contenders = {
        name: (lambda count, name=name: turns.append((name, count)), rounds)
        for name, rounds in (("a", 20), ("b", 3))
    }
    times = blocks.seconds_per_round(contenders, 2)
    assert turns == [("a", 2), ("b", 1), ("a", 20), ("b", 3), ("a", 20), ("b", 3)]
    assert {name: len(values) for name, values in times.items()} == {"a": 2, "b": 2}


def test_bars_hold_against_the_fastest_and_leave_out_who_was_not_there() -> None:
    times = {"fedrows": [2.0, 1.0, 9.0], "x": [6.0, 6.0, 1.0], "y": [5.0, 5.0, 5.0]}
    found = contest(times, [Faster("both", 3, ("x", "y")), Faster("x", 3), Faster("nobody", 1)])
    assert found["bars"] == [at_least("times both", 2.5, 3), at_least("times x", 3.0, 3)]
    assert [bar["met"] for bar in found["bars"]] == [False, True]
    assert found["rounds_per_second"] == {"fedrows": 0.5, "x": 1 / 6, "y": 0.2}
    assert found["seconds_per_round"] == times
    assert [at_most("", value, 1.1)["met"] for value in (1.1, 1.2)] == [True, False]


def test_a_result_says_what_it_was_measured_on(tmp_path: Path) -> None:
    words = ["--blocks", "3", "--out", str(tmp_path / "new" / "x.json")]
    options = blocks.settings(Parser("bench x", ""), words, blocks=5)
    options.write({"value": 1, "threads": 7})
    found = json.loads((tmp_path / "new" / "x.json").read_text("utf-8"))
    assert options.blocks == 3
    assert found["command"] == "fedrows bench x --blocks 3"
    assert found["value"] == 1
    assert found["threads"] == 7  # what a benchmark says itself comes first
    assert found["torch"] == torch.__version__
    for fact in ("cpu", "cores", "memory_gib", "python", "numpy", "fedrows", "date"):
        assert found[fact], fact


def test_a_result_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    words = ["--out", str(tmp_path / "file" / "x.json")]
    options = blocks.settings(Parser("bench x", ""), words, blocks=5)
    with pytest.raises(RunFolderError, match="cannot be written") as error:
        options.write({})
    assert one_sentence(str(error.value))


def test_help_lists_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["bench", "--help"]) == 0
    said = capsys.readouterr().out
    for name in ("lr", "lstm", "din", "own", *all_of_them.ORDER[:5], "all"):
        assert f"\n  {name} " in said, name


def test_one_by_one_is_fedavg() -> None:
    shape = tiny()
    model, algorithm = shape.model(), FedAvg()
    fleet = fast_paths.fleet(model, algorithm, shape.data, shape.plan)
    loop = rounds(fleet, shape.plan, begin(model, algorithm, shape.plan))
    next(loop)
    ours = next(loop).params
    module = zeros(shape)
    baselines.one_by_one(module, shape.data, shape.plan)(2)
    torch.testing.assert_close(module.weight.weight.detach(), ours.tables["weight"])
    torch.testing.assert_close(module.bias.detach()[0], ours.dense["bias"])


@pytest.mark.slow  # processes are started
def test_processes_give_what_one_gives() -> None:
    shape = tiny(clients=5)
    alone, shared = zeros(shape), zeros(shape)
    baselines.one_by_one(alone, shape.data, shape.plan)(2)
    with closing(InProcesses(shared, shape.data, shape.plan)) as run:
        run(2)
    for a, b in zip(alone.parameters(), shared.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def zeros(shape: shapes.Shape) -> baselines.Plain:
    module = baselines.Plain(20, bag=False)
    torch.nn.init.zeros_(module.weight.weight)
    return module


@pytest.mark.parametrize("name", models.SHAPES)
def test_every_contender_of_a_model_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "CLIENTS", 4)
    monkeypatch.setattr(shapes, "movielens_or_alike", lambda: tiny(4, 5).data)
    shape = models.SHAPES[name]("cpu")
    few = shapes.replace_plan(shape, clients_per_round=2, local_steps=1, batch_size=2)
    with models.contenders(name, few) as those:
        for who, (run, _) in those.items():
            if who != "one by one, two processes":
                run(1)
    assert set(those) - {"centralised, nn.EmbeddingBag"} == {
        "fedrows", "centralised", "one by one", "one by one, two processes"
    }  # fmt: skip


def test_cohorts_report_memory_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "ratings", lambda device: tiny(30, 4))
    found = cohort.memory_and_bytes(10)
    assert found["peak_bytes"] >= 0
    assert 0 < found["bytes_down"] < found["bytes_up"]


def test_memory_is_looked_at_every_hundred_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.SHAPES, "lr", lambda device: tiny())
    assert len(memory.watch("lr", 200)) == 2
    assert cli.main(["bench", "memory", "--rounds", "100"]) != 0


def test_the_benchmark_of_a_billion_rows_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(billion, "CLIENTS", 60)
    monkeypatch.setattr(billion, "EXAMPLES", 4)
    found = billion.main(["--rounds", "3"])
    assert found["fedsubavg"]["touched"] == found["fedadam"]["touched"] > 500
    assert [bar["met"] for bar in found["bars"]][::2] == [True, True]


def test_all_go_on_after_one_that_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran: list[str] = []

    def run(words: list[str], check: bool) -> Any:
        ran.append(words[4])
        return SimpleNamespace(returncode=int(words[4] == "din"))

    monkeypatch.setattr(all_of_them.subprocess, "run", run)
    words = ["bench", "all", "--out", str(tmp_path), "--only", "din,own"]
    assert cli.main(words) != 0
    assert ran == ["din", "own"]
    assert "1 of 2 benchmarks failed (din)" in capsys.readouterr().err
    assert cli.main(["bench", "all", "--only", "lr"]) != 0


# Peers


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDROWS_BENCH_ENVS", str(tmp_path / "envs"))
    wanted, done = tmp_path / "peer.txt", []
    wanted.write_text("peer==1\n")

    def run(command: list[str], **_: Any) -> Any:
        done.append(command[2])
        python = tmp_path / "envs" / "peer" / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.touch()
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(environments.subprocess, "run", run)
    for _ in range(2):
        python = environments.python_of("peer", wanted)
    assert python == tmp_path / "envs" / "peer" / "bin" / "python"
    assert done == ["venv", "pip"]
    wanted.write_text("peer==2\n")
    environments.python_of("peer", wanted)
    assert done == ["venv", "pip"] * 2


def test_an_environment_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDROWS_BENCH_ENVS", str(tmp_path / "file"))
    wanted = tmp_path / "peer.txt"
    wanted.write_text("peer==1\n")
    with pytest.raises(PeerError, match="The environment of peer cannot be made") as error:
        environments.python_of("peer", wanted)
    assert one_sentence(str(error.value))
    failed = SimpleNamespace(returncode=1, stdout="", stderr="ERROR: No such thing.\n\nnotice\n")
    monkeypatch.setattr(environments.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(PeerError, match=r"cannot be made \(No such thing\)"):
        environments.python_of("peer", wanted)


FAKE = '''"""A peer that counts.

It does nothing.
"""

PACKAGES = ("numpy",)


def follow(federation, orders):
    print("not an answer")
    ran = 0
    orders.loss = lambda: federation.lr / (1 + ran)
    for count in orders:
        if count == 13:
            raise RuntimeError("bad luck")
        ran += count
'''


def fake_peer(folder: Path, shape: shapes.Shape) -> Worker:
    """A peer of a few lines, behind the real protocol."""
    (folder / "peers").mkdir()
    for name in ("__init__.py", "worker.py"):
        shutil.copy(ROOT / "benchmarks" / "peers" / name, folder / "peers" / name)
    (folder / "peers" / "fake.py").write_text(FAKE)
    peers.hand_over(folder / "federation.npz", "lr", shape)
    command = [sys.executable, "-m", "peers.worker", "fake", "federation.npz"]
    return Worker("fake", command, folder)


def test_a_peer_runs_as_many_rounds_as_it_is_told(tmp_path: Path) -> None:
    with closing(fake_peer(tmp_path, tiny(lr=0.5))) as worker:
        assert worker.facts == {"ready": {"numpy": np.__version__}, "how": "It does nothing."}
        assert worker.loss() == 0.5
        worker(3)
        worker(1)
        assert worker.loss() == 0.1
        with pytest.raises(PeerError, match=r"fake stopped answering .*bad luck") as error:
            worker(13)
    assert one_sentence(str(error.value))


def test_a_peer_that_does_not_start_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="no such luck") as error:
        Worker("fake", [sys.executable, "-c", "raise SystemExit('no such luck')"], tmp_path)
    assert one_sentence(str(error.value))


def test_peers_are_handed_the_same_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = tiny(4, 3)
    peers.hand_over(tmp_path / "federation.npz", "lr", shape)
    worker = runpy.run_path(str(ROOT / "benchmarks" / "peers" / "worker.py"))
    found = worker["Federation"].read(str(tmp_path / "federation.npz"))
    np.testing.assert_array_equal(found.ids, shape.data.train.ids["features"].numpy())
    np.testing.assert_array_equal(found.label, shape.data.train.label.numpy())
    assert (found.model, found.rows, found.clients, found.local_steps) == ("lr", 20, 4, 3)
    ids, label = found.draw(2, np.random.default_rng(0))
    assert (ids.shape, label.shape) == ((3, 3), (3,))
    assert {tuple(x) for x in ids} <= {tuple(x) for x in found.ids[6:9]}  # the client's own


def test_a_peer_that_is_missing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextmanager
    def only_us(name: str, shape: shapes.Shape) -> Iterator[models.Contenders]:
        yield {"fedrows": (lambda count: None, 1)}

    def start(name: str, file: Path) -> Worker:
        if name == "flower":
            raise PeerError("No flower grows here.")
        return fake_peer(tmp_path, tiny())

    monkeypatch.setattr(peers, "contenders", only_us)
    monkeypatch.setitem(models.SHAPES, "lr", lambda device: tiny())
    facts: dict[str, Any] = {}
    found = peers.measure("lr", ["flower", "pfl"], 2, facts, start)
    assert facts["flower"] == {"missing": "No flower grows here."}
    before, after = facts["pfl"]["loss"]["lr"]
    assert after < before
    assert set(found["rounds_per_second"]) == {"fedrows", "pfl"}
    assert "No flower grows here." in capsys.readouterr().out


def test_without_the_repository_the_command_says_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedrows.cli.bench.FOLDER", tmp_path / "benchmarks" / "speed")
    for words in (["peers"], ["--help"], []):
        assert cli.main(["bench", *words]) != 0
        said = capsys.readouterr().err
        assert "in a clone" in said
        assert str(tmp_path / "benchmarks") in said.replace("\n", "")


def test_names_that_no_peer_or_model_has_are_refused() -> None:
    for flag in ("--only", "--models"):
        assert cli.main(["bench", "peers", flag, "tulip"]) != 0


@pytest.mark.parametrize("start", [["benchmarks/gpu.py"], ["-m", "benchmarks.gpu"]])
@pytest.mark.slow
def test_scripts_find_each_other(start: list[str]) -> None:
    """From the root of a clone, with fedrows not installed and nothing else on the path."""
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, *start, "--help"]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--blocks" in done.stdout
