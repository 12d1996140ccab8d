"""Several processes as torchrun starts them: the run of one, and no silent end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedrows import cli
from fedrows.runs.checkpoint import standing
from fedrows.runs.folder import read_lines

ROOT = Path(__file__).parent.parent
SIZES = [
    "--clients=60", "--items=80", "--clients-per-round=8", "--chunk=2", "--algorithm=scaffold",
    "--evaluate-every=2", "--checkpoint-seconds=0",
]  # fmt: skip


class Ranks:
    """Processes as torchrun starts them, but without it."""

    def __init__(self, size: int, words: Sequence[str], **environment: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        usual = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        usual |= {"LOCAL_WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1", **environment}
        self.all = [
            subprocess.Popen(
                [sys.executable, *words],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    **usual,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def end(self, but: Sequence[int] = ()) -> list[tuple[int, str, str]]:
        """Exit code, stdout and stderr of every rank but some."""
        found = []
        for rank, process in enumerate(self.all):
            if rank not in but:
                out, err = process.communicate(timeout=300)
                found.append((process.returncode, out, err))
        return found

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.all:
            process.kill()
            process.communicate()


def fedrows(size: int, *words: str, **environment: str) -> Ranks:
    return Ranks(size, ["-m", "fedrows", "run", *words], **environment)


def once_at(folder: Path, round_: int) -> None:
    """Waits until a run has been saved after some round."""
    for _ in range(1_200):
        lines = read_lines(folder / "metrics.jsonl")
        if lines and lines[-1]["round"] > round_:
            return
        time.sleep(0.05)
    pytest.fail("nothing was measured")


def same_run(one: Path, other: Path) -> bool:
    """Whether two runs have come to the same checkpoint and the same metrics."""
    a, b = (load_file(folder / "checkpoint.safetensors") for folder in (one, other))
    first, second = (
        [{**line, "seconds": 0} for line in read_lines(folder / "metrics.jsonl")]
        for folder in (one, other)
    )
    return a.keys() == b.keys() and all(torch.equal(a[x], b[x]) for x in a) and first == second


def torchrun(size: int, *words: str) -> list[str]:
    return ["-m", "torch.distributed.run", f"--nproc-per-node={size}", "--standalone", *words]


@pytest.mark.slow
def test_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, then a second half in one process; and all of it in one process."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "synthetic", *SIZES]
    done = subprocess.run(
        [sys.executable, *torchrun(2, "-m", "fedrows", *words, "--rounds=4", "--out=two")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("scaffold on synthetic, seed 0, on cpu in 2 processes: 4 rounds") == 1
    assert done.stdout.count("round 4/4") == done.stdout.count("Report:") == 1
    assert json.loads(Path("two/config.json").read_text())["processes"] == 2
    assert cli.main(["run", "--resume", "two", "--rounds=6"]) == 0
    assert cli.main([*words, "--rounds=6", "--out=one"]) == 0
    assert same_run(Path("one"), Path("two"))


@pytest.mark.slow
@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_rank_is_named_and_the_run_goes_on(
    killed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three are left; one of them speaks. Then it goes on in two processes, to the end."""
    monkeypatch.chdir(tmp_path)
    with fedrows(3, "synthetic", *SIZES, "--rounds=100000", "--out=runs") as ranks:
        once_at(Path("runs"), 6)
        ranks.all[killed].kill()
        ended = ranks.end(but=[killed])
    assert [code for code, _, _ in ended] == [2, 2]
    [said] = [
        line for _, _, err in ended for line in err.splitlines() if line.startswith("fedrows")
    ]
    assert f"fedrows: Rank {killed} of 3 is gone: go on " in said
    assert "fedrows run --resume runs" in said
    at = standing(Path("runs/checkpoint.safetensors")).round
    if killed:
        assert f"from round {at} with" in said
    with fedrows(2, "--resume=runs", f"--rounds={at + 4}") as ranks:
        [(code, out, err), (other, nothing, _)] = ranks.end()
    assert (code, other, nothing) == (0, 0, ""), err
    assert f"going on after round {at} of {at + 4}" in out
    assert cli.main(["run", "synthetic", *SIZES, f"--rounds={at + 4}", "--out=one"]) == 0
    assert same_run(Path("one"), Path("runs"))


@pytest.mark.slow
def test_a_rank_that_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["synthetic", *SIZES, "--rounds=100000", "--out=runs"]
    with fedrows(2, *words, FEDROWS_RANK_TIMEOUT="4") as ranks:
        once_at(Path("runs"), 2)
        ranks.all[1].send_signal(signal.SIGSTOP)
        [(code, _, err)] = ranks.end(but=[1])
    assert code == 2
    assert "Rank 1 of 2 is gone: go on from round" in err


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_is_saved_once(
    how: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun hands the signal on to every rank, each at a moment of its own."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "synthetic", *SIZES[:-1], "--rounds=100000", "--out=runs"]
    with subprocess.Popen(
        [sys.executable, *torchrun(2, "-m", "fedrows", *words)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        once_at(Path("runs"), 4)
        process.send_signal(how)
        out, _ = process.communicate(timeout=300)
    assert out.count("and saved. Go on with: fedrows run --resume runs") == 1
    at = standing(Path("runs/checkpoint.safetensors")).round
    assert f"Stopped after round {at}, and saved." in out
    assert cli.main(["run", "--resume", "runs", f"--rounds={at + 2}"]) == 0
    assert cli.main(["run", "synthetic", *SIZES, f"--rounds={at + 2}", "--out=one"]) == 0
    assert same_run(Path("one"), Path("runs"))


@pytest.mark.slow
def test_one_sentence_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What every rank finds wrong, what only rank 0 does, and what only all together can know."""
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/something").touch()
    for words, wanted in {
        ("synthetic", "--lr=x"): "lr is 'x'",
        ("synthetic", "--out=full"): "full exists already",
        ("synthetic", "--clients-per-round=1"): "cannot be split over 2 processes",
    }.items():
        with fedrows(2, *words) as ranks:
            ended = ranks.end()
        said = [line for _, _, err in ended for line in err.splitlines()]
        assert len(said) == 1, said
        assert wanted in said[0]
        assert [code for code, _, _ in ended] == [2, 2]
        assert not Path("runs").exists()


@pytest.mark.slow
def test_the_library_in_several_processes(tmp_path: Path) -> None:
    """Rank 0 takes its time over a report: its heart beats, so nobody takes it for gone."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with Ranks(2, [str(script), str(tmp_path)], FEDROWS_RANK_TIMEOUT="1") as ranks:
        ended = ranks.end()
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert [out for _, out, _ in ended] == ["[2, 4]\n2\n4\n", "[2, 4]\n"]
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)


SCRIPT = """
import sys, time
import numpy as np
import torch
import fedrows

owner = np.repeat(np.arange(12), 4)
data = fedrows.FederatedData.build(
    client=owner,
    ids={"item": np.arange(48) % 7},
    label=owner % 2,
    test=owner < 0,
    tables={"item": 7},
)

class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.item = torch.nn.Embedding(7, 3)
        self.last = torch.nn.Linear(3, 1)

    def forward(self, item):
        return self.last(self.item(item))[:, 0]

said = []

def report(line):
    said.append(line["round"])
    time.sleep(2)

result = fedrows.simulate(
    data, Module(), rounds=4, clients_per_round=5, evaluate_every=2, report=report, one_by_one=True
)
print([line["round"] for line in result.history], *said, sep="\\n")
rank = torch.distributed.get_rank()
torch.save(result.state_dict(), f"{sys.argv[1]}/{rank}.pt")
"""
