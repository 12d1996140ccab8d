"""The contract of an algorithm, for every file in the folder."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import FrozenInstanceError, fields, is_dataclass, replace
from pathlib import Path

import pytest
import torch
import twin
from torch import Tensor, nn

from fedrows import Simulation, catalogue
from fedrows.algorithm import Algorithm, Round, State
from fedrows.algorithms.fedsubavg import FedSubAvg
from fedrows.data.federation import FederatedData
from fedrows.errors import PlanError
from fedrows.lifting.lifted import Lifted
from fedrows.model import Model
from fedrows.models.logistic import Logistic
from fedrows.options import options
from fedrows.plan import Plan
from fedrows.report.artefact import STYLE_COUNT
from fedrows.rows.heat import Heat
from fedrows.rows.params import Params, Total

NAMES = catalogue.names("algorithm")
every_name = pytest.mark.parametrize("name", NAMES)

# Each algorithm as it comes, and once more for every switch that it has.
VARIANTS = {name: catalogue.algorithm(name)() for name in NAMES} | {
    f"{name} {item.name}": catalogue.algorithm(name)(**{item.name: True})
    for name in NAMES
    for item in options(catalogue.algorithm(name))
    if item.default is False
}
every_variant = pytest.mark.parametrize("algorithm", VARIANTS.values(), ids=VARIANTS)

PLAN = Plan(rounds=3, clients_per_round=3, local_steps=3, batch_size=2, lr=0.2, device="cpu")
PLANS = {
    f"{weighting} {batches}": replace(PLAN, weighting=weighting, batches=batches)
    for weighting in ("uniform", "examples")
    for batches in ("draw", "epoch")
}


class Wide(nn.Module):
    """Rows wider than one, and dense layers."""

    def __init__(self, data: FederatedData) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.item = nn.Embedding(data.tables["item"], 3)
        self.kind = nn.Embedding(data.tables["kind"], 2)
        self.layer = nn.Linear(5, 1)

    def forward(self, item: Tensor, kind: Tensor) -> Tensor:
        return self.layer(torch.cat([self.item(item).mean(1), self.kind(kind)], 1))[:, 0]


MODELS = {"logistic": Logistic, "lifted": lambda data: Lifted(Wide(data), data)}
every_model = pytest.mark.parametrize("kind", MODELS)


def simulation(algorithm: Algorithm, plan: Plan, kind: str = "logistic") -> Simulation:
    data = twin.federation()
    model: Model = MODELS[kind](data)
    return Simulation(data, model, algorithm, plan)


def source(name: str) -> ast.Module:
    path = importlib.import_module(f"fedrows.algorithms.{name}").__file__
    assert path is not None
    return ast.parse(Path(path).read_text(encoding="utf-8"))


@every_name
def test_a_file_defines_one_final_class_called_like_it(name):
    classes = [part.name for part in source(name).body if isinstance(part, ast.ClassDef)]
    found = catalogue.algorithm(name)
    assert classes == [found.__name__]
    assert found.__module__ == f"fedrows.algorithms.{name}"
    assert found.__final__ is True
    assert found().name == name


@every_name
def test_it_is_a_leaf(name):
    """Nobody inherits from a concrete algorithm, and none from another."""
    found = catalogue.algorithm(name)
    assert found.__bases__ == (Algorithm,)
    assert found.__subclasses__() == []


@every_name
def test_its_file_says_what_it_is_and_imports_no_other(name):
    tree = source(name)
    assert ast.get_docstring(tree)
    assert ast.get_docstring(next(part for part in tree.body if isinstance(part, ast.ClassDef)))
    imported = {
        module
        for part in ast.walk(tree)
        for module in (
            [part.module, *(f"{part.module}.{alias.name}" for alias in part.names)]
            if isinstance(part, ast.ImportFrom)
            else [alias.name for alias in part.names]
            if isinstance(part, ast.Import)
            else []
        )
    }
    assert not {module for module in imported if module.startswith("fedrows.algorithms")}
    assert not imported & {
        "fedrows.data.federation",
        "fedrows.client",
        "fedrows.fleet",
        "fedrows.server",
    }


@every_name
def test_it_is_a_frozen_dataclass_of_options_with_help(name):
    found = catalogue.algorithm(name)
    assert is_dataclass(found)
    assert [item.name for item in options(found)] == [item.name for item in fields(found)]
    assert all(item.metadata["help"].endswith(".") for item in options(found))
    instance = found()
    assert instance == found()
    assert vars(instance).keys() == {item.name for item in fields(found)}  # no state of its own
    with pytest.raises((FrozenInstanceError, TypeError)):
        instance.name = "other"
    for item in fields(found):
        with pytest.raises(FrozenInstanceError):
            setattr(instance, item.name, getattr(instance, item.name))


@every_name
def test_its_options_are_checked(name):
    for item in options(catalogue.algorithm(name)):
        with pytest.raises(PlanError, match=f"^{item.name.replace('_', '-')} is 'much'"):
            catalogue.algorithm(name)(**{item.name: "much"})
        with pytest.raises(PlanError):
            catalogue.algorithm(name)(**{item.name: float("nan")})


@every_variant
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@every_model
def test_it_runs_and_stays_finite(algorithm, plan, kind):
    run = simulation(algorithm, plan, kind)
    before = run.progress.params.copy()
    for _ in run:
        assert all(x.isfinite().all() for x in run.tensors().values())
    assert run.progress.round == 3
    params = run.progress.whole()
    for mine, its in ((params.tables, before.tables), (params.dense, before.dense)):
        for name, x in mine.items():
            assert x.isfinite().all()
            assert not torch.equal(x, its[name])


@every_variant
@pytest.mark.parametrize("plan", [PLANS["examples epoch"], PLANS["uniform draw"]], ids=str)
@every_model
def test_its_state_survives_bit_for_bit(algorithm, plan, kind):
    """Stop after 3 of 6 rounds, go on from the tensors alone, and end where the other ends."""
    plan = replace(plan, rounds=6)
    straight, resumed = (simulation(algorithm, plan, kind) for _ in range(2))
    for progress in straight:
        if progress.round == 3:
            saved = {name: x.clone() for name, x in straight.tensors().items()}
    resumed.restore_(saved, 3, 1.5)
    assert resumed.seconds == 1.5
    assert [progress.round for progress in resumed] == [4, 5, 6]
    expected = straight.tensors()
    assert expected.keys() == resumed.tensors().keys()
    for name, x in resumed.tensors().items():
        assert torch.equal(x, expected[name]), name
    for x, y in zip(
        straight.progress.whole().tables.values(),
        resumed.progress.whole().tables.values(),
        strict=True,
    ):
        assert torch.equal(x, y)


@every_variant
def test_no_tensor_of_its_state_is_another(algorithm):
    run = simulation(algorithm, PLAN)
    for _ in run:
        pass
    places = [x.data_ptr() for x in run.tensors().values()]
    assert len(places) == len(set(places))


@every_variant
def test_it_has_no_memory_between_runs(algorithm):
    """State goes in and comes out: one instance serves two runs at once."""
    first, second = (simulation(algorithm, PLAN) for _ in range(2))
    for _ in zip(first, second, strict=True):
        pass
    for name, x in first.tensors().items():
        assert torch.equal(x, second.tensors()[name]), name


@every_variant
def test_looking_at_the_model_leaves_the_run_alone(algorithm):
    run = simulation(algorithm, replace(PLAN, rounds=5))
    for _ in run:
        pass
    before = {name: x.clone() for name, x in run.tensors().items()}
    first, second = run.progress.whole(), run.progress.whole()
    for table, rows in first.tables.items():
        assert torch.equal(rows, second.tables[table])
    for name, x in run.tensors().items():
        assert torch.equal(x, before[name]), name


LAZY = {algorithm.name: algorithm for algorithm in VARIANTS.values() if hasattr(algorithm, "lazy")}


@pytest.mark.parametrize("algorithm", LAZY.values(), ids=LAZY)
@every_model
def test_lazy_is_no_different_when_everybody_takes_part(algorithm, kind):
    """Then every row that can move is received in every round, and there is nothing to put off."""
    plan = replace(PLAN, clients_per_round=7, rounds=6, dtype="float64")
    lazy, eager = (simulation(replace(algorithm, lazy=lazy), plan, kind) for lazy in (True, False))
    for _ in zip(lazy, eager, strict=True):
        pass
    for part in ("tables", "dense"):
        mine, its = (getattr(run.progress.whole(), part) for run in (lazy, eager))
        for name, x in mine.items():
            torch.testing.assert_close(x, its[name], rtol=0, atol=1e-12)


@pytest.fixture
def steps(monkeypatch):
    """Runs an algorithm for two rounds, and gives back what its `step_` was called with."""

    def run(algorithm: Algorithm) -> list[tuple[Params, State, Total, Mapping[str, Heat], Round]]:
        of, calls = type(algorithm), []
        plain = of.step_

        def step_(self, params, state, total, heat, round_):
            copied = {name: x.copy() for name, x in state.items()}
            calls.append((params.copy(), copied, total, heat, round_))
            plain(self, params, state, total, heat, round_)

        with monkeypatch.context() as patch:
            patch.setattr(of, "step_", step_)
            for _ in simulation(algorithm, replace(PLAN, rounds=2), "lifted"):
                pass
        assert len(calls) == 2
        return calls

    return run


@every_variant
def test_an_additive_step_adds_the_corrected_mean_and_no_more(algorithm, steps):
    if not algorithm.additive:
        return
    assert algorithm.returns == ()
    for params, state, total, heat, round_ in steps(algorithm):
        assert state == {}
        index = {table: rows.index for table, rows in total.rows.items()}
        expected = params.copy()
        total.add_(expected, algorithm.correction(index, heat, torch.float32, total.share))
        algorithm.step_(params, state, total, heat, round_)
        assert_equal(params, expected)


@every_variant
def test_only_an_algorithm_that_says_so_uses_the_heat(algorithm, steps):
    for params, state, total, heat, round_ in steps(algorithm):
        if algorithm.uses_heat:
            with pytest.raises(KeyError):
                algorithm.step_(params, state, total, {}, round_)
            continue
        without, same = params.copy(), {name: x.copy() for name, x in state.items()}
        algorithm.step_(without, same, total, {}, round_)
        algorithm.step_(params, state, total, heat, round_)
        assert_equal(params, without)


def assert_equal(params: Params, other: Params) -> None:
    for mine, its in ((params.tables, other.tables), (params.dense, other.dense)):
        for name, x in mine.items():
            assert torch.equal(x, its[name]), name


@every_variant
def test_no_row_is_corrected_by_more_than_the_largest_correction(algorithm):
    heat = simulation(algorithm, PLAN).fleet.heat()
    largest = algorithm.largest_correction(heat)
    assert largest >= 1
    if not algorithm.uses_heat:
        assert largest == 1
    assert algorithm.largest_correction({}) == 1


def test_the_largest_correction_is_that_of_the_coldest_row():
    """Three of seven clients hold the row that the fewest hold, so 7/3 at alpha 1."""
    counts = torch.tensor([3.0, 7.0], dtype=torch.float64)
    heat = {"item": Heat(torch.tensor([4, 9]), counts, 7.0)}
    assert FedSubAvg().largest_correction(heat) == pytest.approx(7 / 3)
    assert FedSubAvg(alpha=0.5).largest_correction(heat) == pytest.approx((7 / 3) ** 0.5)
    assert FedSubAvg(cap=2.0).largest_correction(heat) == 2.0


@every_name
def test_its_defaults_over_a_network_are_options_of_it(name):
    found = catalogue.algorithm(name)
    found(**found.deployed)


def test_algorithms_have_different_titles_and_colours():
    classes = [catalogue.algorithm(name) for name in NAMES]
    assert len({found.shown() for found in classes}) == len(classes)
    colours = [found.colour for found in classes if found.colour is not None]
    assert len(set(colours)) == len(colours)
    assert all(0 <= colour < STYLE_COUNT for colour in colours)


def test_nothing_but_the_catalogue_names_an_algorithm():
    """Everything else goes by the facts of the class, so that an algorithm of somebody else's
    is treated as ours are."""
    package = Path(catalogue.__file__).parent
    free = ("algorithms", "datasets", "paper")
    named = [
        f"{path.relative_to(package)}:{part.lineno}"
        for path in sorted(package.rglob("*.py"))
        if path.name != "catalogue.py" or path.parent != package
        if path.relative_to(package).parts[0] not in free
        for part in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(part, ast.Constant) and part.value in NAMES
    ]
    assert named == []
