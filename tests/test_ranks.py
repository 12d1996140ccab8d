"""Several processes make the run of one: the same numbers, touched rows only, and no silent end.

Ranks are threads where the numbers are looked at, and processes where processes are.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from fedrows import catalogue, cli, group
from fedrows.algorithm import Algorithm
from fedrows.algorithms.centralsgd import CentralSGD
from fedrows.algorithms.fedadam import FedAdam
from fedrows.algorithms.fedavg import FedAvg
from fedrows.algorithms.scaffold import Scaffold
from fedrows.checkpoint import standing
from fedrows.data import FederatedData
from fedrows.errors import PlanError
from fedrows.fleet import SimulatedFleet
from fedrows.folder import read_lines
from fedrows.group import Group, RankError
from fedrows.lifted import Lifted
from fedrows.models.logistic import Logistic
from fedrows.plan import Plan
from fedrows.private.options import Privacy
from fedrows.ranks import RankedFleet, cuts
from fedrows.server import begin, rounds
from fedrows.simulation import Simulation

ALGORITHMS = {
    name: catalogue.algorithm(name)()
    for name in catalogue.names("algorithm")
    if name != "centralsgd"  # which has no cohort to split
}
ALGORITHMS["fedadam"] = FedAdam(server_lr=0.03)  # a larger one makes much of a last bit
ROOT = Path(__file__).parent.parent
LAZY = Scaffold(lazy=True)
SIZES = [
    "--clients=60", "--items=80", "--clients-per-round=8", "--chunk=2", "--algorithm=scaffold",
    "--evaluate-every=2", "--checkpoint-seconds=0",
]  # fmt: skip


class Module(nn.Module):
    def __init__(self, items: int, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.item = nn.Embedding(items, 4)
        self.user = nn.Embedding(30, 4)
        self.mlp = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))

    def forward(self, item: Tensor, user: Tensor) -> Tensor:
        return self.mlp(torch.cat([self.item(item), self.user(user)], -1))[:, 0]


def federation(items: int = 40, seed: int = 0, local: Sequence[str] = ()) -> FederatedData:
    """30 clients with 2 to 12 examples each, of whom nobody has items past the 40th."""
    rng = np.random.default_rng(seed)
    owner = np.repeat(np.arange(30), rng.integers(2, 13, 30))
    return FederatedData.build(
        client=owner,
        ids={"item": rng.zipf(1.3, len(owner)).clip(max=39), "user": owner},
        label=rng.random(len(owner)) < 0.5,
        test=np.zeros(len(owner), dtype=bool),
        tables={"item": items, "user": 30},
        local=local,
    )


def plan_of(**options: Any) -> Plan:
    usual = {"rounds": 20, "clients_per_round": 7, "lr": 0.3, "local_steps": 3, "dtype": "float64"}
    return Plan(**{**usual, "device": "cpu", **options})


class Threads(Group):
    """A rank that is a thread; all share a table and meet at a barrier."""

    def __init__(self, rank: int, size: int, table: list[Any], meet: threading.Barrier) -> None:
        self.rank, self.size, self._table, self._meet = rank, size, table, meet

    def gather(self, mine: Tensor) -> Tensor:
        self._table[self.rank] = mine
        self._meet.wait(60)
        found = torch.stack(list(self._table))
        self._meet.wait(60)
        return found


def as_ranks(size: int, prepare: Callable[[Group], Callable[[], Any]]) -> list[Any]:
    """What every one of some ranks makes of its work, which is prepared one after another."""
    table, meet = [None] * size, threading.Barrier(size)
    work = [prepare(Threads(rank, size, table, meet)) for rank in range(size)]

    def run(rank: int) -> Any:
        try:
            return work[rank]()
        except Exception:
            meet.abort()  # nobody waits for this rank
            raise

    with ThreadPoolExecutor(size, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return list(pool.map(run, range(size)))


Found = tuple[dict[str, Tensor], int]


def training(
    algorithm: Algorithm,
    plan: Plan,
    data: FederatedData | None = None,
    module: nn.Module | None = None,
) -> Callable[[Group | None], Callable[[], Found]]:
    """A run that gives all that its next round would depend on, and the bytes a rank has sent."""

    def prepare(everyone: Group | None) -> Callable[[], Found]:
        its = data or federation()
        model = Logistic(its) if module is None else Lifted(module, its, one_by_one=True)
        inner = SimulatedFleet(model, algorithm, its, plan)
        fleet = inner if everyone is None else RankedFleet(inner, everyone)
        progress = begin(model, algorithm, plan, its.local)

        def run() -> Found:
            for _ in rounds(fleet, plan, progress):
                pass
            found = progress.tensors()
            if fleet.kept is not None:
                found |= fleet.kept.rows | fleet.kept.dense
            return found, getattr(fleet, "exchanged", 0)

        return run

    return prepare


def worst(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference, relative to the largest number of each tensor."""
    assert a.keys() == b.keys()
    return max(float((a[x] - b[x]).abs().max() / a[x].abs().max().clamp(min=1e-9)) for x in a)


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("batches", ["draw", "epoch"])
def test_three_ranks_are_one_process(name: str, batches: str) -> None:
    run = training(ALGORITHMS[name], plan_of(batches=batches))
    alone, _ = run(None)()
    for there, _ in as_ranks(3, run):
        assert worst(alone, there) < 1e-11


@pytest.mark.parametrize("algorithm", [*ALGORITHMS.values(), LAZY], ids=repr)
def test_to_the_last_bit_if_chunks_are_the_same(algorithm: Algorithm) -> None:
    run = training(algorithm, plan_of(chunk=2, dtype="float32"))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) == 0


def test_a_module_with_wide_rows_and_dense_layers() -> None:
    run = training(Scaffold(), plan_of(rounds=3), None, Module(40))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) < 1e-11


def test_rows_that_stay_with_their_client() -> None:
    run = training(Scaffold(), plan_of(), federation(local=["user"]))
    alone, _ = run(None)()
    for there, _ in as_ranks(2, run):
        assert worst(alone, there) < 1e-11


@pytest.mark.parametrize(("name", "times"), [("fedsubavg", 1), ("scaffold", 3)])
@pytest.mark.parametrize("items", [40, 50_000])
def test_what_is_exchanged_is_what_is_touched(name: str, times: int, items: int) -> None:
    """4 of 8 clients a rank; each has 3 rows of 1 and a dense number; 3 numbers are agreed on."""
    rng = np.random.default_rng(0)
    data = FederatedData.build(
        client=np.repeat(np.arange(30), 2),
        ids={
            "item": np.tile([3, 7], 30) + np.repeat(np.arange(30), 2) % 3,
            "user": np.repeat(np.arange(30), 2),
        },
        label=rng.random(60) < 0.5,
        test=np.zeros(60, dtype=bool),
        tables={"item": items, "user": 30},
    )
    plan = plan_of(rounds=2, clients_per_round=8)
    found = as_ranks(2, training(ALGORITHMS[name], plan, data))
    a_round = 8 * (4 * times * (3 + 1) + 3)
    assert [sent for _, sent in found] == [2 * a_round] * 2


@given(st.lists(st.integers(1, 50), min_size=4, max_size=40), st.integers(1, 4), st.integers(1, 9))
def test_cuts(work: list[int], ranks: int, chunk: int) -> None:
    places = cuts(np.array(work), ranks, chunk)
    assert (places[0], places[-1], len(places)) == (0, len(work), ranks + 1)
    assert all(low < high for low, high in itertools.pairwise(places))
    if -(-len(work) // chunk) >= ranks:
        assert all(place % chunk == 0 for place in places[:-1])
    parts = [sum(work[low:high]) for low, high in itertools.pairwise(cuts(np.array(work), ranks))]
    assert max(parts) <= sum(work) / ranks + max(work) or len(work) < 2 * ranks


def test_clients_that_do_the_same_are_dealt_out_evenly() -> None:
    assert cuts(np.full(10, 7), 3) == [0, 3, 7, 10]
    assert cuts(np.full(50, 10), 2) == [0, 25, 50]
    assert cuts(np.array([90, 10, 10, 10, 10, 10]), 2) == [0, 1, 6]


def test_ranks_that_disagree() -> None:
    def prepare(everyone: Group) -> Callable[[], str]:
        odd = int(everyone.rank == 2)
        choices = {"seed": (odd, 0, 0), "federation": (0, odd, 0), "starting model": (0, 0, odd)}
        fleets = {}
        for what, (seed, data, module) in choices.items():
            its, plan = federation(seed=data), plan_of(seed=seed)
            model = Lifted(Module(40, seed=module), its)
            fleet = RankedFleet(SimulatedFleet(model, FedAvg(), its, plan), everyone)
            fleets[what] = fleet, begin(model, FedAvg(), plan).params

        def run() -> str:
            said = []
            for fleet, params in fleets.values():
                with pytest.raises(RankError) as caught:
                    fleet.check(params, 0)
                said.append(caught.value.what)
            return said

        return run

    expected = [
        f"Rank 2 has another {x} than rank 0" for x in ("seed", "federation", "starting model")
    ]
    assert as_ranks(3, prepare) == [expected] * 3


def test_more_ranks_than_clients() -> None:
    fleet = SimulatedFleet(
        Lifted(Module(40), federation()), FedAvg(), federation(), plan_of(clients_per_round=2)
    )
    with pytest.raises(PlanError, match="clients-per-round is 2, which cannot be split over 3"):
        RankedFleet(fleet, Threads(0, 3, [], threading.Barrier(3)))


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes to be the first of two."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "x",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    everyone = Threads(0, 2, [], threading.Barrier(2))
    monkeypatch.setattr(everyone, "speaks", lambda: True)
    monkeypatch.setattr(group, "join", lambda: everyone)


@pytest.mark.usefixtures("two")
def test_what_has_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    data = federation()
    with pytest.raises(PlanError, match="centralsgd trains in one place, but 2 processes"):
        Simulation(data, Logistic(data), CentralSGD(), plan_of())
    with pytest.raises(PlanError, match="A private run has one process"):
        Simulation(data, Logistic(data), FedAvg(), plan_of(), Privacy.of("index"))
    with pytest.raises(PlanError, match="Mapped tables have one process"):
        Simulation(data, Logistic(data), FedAvg(), plan_of(tables="mapped"))
    assert cli.main(["compare", "synthetic"]) == 2
    assert "fedrows: compare has one process" in capsys.readouterr().err


def test_a_number_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "two")
    with pytest.raises(PlanError, match="WORLD_SIZE is 'two', but must be a whole number"):
        group.several()


@pytest.mark.usefixtures("two")
def test_more_processes_than_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(PlanError, match="2 processes were started on a machine with 1 GPU"):
        group.device_of(torch.device("cuda"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_by_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as one GPU allows: a rank that gathers what it has sent."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", port)
    run = training(Scaffold(), plan_of(device="cuda", rounds=5))
    alone, _ = run(None)()
    there, sent = run(Group())()
    assert sent > 0
    assert worst(alone, there) < 1e-11


def test_one_process_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not group.several()
    assert group.rank() == 0
    monkeypatch.setattr(group, "join", lambda: pytest.fail("nobody to join"))
    simulation = Simulation(federation(), Lifted(Module(40), federation()), FedAvg(), plan_of())
    assert simulation.leads
    assert type(simulation.fleet) is SimulatedFleet
    assert not torch.distributed.is_initialized()


def test_a_part_of_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    assert group.cores() == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    assert group.cores() == 2
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")
    assert group.cores() == 1


# Processes


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
                out, err = process.communicate(timeout=120)
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


def test_torchrun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real thing, then a second half in one process; and all of it in one process."""
    monkeypatch.chdir(tmp_path)
    words = ["run", "synthetic", *SIZES]
    done = subprocess.run(
        [sys.executable, *torchrun(2, "-m", "fedrows", *words, "--rounds=4", "--out=two")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
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
        out, _ = process.communicate(timeout=60)
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
