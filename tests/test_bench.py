"""The benchmarks' own machinery: turns, bars, results, peers, the page. No time is asserted."""

import json
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from fedrows import cli
from fedrows.algorithms.fedavg import FedAvg
from fedrows.bench import all as all_of_them
from fedrows.bench import baselines, blocks, cohort, environments, memory, models, peers, shapes
from fedrows.bench.bars import Faster, at_least, at_most, contest
from fedrows.bench.environments import PeerError
from fedrows.bench.processes import InProcesses
from fedrows.bench.worker import Worker
from fedrows.cli.flags import Parser
from fedrows.data.federation import FederatedData
from fedrows.errors import RunFolderError
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.server import begin, rounds
from fedrows.simulator.simulated import SimulatedFleet

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
    fleet = SimulatedFleet(model, algorithm, shape.data, shape.plan)
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


def test_without_the_repository_there_are_no_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "HOME", tmp_path)
    assert cli.main(["bench", "peers"]) != 0
    assert "run it from a clone" in capsys.readouterr().err
    assert cli.main(["bench", "peers", "--only", "tulip"]) != 0


# The page

MACHINE = {
    "command": "fedrows bench x", "cpu": "Abacus", "cores": 2, "threads": 2,
    "memory_gib": 8.0, "torch": "2.13.0+cpu", "fedrows": "0.1", "date": "2026-11-05T10:00:00+00:00",
}  # fmt: skip


def results() -> dict[str, Any]:
    """Of every benchmark, numbers that are easy to find again."""
    two = contest({"fedrows": [0.5], "centralised": [0.25], "Flower": [8.0]}, models.BARS["lr"])
    return {
        "peers": {
            **MACHINE,
            "lr": two,
            "peers": {
                "flower": {"versions": {"f": "1"}, "how": "So.", "loss": {"lr": [0.7, 0.6]}},
                "pfl": {"missing": "It rained."},
            },
        },
        "din": {**MACHINE, **contest({"fedrows": [0.001], "centralised": [1.0]}, [])},
        "gpu": {"gpu": "G", "torch": "2", "lr, TF32 off": {"fedrows": 4321.0, "centralised": 1.5}},
        "cohort": {
            **MACHINE,
            "rows": [{"clients": 10, "microseconds_per_client": 1.25, "peak_bytes": 2**20,
                      "bytes_down": 11, "bytes_up": 22}],
            "bars": [at_most("K", 1.2, 1.1)],
        },
        "scale": {
            **MACHINE, "small": 10, "width": 16, "mebibytes_beyond_the_table": {"1000": 3.0},
            "growth": {"1000": {"same": 1.01, "spread": 1.4, "bare": 2.8}},
        },
        "billion": {
            **MACHINE, "rows": 10**9, "width": 16, "rounds": 100,
            "fedadam": {
                "touched": 1234, "milliseconds": 5.5, "resident": 2**30, "disk_per_row": 99,
                "saving_milliseconds": 0.75, "disk_per_row_with_log": 123,
            },
        },
        "ranks": {**MACHINE, "lr": contest({"fedrows": [0.5], "fedrows, 2 processes": [0.25]}, [])},
        "memory": {**MACHINE, "every": 100, "resident_bytes": {"lr": [2**20, 2**21]}, "bars": []},
    }  # fmt: skip


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, found in results().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return runpy.run_path(str(ROOT / "docs" / "make_speed.py"))


def test_the_page_shows_what_was_measured(tmp_path: Path, made: dict[str, Any]) -> None:
    page, picture = tmp_path / "speed.md", tmp_path / "speed.svg"
    page.write_text(f"# Speed\n{made['BEGIN']}\nold\n{made['END']}\nthe end\n")
    made["main"](tmp_path, page, picture)
    text = page.read_text("utf-8")
    assert text.startswith("# Speed\n")
    assert text.endswith("\nthe end\n")
    assert "old" not in text
    for words in ("Abacus, 2 cores", "5 November 2026", "| Flower | 0.125 (16.0 ×) |",
                  "pfl-research was not there: It rained.", "LR from 0.700 to 0.600",
                  "| **fedrows**, FedSubAvg | 4,321 |", "| 10 | 1.25 | 1 | 11 | 22 |",
                  "| LR | 1.0 | 2.0 |", "| 1,000 | 1.01 × | 1.40 × | 2.80 × | 3 |",
                  "| fedadam | 1,234 | 5.50 | 0.750 | 1,024 | 99 | 123 |",
                  "| fedrows, 2 processes | 4.00 |", "| `cohort` | K | 1.2 | ≤ 1.1 | **no** |",
                  "| `peers` | lr, times centralised | 0.5 | ≥ 1.5 | **no** |"):  # fmt: skip
        assert words in text, words
    made["main"](tmp_path, page, picture)
    assert page.read_text("utf-8") == text  # made again, it is the same
    svg = ElementTree.parse(picture).getroot()
    shown = "".join(svg.itertext())
    assert "4,321" in shown
    assert "prefers-color-scheme: dark" in shown


def test_a_page_without_its_markers_is_left_alone(tmp_path: Path, made: dict[str, Any]) -> None:
    page = tmp_path / "speed.md"
    page.write_text("# Speed\n")
    with pytest.raises(SystemExit, match="put both lines back"):
        made["main"](tmp_path, page, tmp_path / "speed.svg")
    assert page.read_text() == "# Speed\n"


def test_the_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies in benchmarks/results is what docs/speed.md and its picture show."""
    page, picture = tmp_path / "speed.md", tmp_path / "speed.svg"
    shutil.copy(ROOT / "docs" / "speed.md", page)
    command = [sys.executable, str(ROOT / "docs" / "make_speed.py")]
    folder = ROOT / "benchmarks" / "results"
    subprocess.run([*command, str(folder), str(page), str(picture)], check=True)
    assert page.read_text("utf-8") == (ROOT / "docs" / "speed.md").read_text("utf-8")
    assert picture.read_text("utf-8") == (ROOT / "docs" / "speed.svg").read_text("utf-8")
    sweeps = "speed-sweeps.svg"
    assert (tmp_path / sweeps).read_text("utf-8") == (ROOT / "docs" / sweeps).read_text("utf-8")
