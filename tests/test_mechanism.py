"""Mechanisms of central privacy: what each must keep to, and runs with one of somebody else's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from attack import bytes_of, proven_epsilon
from commands import SMALL, Capture
from private_runs import COHORT, finish, run, synthetic

from fedrows import catalogue
from fedrows.cli import main
from fedrows.errors import PlanError, PluginError, UnknownNameError
from fedrows.flower.wire.contract import DeployedTask, make_contract
from fedrows.options import options
from fedrows.privacy.ledger import Event, Ledger
from fedrows.privacy.mechanism import Mechanism, Touched
from fedrows.privacy.mechanisms.gaussian import Gaussian
from fedrows.privacy.options import Privacy, from_config

EXAMPLE = Path(__file__).parent.parent / "examples" / "plugin" / "fedrows_example" / "allrows.py"
ALL_ROWS = f"{EXAMPLE}:AllRows"
MECHANISMS = [*catalogue.built_in("mechanism"), ALL_ROWS]
BY_SERVER = [name for name in MECHANISMS if name != "distributed"]  # test_distributed_noise.py

ODD = """
from dataclasses import dataclass
from fedrows.options import option
from fedrows.privacy.ledger import Entry
from fedrows.privacy.mechanism import Mechanism

@dataclass(frozen=True)
class Odd(Mechanism):
    epsilon: float = option(0.5, "ε of a round.", least=0)
    explanation = "Nobody is protected."

    def entry(self, round_, cohort, clients, tables=True):
        return Entry(self.kind, "odd", round_, self.epsilon)

    def noised(self, touched, dense, sizes, cohort, source):
        return {t: (x.ids, x.sums / cohort) for t, x in touched.items()}, dict(dense)
"""


@pytest.fixture(autouse=True)
def _as_in_a_new_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(catalogue, "_REFERRED", {})
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("odd.py").write_text(ODD)


# ---- the contract


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_accounts_for_what_it_releases(name: str) -> None:
    made: Mechanism = catalogue.mechanism(name)()
    assert made.name == catalogue.short(name)
    assert made.explanation.endswith(".")
    ledger = Ledger()
    ledger.add_(made.accounted(1, 5, 50))
    assert 0 < ledger.spent(made.kind) < float("inf")
    assert ledger.kinds == [made.kind]


@pytest.mark.parametrize("name", BY_SERVER)
def test_every_mechanism_has_noise_as_large_as_it_accounts_for(name: str) -> None:
    """One user replaced moves the sum by 2 clips; the event's noise is a multiple of that."""
    made = catalogue.mechanism(name)(clip=0.5, noise=3.0)
    entry = made.accounted(1, 10, 50)
    assert isinstance(entry.event, Event)
    nothing = Touched(torch.arange(0), torch.zeros(0), torch.zeros(0, 2, dtype=torch.float64))
    dense = {"bias": torch.zeros(20_000, dtype=torch.float64)}
    rows, means = made.noised({"a": nothing}, dense, {"a": 50}, 10, bytes_of(1))
    assert float(means["bias"].std()) * 10 == pytest.approx(
        entry.event.noise[0] * 2 * 0.5, rel=0.02
    )
    ids, values = rows["a"]
    assert values.shape == (len(ids), 2)
    assert torch.equal(ids, ids.unique())


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_keeps_the_sum(name: str) -> None:
    """With next to no noise the mean comes out, on rows that many hold."""
    made = catalogue.mechanism(name)(noise=1e-12)
    sums = torch.tensor([[2.0], [4.0]], dtype=torch.float64)
    touched = Touched(torch.tensor([3, 7]), torch.full((2,), 1e3), sums)
    rows, means = made.noised({"a": touched}, {"b": sums}, {"a": 9}, 2, bytes_of(1))
    ids, values = rows["a"]
    assert {3, 7} <= set(ids.tolist())
    assert values[torch.isin(ids, touched.ids)].flatten().tolist() == pytest.approx([1, 2])
    assert means["b"].flatten().tolist() == pytest.approx([1, 2])


@pytest.mark.parametrize("game", ["sign", "row"])
@pytest.mark.parametrize("name", BY_SERVER)
def test_a_canary_proves_no_more_than_the_ledger_says(name: str, game: str) -> None:
    """A user moves its row up or down as far as it can, or holds the one row or the other.

    The games lie side by side, two rows each. With a tenth of the noise they prove more.
    """
    of, trials, delta = catalogue.mechanism(name), 20_000, 1e-3
    selects = "select_noise" in {item.name for item in options(of)}

    def seen(other: bool, made: Mechanism, seed: int) -> np.ndarray:
        place = 2 * torch.arange(trials) + (other if game == "row" else 0)
        value = -made.clip if other and game == "sign" else made.clip
        sums = torch.full((trials, 1), value, dtype=torch.float64)
        touched = Touched(place, torch.ones(trials, dtype=torch.float64), sums)
        rows, _ = made.noised({"a": touched}, {}, {"a": 2 * trials}, 1, bytes_of(seed))
        ids, values = rows["a"]
        whole = torch.zeros(2 * trials, dtype=torch.float64)
        whole[ids] = values[:, 0] + torch.where(values[:, 0] > 0, 0.5, -0.5)  # released, or not
        first, second = whole.view(trials, 2).unbind(1)
        return (first if game == "sign" else first - second).numpy()

    def proven(**noise: float) -> float:
        made = of(**noise, **({"select_threshold": 1.0} if selects else {}))
        with_it, without = seen(False, made, 1), seen(True, made, 2)
        cuts = np.linspace(-3, 3, 13)
        return max(proven_epsilon(with_it > cut, without > cut, delta) for cut in cuts)

    ledger, noise = Ledger(delta), {"noise": 1.5, **({"select_noise": 1.5} if selects else {})}
    ledger.add_(of(**noise).accounted(1, 1, 1))
    claimed = ledger.spent(of().kind)
    assert proven(**noise) <= claimed
    assert proven(**{key: x / 10 for key, x in noise.items()}) > claimed


def test_a_mechanism_that_accounts_for_nothing_is_refused(capsys: Capture) -> None:
    privacy = Privacy.of("full", mechanism="odd.py:Odd", dp_epsilon=0.0)
    with pytest.raises(PlanError, match="mechanism odd accounts for nothing: let its method"):
        finish(run(synthetic(), privacy, rounds=1))
    text = ODD.replace("Entry(self.kind", 'Entry("server/value"').replace("Odd", "Other")
    Path("other.py").write_text(text)
    with pytest.raises(PlanError, match="an Entry of its own of the kind model/user-replaced"):
        finish(run(synthetic(), Privacy.of("full", mechanism="other.py:Other"), rounds=1))


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"privacy": "index", "mechanism": "gaussian"}, "mechanism is 'gaussian', which does noth"),
        ({"privacy": "index", "dp_noise": 2.0}, "dp-noise does nothing under privacy 'index'"),
        ({"mechanism": Gaussian(sampling="poisson")}, "a run's cohorts have a fixed size"),
        ({"mechanism": Gaussian(), "dp_noise": 2.0}, "set that option of the mechanism"),
        ({"dp_noise": 0.0}, "dp-noise is 0.0, but must be above 0"),
        ({"max_epsilon_kind": "model/user"}, "use model/user-replaced"),
    ],
)
def test_dials_that_make_no_sense(dials: dict, sentence: str) -> None:
    with pytest.raises(PlanError, match=sentence):
        Privacy.of(**{"privacy": "full", **dials})


def test_names_that_nothing_has() -> None:
    with pytest.raises(UnknownNameError, match="option of the mechanism gaussian called 'dp_nois'"):
        Privacy.of("full", dp_nois=1.0)
    with pytest.raises(UnknownNameError, match="no mechanism called 'gausian': did you mean gauss"):
        Privacy.of("full", mechanism="gausian")
    Path("odd.py").write_text(ODD.replace("epsilon: float", "heat_noise: float"))
    with pytest.raises(PlanError, match="--dp-heat-noise is that of every private run"):
        Privacy.of("full", mechanism="odd.py:Odd")


def test_a_stated_epsilon_adds_up_and_a_limit_stops_the_run() -> None:
    privacy = Privacy.of("full", mechanism="odd.py:Odd", dp_heat_noise=1e4, max_epsilon=1.6)
    simulation = finish(run(synthetic(), privacy, rounds=9))
    entries = simulation.private.accounts.ledger.entries
    assert [e.round for e in entries if e.mechanism == "odd"] == [1, 2, 3]
    assert "max-epsilon of model/user-replaced is 1.6" in simulation.stopped
    assert from_config(json.loads(json.dumps(privacy.config()))) == privacy


# ---- as a user meets it


@pytest.mark.slow
def test_a_run_with_a_mechanism_of_a_file(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--privacy", "full", "--mechanism", ALL_ROWS, "--dp-noise", "2", "--dp-clip", "0.5"]
    small = ["synthetic", *SMALL, *words]
    assert main(["run", *small, "--rounds", "40", "--max-epsilon", "5", "--out", "a"]) == 0
    assert "max-epsilon of model/user-replaced is 5" in capsys.readouterr().out
    config = json.loads(Path("a/config.json").read_text())
    assert config["privacy"]["mechanism"] == {
        "name": "allrows",
        "from": ALL_ROWS,
        "clip": 0.5,
        "noise": 2.0,
        "weight_cap": None,
        "mean_share": 1.0,
        "sampling": "fixed",
    }
    before = _lines("a")[-1]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr(catalogue, "_REFERRED", {})
    assert main(["run", "--resume", "../a", "--max-epsilon", "6"]) == 0
    after = _lines("../a")[-1]
    assert after["round"] > before["round"]
    assert before["epsilon"]["model/user-replaced"] <= 5 < after["epsilon"]["model/user-replaced"]
    capsys.readouterr()
    assert main(["run", "--resume", "../a", "--mechanism", "gaussian"]) == 2
    assert "--mechanism gaussian would change the run" in capsys.readouterr().err


def test_the_ledger_has_the_entries_of_a_plug_in() -> None:
    privacy = Privacy.of("full", mechanism=ALL_ROWS, dp_noise=3.0)
    simulation = finish(run(synthetic(), privacy, rounds=2))
    entries = [
        e for e in simulation.private.accounts.ledger.entries if e.mechanism == "noise on all rows"
    ]
    assert [e.round for e in entries] == [1, 2]
    assert entries[0].event == Event((3.0,), "fixed", COHORT, 40)
    moved = simulation.progress.params.tables["weight"]
    assert bool((moved != 0).all())  # every row has noise, whoever holds it


def test_explain_and_help_know_the_mechanism_that_is_named(capsys: Capture) -> None:
    words = ["--privacy", "full", "--mechanism", ALL_ROWS, "--dp-noise", "3"]
    assert main(["privacy", "explain", "synthetic", *SMALL, *words]) == 0
    out = capsys.readouterr().out
    assert "by the mechanism allrows" in out
    assert "Gaussian noise of deviation 6 on all rows" in out
    assert main(["run", "synthetic", "--mechanism", "odd.py:Odd", "--help"]) == 0
    assert "--dp-epsilon" in capsys.readouterr().out
    assert main(["run", "--help"]) == 0
    assert "--dp-select-noise" in capsys.readouterr().out


def test_a_comparison_with_a_mechanism_of_a_file() -> None:
    words = ["--privacy", "full", "--mechanism", "odd.py:Odd", "--algorithms", "fedavg,fedsubavg"]
    small = ["synthetic", *SMALL, *words, "--seeds", "0", "--rounds", "2", "--out", "c"]
    assert main(["compare", *small]) == 0
    assert main(["compare", "--resume", "c", "--rounds", "3"]) == 0
    assert max(line["round"] for line in _lines("c")) == 3


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--mechanism", "odd.py:Odd"], "mechanism is 'odd', which does nothing under privacy"),
        (["--privacy", "full", "--mechanism", "none.py:X"], "The mechanism 'none.py:X' cannot be"),
        (["--privacy", "full", "--mechanism", "laplace"], "no mechanism called 'laplace'"),
        (
            ["--privacy", "full", "--mechanism", "odd.py:Odd", "--dp-select-noise", "2"],
            "--dp-select-noise is not an option of synthetic or fedsubavg or odd",
        ),
        (["--privacy", "full", "--dp-clip", "x"], "dp-clip is 'x', but must be a number"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], sentence: str, capsys: Capture) -> None:
    assert main(["run", "synthetic", *SMALL, "--rounds", "2", *words, "--out", "a"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not Path("a").exists()


def test_a_message_cannot_make_a_node_import_a_mechanism() -> None:
    Path("bad.py").write_text("raise ValueError")
    none = lambda *_: None  # noqa: E731
    nothing = DeployedTask("any", shard=none, model=none, server=none)
    for mode in ("clear", "index", "full"):
        with pytest.raises(PlanError, match="mechanism in the run's configuration is no option"):
            make_contract(nothing, {"privacy": mode, "mechanism": "bad.py:Name"})
    with pytest.raises(PluginError):  # which is what it would have met
        catalogue.mechanism("bad.py:Name")


def _lines(folder: str) -> list[dict]:
    return [json.loads(text) for text in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
