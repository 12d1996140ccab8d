"""A device program and the light client: the same batches, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import device_programs
import numpy as np
import pytest
import torch
from device_rounds import CLOSE, by_device, by_torch, examples_of
from fedrows_device import Examples, ExamplesError, Program, ProgramError, counters
from fedrows_device.batches import batches as device_batches
from torch import Tensor, nn

from fedrows import catalogue, seeds
from fedrows.cli import main
from fedrows.data.batches import batches, local_data
from fedrows.data.federation import FederatedData
from fedrows.device.manifest import manifest_of
from fedrows.device.one_step import OneStep
from fedrows.device.program import DeviceProgram, build
from fedrows.lifting.lifted import Lifted
from fedrows.plan import Plan
from fedrows.runs.export import ExportError

CLIENTS = Path(__file__).parent.parent / "clients" / "python"


@cache
def factors() -> DeviceProgram:
    return device_programs.program(device_programs.factors())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    factors().save(tmp_path / "program")
    return tmp_path / "program"


def test_counters_are_those_of_the_server() -> None:
    for numbers in [(0,), (7, 1, 3), (2**63 - 1, 7, 2**31)]:
        assert counters.key(*numbers) == seeds.key(*numbers)
    clients = torch.tensor([0, 5, 2**40])
    keys = seeds.client_keys(11, seeds.BATCH, 9, clients).tolist()
    mine = [counters.client_key(11, counters.BATCH, 9, k) for k in clients.tolist()]
    assert [k % 2**64 for k in keys] == mine
    count = torch.arange(50) + (3 << 32)
    random = counters.bits(mine[1], count.numpy())
    np.testing.assert_array_equal(
        random.view(np.int64), seeds.bits(torch.tensor(keys[1]), count).numpy()
    )
    wanted = seeds.below(torch.from_numpy(random.view(np.int64)), 13)
    np.testing.assert_array_equal(counters.below(random, 13), wanted.numpy())


@pytest.mark.parametrize("how", [{}, {"batches": "epoch", "epochs": 3, "batch_size": 4}])
def test_batches_are_those_of_the_simulation(how: dict[str, object]) -> None:
    model, data = device_programs.factors()
    plan = Plan(device="cpu", seed=2**60, **how)  # type: ignore[arg-type]
    step = OneStep(model, data, plan, catalogue.algorithm("fedavg")())
    manifest = manifest_of(step, b"", {}, None)
    for client in (0, 4, 11):
        cohort = torch.tensor([client])
        index = {table: sets.select(cohort) for table, sets in data.index.items()}
        own = examples_of(data, Program(manifest, None), client)
        for table, sets in index.items():
            np.testing.assert_array_equal(own.index[table], sets.ids.numpy())
        theirs = list(batches(local_data(data, cohort), index, plan, 6))
        mine = list(device_batches(manifest, own, 6, client))
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            for name, ids in b.ids.items():
                np.testing.assert_array_equal(a[f"ids/{name}"], ids[0].numpy())
            np.testing.assert_array_equal(a["label"], b.label[0].numpy())
            weight = torch.ones(plan.batch_size) if b.weight is None else b.weight[0]
            np.testing.assert_array_equal(a["weight"], weight.numpy())


@pytest.mark.slow
def test_a_round_of_the_light_client_is_that_of_pytorch(folder: Path) -> None:
    model, data = device_programs.factors()
    program, algorithm = Program.load(folder), catalogue.algorithm("fedsubavg")()
    for client in (0, 7):
        given, wanted = by_torch(model, data, Plan(device="cpu"), algorithm, client)
        user = program.local_start("user", np.array([client]))
        np.testing.assert_array_equal(user, given.start.rows["user"].numpy())
        found = by_device(program, data, given, client)
        assert np.abs(found.rows["item"] - wanted.update.rows["item"].numpy()).max() < CLOSE
        moved = found.local_rows["user"] - user
        assert np.abs(moved - wanted.update.rows["user"].numpy()).max() < CLOSE
        assert found.last_loss < found.loss


@pytest.mark.slow
def test_what_is_wrong_with_a_program_is_said_in_a_sentence(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(ProgramError, match="has format 99, but this client reads format 1"):
        Program.load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(ProgramError, match="cannot be read"):
        Program.load(folder)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    content = bytearray((folder / "step.onnx").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "step.onnx").write_bytes(content)
    with pytest.raises(ProgramError, match=r"step\.onnx is damaged"):
        Program.load(folder)
    (folder / "step.onnx").unlink()
    with pytest.raises(ProgramError, match=r"step\.onnx cannot be read"):
        Program.load(folder)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ids": {"item": [4, 4.7], "seen": [[1], []]}}, "'item' must be whole numbers"),
        ({"ids": {"item": [4, True], "seen": [["1"], []]}}, "'seen' must be whole numbers"),
        ({"ids": {"item": [4, 2**70], "seen": [[1], []]}}, "'item' must be whole numbers"),
        ({"ids": {"item": [[4], [4, 5]], "seen": [[1], []]}}, "'item' must be whole numbers"),
        ({"ids": {"item": [4], "seen": [[1], []]}}, r"'item' has shape \(1,\)"),
        ({"label": [1, None]}, "The labels must be finite numbers"),
        ({"label": ["yes", "no"]}, "The labels must be finite numbers"),
        ({"label": 1}, r"The labels have shape \(\): give one for each example"),
        ({"label": [[1], [0]]}, r"The labels have shape \(2, 1\): give one for each example"),
        ({"weight": [1.0]}, r"The weights have shape \(1,\), not \(2,\)"),
        ({"numbers": {"age": [1.0, float("inf")]}}, "'age' must be finite numbers"),
    ],
)
def test_examples_that_are_no_numbers_are_refused(change: dict[str, Any], says: str) -> None:
    table = {"rows": 10, "width": 1, "local": False, "padded": True}
    fields = {"item": {"table": "item", "kind": "one"}}
    fields["seen"] = {"table": "item", "kind": "list", "length": 3}
    manifest = {"tables": {"item": table}, "fields": fields, "numbers": {"age": []}}
    manifest["labels"] = "binary"
    right = {"ids": {"item": [4, 5], "seen": [[1], []]}, "label": [1, 0]}
    right |= {"numbers": {"age": [1.0, 2]}, "weight": [1, 2]}
    assert len(Examples.build(manifest, **right)) == 2
    with pytest.raises(ExamplesError, match=says):
        Examples.build(manifest, **{**right, **change})


@pytest.mark.slow
def test_inputs_that_do_not_fit_are_refused(folder: Path) -> None:
    program = Program.load(folder)
    with pytest.raises(ExamplesError, match="The fields of the program are user, item"):
        Examples.build(program.manifest, {"item": [1]}, [1])
    with pytest.raises(ExamplesError, match="'item' has an id outside of 0 … 39"):
        Examples.build(program.manifest, {"item": [40], "user": [0]}, [1])
    own = Examples.build(program.manifest, {"item": [4], "user": [0]}, [1])
    rows, dense = {"item": np.zeros((2, 5))}, {"bias": np.zeros(())}
    with pytest.raises(ProgramError, match=r"rows/item has shape \(2, 5\), but \(1, 5\)"):
        program.train(own, rows, dense, {"user": np.zeros((1, 5))}, round=1, number=0, lr=0.1)
    with pytest.raises(ProgramError, match="needs rows/user"):
        program.train(own, {"item": rows["item"][:1]}, dense, round=1, number=0, lr=0.1)


class Peeking(nn.Module):
    """Looks at a number, which a graph cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.item = nn.Embedding(device_programs.ITEMS, 1)

    def forward(self, item: Tensor) -> Tensor:
        x = self.item(item)[:, 0]
        return x if float(x.detach().sum()) > 1e9 else -x


def _items() -> FederatedData:
    own = device_programs.examples()
    return FederatedData.build(
        client=own["user"],
        ids={"item": own["item"]},
        label=own["label"].astype(float),
        test=np.zeros(len(own["user"]), dtype=bool),
        tables={"item": device_programs.ITEMS},
    )


def test_what_cannot_be_exported_names_the_module_and_why() -> None:
    data, algorithm = _items(), catalogue.algorithm("fedavg")()
    model = Lifted(Peeking(), data, one_by_one=True)
    with pytest.raises(ExportError, match=r"Peeking cannot be a device program: .+"):
        build(model, data, Plan(), algorithm)
    with pytest.raises(ExportError, match="dtype is float64"):
        build(model, data, Plan(dtype="float64"), algorithm)
    with pytest.raises(ExportError, match="pooled data, which no device has"):
        build(model, data, Plan(), catalogue.algorithm("centralsgd")())


@pytest.mark.slow
def test_the_command_writes_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--clients=30", "--items=20", "--examples-per-client=8", "--clients-per-round=5"]
    run = ["run", "synthetic", *small, "--rounds=2"]
    assert main([*run, "--out", "a"]) == 0
    assert main(["export", "a", "--device", "--to", "program"]) == 0
    assert "Device program of Logistic" in capsys.readouterr().out
    program = Program.load(Path("program"))
    assert set(program.manifest["step"]["inputs"]) >= {"label", "weight", "lr", "dense/bias"}
    assert main(["export", "a", "--device", "--to", "program"]) == 2
    assert "program is not empty" in capsys.readouterr().err
    assert main(["export", "a", "--device", "--to", "a"]) == 2
    assert "a is a run folder" in capsys.readouterr().err
    config = json.loads(Path("a/config.json").read_text())
    Path("a/config.json").write_text(json.dumps({**config, "privacy": {"privacy": "index"}}))
    assert main(["export", "a", "--device", "--to", "other"]) == 2
    assert "is a run with privacy index" in capsys.readouterr().err
    assert not Path("other").exists()


def test_the_light_client_imports_neither_torch_nor_fedrows() -> None:
    """Beside the standard library it imports numpy and onnxruntime, and what these bring."""
    code = (
        "import sys, fedrows_device; print([m for m in ('torch', 'fedrows') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(CLIENTS), "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"
