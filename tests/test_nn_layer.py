"""An LSTM layer is the same in every way there is to run it; and what is said if one is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layers import FORMS, made
from torch import nn
from torch.func import functional_call, vmap

from fedrows import simulate
from fedrows.data.federation import FederatedData
from fedrows.models import lstm
from fedrows.nn import LSTM, lstm_compiled, lstm_layer, lstm_onednn
from fedrows.nn.kernels import cpp_library

KINDS = {"compiled": (torch.float32, torch.float64), "onednn": (torch.float32,)}
CASES = [(way, kind) for way, kinds in KINDS.items() for kind in kinds]
NEAR = {torch.float32: 1e-5, torch.float64: 1e-13}


@pytest.fixture
def only(monkeypatch):
    """Switches all ways but one off, or all of them."""

    def switch(name: str | None) -> None:
        for each, way in lstm_layer.IMPLEMENTATIONS.items():
            monkeypatch.setattr(way, "enabled", each == name)

    return switch


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache of libraries that is empty, and nothing known about them."""

    def forget() -> None:
        cpp_library.library.cache_clear()
        lstm_compiled.missing.cache_clear()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield tmp_path / "fedrows" / "kernels"
    monkeypatch.undo()
    forget()


def needs(name: str, kind: torch.dtype) -> None:
    if name == "compiled" and lstm_compiled.missing():
        pytest.skip(f"needs a C++ compiler: {lstm_compiled.missing()}")
    if not lstm_layer.IMPLEMENTATIONS[name].usable(torch.ones(1, 1, dtype=kind)):
        pytest.skip("needs a PyTorch with oneDNN")


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_way_gives_what_the_stacked_layer_gives(name, kind, form, clients, only, monkeypatch):
    needs(name, kind)
    module = LSTM(3, 4, **form)
    ways = (1 + ("bidirectional" in form)) * form.get("num_layers", 1)
    numbers = {n: made(clients, *x.shape, seed=3).to(kind) for n, x in module.named_parameters()}
    shapes = ((5, 6, 3), (ways, 6, 4), (ways, 6, 4))
    x, h, c = (made(clients, *shape).to(kind) for shape in shapes)
    x = x.transpose(1, 2) if module.batch_first else x
    calls = []
    for direction in ("forward", "backward"):
        real = getattr(lstm_layer.IMPLEMENTATIONS[name], direction)
        counted = lambda *own, real=real: (calls.append(real), real(*own))[1]  # noqa: E731
        monkeypatch.setattr(lstm_layer.IMPLEMENTATIONS[name], direction, counted)
    found = []
    for chosen in (name, None):
        only(chosen)
        leaves = [y.clone().requires_grad_() for y in (x, h, c, *numbers.values())]

        def run(x, h, c, *own):
            return functional_call(module, dict(zip(numbers, own, strict=True)), (x, (h, c)))

        output, states = vmap(run)(*leaves)
        results = [output, *states]
        total = sum((made(*y.shape, seed=7 + n) * y).sum() for n, y in enumerate(results))
        found.append([*results, *torch.autograd.grad(total, leaves)])
        assert len(calls) == 2 * ways  # there and back once for all clients, none the second time
    for mine, its in zip(*found, strict=True):
        near = NEAR[kind] * float(its.detach().abs().max())
        torch.testing.assert_close(mine, its, rtol=0, atol=near)


@given(
    steps=st.integers(1, 4),
    batch=st.integers(1, lstm_compiled.MOST),
    inputs=st.integers(1, 40),
    units=st.integers(1, 40),
    size=st.sampled_from([1e-3, 1.0, 30.0, 1e4]),
    seed=st.integers(0, 9),
)
def test_the_compiled_layer_equals_torchs_in_any_shape(steps, batch, inputs, units, size, seed):
    needs("compiled", torch.float64)
    mine = LSTM(inputs, units, dtype=torch.float64)
    its = nn.LSTM(inputs, units, dtype=torch.float64)
    its.load_state_dict(mine.state_dict())
    found = []
    for module in (mine, its):
        x = (size * made(steps, batch, inputs, seed=seed)).requires_grad_()
        output, _ = module(x)
        weights = made(*output.shape, seed=seed + 1)
        found.append(
            [output, *torch.autograd.grad((output * weights).sum(), [x, *module.parameters()])]
        )
    assert lstm_layer.implementation(x) == "compiled"
    for a, b in zip(*found, strict=True):
        near = max(1, size) * (1e-12 * float(b.detach().abs().max()) + 1e-14)  # 1 − σ near 0
        torch.testing.assert_close(a, b, rtol=0, atol=near)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_gates_are_right_far_out_and_near_nothing(kind):
    needs("compiled", kind)
    values = torch.tensor([0, 1e-30, 1e-8, -1e-8, 1e-4, -0.3, 0.7, 9, -9, 50, -90, 800, -1e30])
    x = values.to(kind).view(1, -1, 1, 1)  # one group, as many steps
    gate = torch.zeros(1, 4, 1, dtype=kind)
    gate[0, 2] = 1  # c grows by tanh(x) / 2 from step to step, and h is tanh(c) / 2
    nothing = [torch.zeros(shape, dtype=kind) for shape in ((1, 4, 1), (1, 4), (1, 4))]
    state = [torch.zeros(1, 1, 1, dtype=kind)] * 2
    hidden, _, (cells, gates) = lstm_compiled.forward(x, gate, *nothing, *state)
    torch.testing.assert_close(gates[0, :, 0, 2], x.flatten().tanh(), rtol=4e-7, atol=0)
    torch.testing.assert_close(hidden, cells.tanh() / 2, rtol=4e-7, atol=0)
    wide = x.expand(-1, -1, -1, 1)
    one = torch.tensor([[[1.0], [0], [0], [0]]], dtype=kind)  # i = σ(x)
    _, _, (_, gates) = lstm_compiled.forward(wide, one, *nothing, *state)
    near = 1e-37 if kind == torch.float32 else 1e-300  # of σ(-90) and below
    torch.testing.assert_close(gates[0, :, 0, 0], x.flatten().sigmoid(), rtol=4e-7, atol=near)
    nan = torch.full_like(x, torch.nan)
    assert lstm_compiled.forward(nan, gate, *nothing, *state)[0].isnan().all()
    bias = torch.tensor([[-torch.inf, torch.inf, -torch.inf, torch.inf]], dtype=kind)
    _, _, (_, gates) = lstm_compiled.forward(x, gate * 0, nothing[0], bias, nothing[2], *state)
    torch.testing.assert_close(
        gates[0, -1, 0], torch.tensor([0, 1, -1, 1], dtype=kind), rtol=4e-7, atol=near
    )


def test_which_way_is_for_what(only, monkeypatch):
    few, many = torch.ones(2, lstm_compiled.MOST, 3), torch.ones(2, lstm_compiled.MOST + 1, 3)
    monkeypatch.setattr(lstm_compiled, "missing", lambda: None)
    assert lstm_layer.implementation(few) == lstm_layer.implementation(few.double()) == "compiled"
    assert lstm_layer.implementation(few.half()) is None
    assert lstm_layer.implementation(few[:0]) is None
    assert lstm_layer.implementation(many.double()) is None
    monkeypatch.setattr(lstm_onednn, "_works", lambda: True)
    assert lstm_layer.implementation(many) == "onednn"
    only("onednn")
    assert lstm_layer.implementation(few) == "onednn"
    assert lstm_layer.implementation(few.double()) is None
    only(None)
    assert lstm_layer.implementation(few) is None


def test_a_pytorch_without_onednn_is_noticed(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    lstm_onednn._works.cache_clear()
    assert not lstm_onednn.usable(torch.ones(2, 2))
    lstm_onednn._works.cache_clear()


@pytest.mark.slow
def test_a_library_is_compiled_once_and_kept_for_its_user_alone(fresh, monkeypatch):
    needs("compiled", torch.float32)
    (kept,) = fresh.iterdir()
    assert kept.suffix == ".so"
    assert fresh.stat().st_mode & 0o77 == 0
    cpp_library.library.cache_clear()
    monkeypatch.setattr(cpp_library, "_compile", lambda *_: pytest.fail("compiled again"))
    cpp_library.library("lstm")


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time_leave_one_library_and_mend_a_broken_one(fresh):
    needs("compiled", torch.float32)
    (kept,) = fresh.iterdir()
    kept.unlink()
    code = "from fedrows.nn import lstm_compiled; assert lstm_compiled.missing() is None"
    both = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    assert list(fresh.iterdir()) == [kept]
    whole = kept.read_bytes()
    kept.write_bytes(whole[:100])
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
    assert len(kept.read_bytes()) == len(whole)


class NotPosix:
    name = "nt"


def homeless() -> None:
    raise RuntimeError("Could not determine home directory.")


BROKEN = {
    "none": (
        lambda folder, m: m.setenv("PATH", str(folder)),
        r"no C\+\+ compiler \(g\+\+ or clang",
    ),
    "named": (
        lambda folder, m: m.setenv("CXX", "no-such"),
        "there is no no-such, which .CXX names",
    ),
    "failing": (lambda folder, m: m.setenv("CXX", "false"), "/false failed"),
    "open": (
        lambda folder, m: (m.setenv("CXX", "true"), folder.chmod(0o777)),
        "others can write into .*chmod 700",
    ),
    "a file": (
        lambda folder, m: (m.setenv("CXX", "true"), folder.rmdir(), folder.touch()),
        "there is no folder for kernels, name one by XDG_CACHE_HOME: .*File exists",
    ),
    "no home": (
        lambda folder, m: (
            m.setenv("CXX", "true"),
            m.delenv("XDG_CACHE_HOME"),
            m.setattr(Path, "home", homeless),
        ),
        "name one by XDG_CACHE_HOME: Could not determine home",
    ),
    "empty": (lambda folder, m: m.setenv("CXX", "true"), "cannot be loaded: .*file too short"),
    "another system": (lambda folder, m: m.setattr(cpp_library, "os", NotPosix), "is known here"),
    "wrong": (lambda folder, m: m.setattr(cpp_library, "library", print), "results are wrong"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_without_the_kernel_layers_run_the_other_way_and_it_is_said_once(kind, fresh, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(lstm_compiled, "_right", lambda: False)
    fresh.mkdir(mode=0o700, parents=True)
    break_, said = BROKEN[kind]
    break_(fresh, monkeypatch)
    monkeypatch.setattr(lstm_layer, "_asked", False)
    assert lstm_layer.notes() == []
    texts = FederatedData.build(
        client=[0, 0, 1, 1],
        ids={"text": [[1, 2], [2, 3], [3, 1], [1, 1]]},
        tables={"text": 5},
        label=[0, 1, 0, 1],
        test=[False] * 4,
    )
    notes = simulate(texts, lstm.build(texts), rounds=3, clients_per_round=2).notes
    assert len([note for note in notes if note.startswith("LSTM layers run slower")]) == 1
    (note,) = lstm_layer.notes()
    assert re.search(said, note)
    assert lstm_layer.implementation(torch.ones(2, 2)) != "compiled"


def test_a_broken_compiler_leaves_no_half_written_library(fresh, monkeypatch, tmp_path):
    fake = tmp_path / "c++"
    fake.write_text("#!/bin/sh\ncase \"$*\" in *-shared*) echo 'disk full' >&2; exit 1;; esac\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    assert lstm_compiled.missing() == f"{fake} failed: disk full"
    assert list(fresh.iterdir()) == []
