"""Private runs: the clear run's numbers where nothing is hidden, and nothing else is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrows import catalogue, checkpoint
from fedrows.data import FederatedData
from fedrows.errors import PlanError, RunFolderError
from fedrows.index import Index
from fedrows.models.logistic import Logistic
from fedrows.narrow import narrow, part_of
from fedrows.params import Submodels
from fedrows.plan import Plan
from fedrows.privacy.messages import digest
from fedrows.privacy.ring import RangeError
from fedrows.private.fleet import PrivateFleet
from fedrows.private.held import HeldBack
from fedrows.private.options import Privacy, from_config
from fedrows.ragged import ragged
from fedrows.simulation import Simulation

ROUNDS, COHORT = 6, 8
OPEN = {"index_epsilon": None, "min_contributors": 1}  # hides nothing but who sent what
Make = Callable[..., Simulation]


@pytest.fixture(scope="module")
def data() -> FederatedData:
    task = catalogue.task("synthetic")
    return task.load(task.options(clients=40, items=30, examples_per_client=10))


@pytest.fixture(scope="module")
def two_tables() -> FederatedData:
    """25 clients, a list of words and a place of their own; the tables have different widths."""
    rng = np.random.default_rng(0)
    client = np.repeat(np.arange(25), 8)
    words = ragged([rng.integers(1, 12, rng.integers(0, 4)) for _ in client], most=3)
    return FederatedData.build(
        client=client,
        ids={"words": words, "place": rng.integers(0, 6, len(client)), "own": client},
        label=rng.random(len(client)) < 0.5,
        test=np.zeros(len(client), dtype=bool),
        tables={"word": 12, "place": 6, "own": 25},
        fields={"words": "word", "place": "place", "own": "own"},
        local=["own"],
    )


def run(
    data: FederatedData,
    privacy: Privacy | None = None,
    algorithm: str = "fedsubavg",
    model: Any = None,
    **plan: Any,
) -> Simulation:
    plan = {"rounds": ROUNDS, "clients_per_round": COHORT, "dtype": "float64", **plan}
    made = Logistic(data) if model is None else model
    of = catalogue.algorithm(algorithm)()
    return Simulation(data, made, of, Plan(device="cpu", **plan), privacy)


def finish(simulation: Simulation) -> Simulation:
    for _ in simulation:
        pass
    return simulation


def furthest(one: Simulation, other: Simulation) -> float:
    a, b = one.progress.whole(), other.progress.whole()
    parts = [(a.tables, b.tables), (a.dense, b.dense)]
    return max(float((x[name] - y[name]).abs().max()) for x, y in parts for name in x)


# Where nothing is hidden


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fedsubavg", "fedadam"])
@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
def test_a_secure_run_is_the_clear_run(data, algorithm, secure_sum):
    clear = finish(run(data, algorithm=algorithm))
    privacy = Privacy.of("index", secure_sum=secure_sum, **OPEN)
    private = finish(run(data, privacy, algorithm))
    error = 1e-4 if algorithm == "fedadam" else ROUNDS * 1e-6  # Adam divides by small numbers
    assert 0 < furthest(clear, private) < error
    assert private.private.told.opened_share == 1
    assert len(private.private._held) == 0


@pytest.mark.parametrize("how", ["direct", "bloom"])
def test_tables_of_other_widths_lists_and_local_rows(two_tables, how):
    """Rows of width 3 and 2 share a sum; a local table stays with its clients."""
    model = _wide(two_tables)
    clear = finish(run(two_tables, model=model))
    privacy = Privacy.of("index", union=how, **OPEN)
    private = finish(run(two_tables, privacy, model=_wide(two_tables)))
    assert furthest(clear, private) < ROUNDS * 1e-6
    own = private.progress.params.tables["own"]
    assert not torch.equal(own, private.model.start().tables["own"])


def _wide(data: FederatedData) -> Any:
    from torch import nn

    from fedrows.lifted import Lifted

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.word, self.place = nn.Embedding(12, 4, padding_idx=0), nn.Embedding(6, 2)
            self.own, self.out = nn.Embedding(25, 1), nn.Linear(6, 1)

        def forward(
            self, words: torch.Tensor, place: torch.Tensor, own: torch.Tensor
        ) -> torch.Tensor:
            there = (words > 0)[..., None].to(self.out.weight.dtype)
            both = torch.cat([(self.word(words) * there).sum(-2), self.place(place)], -1)
            return self.out(both)[..., 0] + self.own(own)[..., 0]

    return Lifted(Wide(), data)


def test_heat_by_secure_sum_is_exact_and_noisy_heat_is_not(data):
    clear = finish(run(data))
    assert furthest(clear, finish(run(data, Privacy.of("heat")))) == 0
    noisy = finish(run(data, Privacy.of("heat", heat="randomized-response")))
    assert furthest(clear, noisy) > 1e-3
    spent = noisy.private.line()["epsilon"]
    assert 3.99 < spent["server/value"] <= 4  # two rows stand behind an item, each at 2
    assert finish(run(data, Privacy.of("heat"))).private.line() == {
        "epsilon": {"totals/value": "inf"}
    }


# Drop-outs


def drop_in(what: str, silent: Mapping[int, int]) -> Callable[[int, str], Mapping[int, int]]:
    return lambda round_, use: silent if use == what else {}


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
@pytest.mark.parametrize("what", ["union", "update"])
def test_who_drops_out_is_left_out(data, secure_sum, what):
    """With everybody in the cohort and client 3 silent, the others' own run comes out."""
    privacy = Privacy.of("index", secure_sum=secure_sum, **OPEN)
    plan = {"clients_per_round": data.clients, "rounds": 1}
    for _ in range(8):  # if client 3 is drawn as an opener, no row is opened: draw again
        private = run(data, privacy, **plan)
        private.private._drop = drop_in(what, {3: 2})
        [upload] = _uploads(private)
        if len(upload.update.index["weight"].ids):
            break
    assert upload.clients.tolist() == [i for i in range(data.clients) if i != 3]
    others = torch.tensor(upload.clients.tolist())
    clear = run(data, **plan)
    [whole] = _uploads(clear)
    weights = clear.fleet.weights[others]
    mine = clear.fleet.weights.clone()
    mine[3] = 0
    expected = torch.zeros_like(private.progress.params.tables["weight"])
    index = whole.update.index["weight"]
    expected.index_add_(0, index.ids, whole.update.rows["weight"] * mine[index.owner][:, None])
    expected /= weights.sum()
    found = torch.zeros_like(expected)
    found[upload.update.index["weight"].ids] = upload.update.rows["weight"]
    assert torch.allclose(found, expected, atol=1e-6)
    assert float(upload.weights) == float(weights.sum())


def _uploads(simulation: Simulation) -> list[Any]:
    seen, train = [], simulation.fleet.train

    def watching(*args: Any) -> Any:
        seen.append(train(*args))
        return seen[-1]

    simulation.fleet.train = watching
    finish(simulation)
    return seen


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
@pytest.mark.parametrize("what", ["union", "update"])
def test_below_the_threshold_a_round_is_left_out(data, secure_sum, what):
    simulation = run(data, Privacy.of("index", secure_sum=secure_sum, **OPEN), rounds=2)
    silent = dict.fromkeys(range(data.clients), 1)
    simulation.private._drop = lambda round_, use: silent if (round_, use) == (1, what) else {}
    start = {name: x.clone() for name, x in simulation.progress.params.tables.items()}
    steps = iter(simulation)
    assert next(steps).round == 1
    assert torch.equal(simulation.progress.params.tables["weight"], start["weight"])
    assert next(steps).round == 2
    assert not torch.equal(simulation.progress.params.tables["weight"], start["weight"])
    assert any("Round 1 was left out" in note for note in simulation.private.notes)


# What is held back


@pytest.mark.parametrize("secure_sum", ["real", "arithmetic"])
def test_rows_of_few_holders_are_held_back_and_arrive_later(secure_sum):
    """All hold item 0; item 1 is client 0's alone until client 3 comes to the cohort."""
    client, item = np.array([0, 0, 1, 2, 3, 3]), np.array([0, 1, 0, 0, 0, 1])
    data = FederatedData.build(
        client=client,
        ids={"item": item},
        label=np.ones(len(client), dtype=bool),
        test=np.zeros(len(client), dtype=bool),
        tables={"weight": 2},
        fields={"item": "weight"},
    )
    privacy = Privacy.of("index", index_epsilon=None, secure_sum=secure_sum)  # two contributors
    plan = {"rounds": 2, "clients_per_round": 3, "weighting": "uniform"}
    simulation = run(data, privacy, "fedavg", batches="epoch", **plan)
    fleet = simulation.private
    cohorts = {1: torch.tensor([0, 1, 2]), 2: torch.tensor([0, 1, 3])}
    fleet.draw = lambda counter, count: cohorts[counter]
    steps = iter(simulation)
    next(steps)
    weight = simulation.progress.params.tables["weight"]
    assert weight[0] > 0
    assert weight[1] == 0
    ids, held = fleet._held.of(0, "weight")
    assert ids.tolist() == [1]
    assert held[0, 0] > 0
    assert fleet.line()["held_back_rows"] == 1
    [first, _] = _both(data, simulation.plan)
    assert held[0, 0] == pytest.approx(float(first), rel=1e-12)
    next(steps)
    assert len(fleet._held) == 0
    assert simulation.progress.params.tables["weight"][1] > weight[1] * 0 + held[0, 0] / 3


def _both(data: FederatedData, plan: Plan) -> list[torch.Tensor]:
    """Client 0's own update of both rounds' item 1, trained in the clear."""
    clear = run(data, algorithm="fedavg", rounds=2, clients_per_round=3, weighting="uniform",
                batches="epoch")  # fmt: skip
    cohort = torch.tensor([0, 1, 2])
    index = clear.fleet.index_sets(cohort)
    from fedrows.algorithm import Round
    from fedrows.params import take

    start = take(clear.progress.params, index, 3)
    upload = clear.fleet.train(cohort, start, None, Round(1, plan.lr, 4, 4.0, cohort))
    rows = upload.update.rows["weight"][:, 0]
    return [rows[1], rows[0]]


def test_what_is_above_the_range_is_sent_later(data):
    """No number of a row ever goes up above the range, and nothing is lost."""
    wide = finish(run(data, Privacy.of("index", secure_sum="arithmetic", **OPEN), lr=0.5))
    privacy = Privacy.of("index", secure_sum="arithmetic", update_range=0.05, **OPEN)
    tight = run(data, privacy, lr=0.5)
    finish(tight)
    assert len(wide.private._held) == 0
    assert len(tight.private._held) > 0


def test_held_back_rows_add_up_to_what_was_never_opened():
    held = HeldBack({"a": 2})
    held.put_("a", np.array([4, 4]), np.array([7, 3]), np.array([[7.0, 7], [3, 3]]))
    index = {"a": Index(torch.tensor([3, 5]), torch.tensor([0, 1, 2]))}
    update = Submodels(index, {"a": torch.ones(2, 2, dtype=torch.float64)}, {})
    found = held.joined(update, [4, 9], {"a": np.array([3, 5])})  # 7 is not in the union
    assert found.index["a"].ids.tolist() == [3, 5]
    assert found.rows["a"].tolist() == [[4, 4], [1, 1]]
    found = held.joined(update, [4, 9], {"a": np.array([3, 5, 7])})
    assert found.index["a"].ids.tolist() == [3, 7, 5]
    assert found.index["a"].splits.tolist() == [0, 2, 3]
    again = HeldBack({"a": 2})
    again.restore_(held.tensors())
    assert [x.tolist() for x in again.of(4, "a")] == [[3, 7], [[3, 3], [7, 7]]]
    held.put_("a", np.array([4, 9, 4]), np.array([3, 7, 5]), np.array([[0.0, 0], [1, 1], [0, 0]]))
    assert held.of(4, "a")[0].tolist() == [7]
    assert held.of(9, "a")[1].tolist() == [[1, 1]]
    assert len(held) == 2


# Hidden rows


def test_narrowed_data_keep_the_examples_whose_rows_are_there(two_tables):
    cohort = torch.tensor([2, 7])
    held = {table: index.select(cohort) for table, index in two_tables.index.items()}
    rng = np.random.default_rng(1)
    there = {t: torch.from_numpy(rng.random(len(x.ids)) < 0.7) for t, x in held.items()}
    there["own"] = torch.ones(2, dtype=torch.bool)
    left = narrow(two_tables, cohort, held, there)
    at_hand = {
        (table, int(k), int(id_))
        for table, index in held.items()
        for k, id_, yes in zip(index.owner, index.ids, there[table], strict=True)
        if yes
    }
    count, position = 0, 0
    whole = two_tables.train
    for place, client in enumerate(cohort.tolist()):
        for n in range(int(whole.splits[client]), int(whole.splits[client + 1])):
            words = whole.ids["words"]
            mine = words.values[words.offsets[n] : words.offsets[n + 1]].tolist()
            reads = {("word", place, w) for w in mine if w}
            reads |= {("place", place, int(whole.ids["place"][n]))}
            if reads <= at_hand:
                count += 1
                if place in left.clients.tolist():
                    _same_rows(left, position, place, mine, int(whole.ids["place"][n]))
                    position += 1
    assert 0 < count < left.examples
    assert left.left_out == left.examples - count == left.examples - int(left.local.sizes.sum())


def _same_rows(left: Any, n: int, place: int, words: list[int], where: int) -> None:
    """The slots of a narrowed example name the ids that the example had."""
    active = left.clients.tolist().index(place)
    word, there = left.index["word"], left.index["place"]
    lists = left.local.slots["words"]
    slots = lists.values[lists.offsets[n] : lists.offsets[n + 1]]
    found = [0 if s < 0 else int(word.ids[word.splits[active] + s]) for s in slots]
    assert found == words
    assert int(there.ids[there.splits[active] + left.local.slots["place"][n]]) == where


def test_part_of_finds_every_row():
    whole = Submodels(
        {"a": Index(torch.tensor([1, 4, 9, 4, 5]), torch.tensor([0, 3, 5]))},
        {"a": torch.arange(5.0)[:, None]},
        {"d": torch.tensor([[1.0], [2.0]])},
    )
    part = part_of(whole, torch.tensor([1]), {"a": Index(torch.tensor([5]), torch.tensor([0, 1]))})
    assert part.rows["a"].tolist() == [[4]]
    assert part.dense["d"].tolist() == [[2]]


def test_clients_ask_with_lies_and_train_on_what_they_get(data):
    privacy = Privacy.of("index", index_epsilon=3.0, index_epsilon_for_ever=6.0, min_contributors=1)
    simulation = run(data, privacy)
    simulation.private._seed = seeded
    line = finish(simulation).private.line()
    assert 0 < line["left_out_share"] < 1
    stages = privacy.stages
    most = max(simulation.private.accounts._answered.values())
    assert line["epsilon"]["server/value"] == pytest.approx(stages.epsilon_after(most))
    assert line["epsilon"]["server/value"] < stages.epsilon_for_ever
    assert line["epsilon"]["server/set"] > line["epsilon"]["server/value"]
    assert line["epsilon"]["totals/value"] == "inf"


def test_updates_are_divided_by_the_probability_of_keeping(data, monkeypatch):
    """If by chance nobody lies, an update is the clear one over the keep probability."""
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=4.0, min_contributors=1)
    simulation = run(data, privacy, "fedavg", rounds=1)
    mine = {}

    def truth(self: Any, rows: np.ndarray, held: np.ndarray, *_: Any) -> np.ndarray:
        mine["rows"] = True
        return np.isin(rows, held)

    monkeypatch.setattr("fedrows.privacy.answers.Answers.answer_", truth)
    finish(simulation)
    clear = finish(run(data, algorithm="fedavg", rounds=1))
    keep = privacy.stages.keep_probability
    found = simulation.progress.params.tables["weight"] * keep
    assert torch.allclose(found, clear.progress.params.tables["weight"], atol=1e-6)
    assert mine


def test_a_client_without_any_example_left_weighs_nothing(data, monkeypatch):
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=4.0, min_contributors=1)
    simulation = run(data, privacy, rounds=1)
    nothing = lambda self, rows, *_: np.zeros(len(rows), dtype=bool)  # noqa: E731
    monkeypatch.setattr("fedrows.privacy.answers.Answers.answer_", nothing)
    start = simulation.progress.params.tables["weight"].clone()
    finish(simulation)
    assert torch.equal(simulation.progress.params.tables["weight"], start)
    assert simulation.private.told.left_out_share == 1


# Resuming


def seeded(use: int) -> bytes:
    return digest(b"a test", str(use).encode())


@pytest.mark.parametrize(
    "privacy",
    [
        Privacy.of("heat", heat="randomized-response"),
        Privacy.of("index", index_epsilon=3.0, index_epsilon_for_ever=6.0),
        Privacy.of("index", index_epsilon=None, secure_sum="arithmetic"),
        Privacy.of("full", dp_clip=0.5, dp_select_threshold=1.0),
    ],
    ids=["heat", "index", "arithmetic", "full"],
)
def test_a_resumed_run_is_the_run_that_never_stopped(data, privacy, tmp_path):
    def begin(name: str) -> Simulation:
        dials = {} if privacy.stages is None else {"answers": str(tmp_path / name)}
        simulation = run(data, Privacy(**{**privacy.config(), **dials}))
        simulation.private._seed = seeded
        return simulation

    whole = finish(begin("whole"))
    first, place = begin("cut"), tmp_path / "checkpoint.safetensors"
    for progress in first:
        if progress.round == 3:
            break
    checkpoint.save(place, first)
    second = begin("cut")
    checkpoint.restore_(second, place)
    assert second.private.accounts.line() == first.private.accounts.line()
    finish(second)
    assert furthest(whole, second) == 0
    assert second.private.line() == whole.private.line()
    assert len(second.private._held) == len(whole.private._held)
    other = run(data)
    with pytest.raises(RunFolderError, match="its privacy is another"):
        checkpoint.restore_(other, place)


def test_answers_in_memory_cannot_be_resumed(data, tmp_path):
    simulation, place = run(data, Privacy.of("index"), rounds=1), tmp_path / "c.safetensors"
    finish(simulation)
    checkpoint.save(place, simulation)
    with pytest.raises(RunFolderError, match="answering anew would spend anew"):
        checkpoint.restore_(run(data, Privacy.of("index"), rounds=1), place)


def test_permanent_answers_refuse_another_epsilon(data, tmp_path):
    finish(run(data, Privacy.of("index", answers=str(tmp_path)), rounds=1))
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.glob("*/*.npz"))
    other = Privacy.of("index", answers=str(tmp_path), index_epsilon_for_ever=8.0)
    with pytest.raises(PlanError, match="answering anew spends anew"):
        finish(run(data, other, clients_per_round=data.clients, rounds=1))


# Differential privacy


def test_full_without_noise_is_the_mean_of_clipped_updates(data):
    """With next to no noise and every row selected, one round is worked out by hand."""
    dials = {"dp_noise": 1e-9, "dp_select_noise": 1e-9, "dp_select_threshold": 1e-3}
    heat = {"dp_heat_noise": 1e-9, "dp_heat_rows": 10**6, "dp_clip": 0.3}
    privacy = Privacy.of("full", index_epsilon=None, secure_sum="arithmetic", **dials, **heat)
    simulation = run(data, privacy, rounds=1, clients_per_round=data.clients, weighting="uniform")
    finish(simulation)
    clear = run(data, rounds=1, clients_per_round=data.clients, weighting="uniform")
    [upload] = _uploads(clear)
    index = upload.update.index["weight"]
    factor = data.heat()["weight"].correction(index)
    rows = upload.update.rows["weight"] * factor[:, None]
    dense = {name: x.clone() for name, x in upload.update.dense.items()}
    corrected = Submodels(upload.update.index, {"weight": rows.clone()}, dense)
    scale = (0.3 / corrected.norms()).clamp(max=1)
    assert 0 < (scale < 1).float().mean() <= 1
    corrected.scale_(scale)
    expected = torch.zeros(data.tables["weight"], 1, dtype=torch.float64)
    expected.index_add_(0, index.ids, corrected.rows["weight"])
    found = simulation.progress.params.tables["weight"]
    assert torch.allclose(found, expected / data.clients, atol=1e-5)


def test_full_draws_its_cohorts_in_secret(data):
    fleets = [run(data, Privacy.of("full")).private for _ in range(2)]
    drawn = [[fleet.draw(1, COHORT).tolist() for _ in range(4)] for fleet in fleets]
    assert drawn[0] != drawn[1]
    public = [run(data, Privacy.of("index")).private.draw(1, COHORT).tolist() for _ in range(2)]
    assert public[0] == public[1]


def test_a_run_stops_before_it_spends_too_much(data):
    privacy = Privacy.of("full", max_epsilon=12.0, dp_noise=2.0)
    simulation = finish(run(data, privacy, rounds=50))
    spent = simulation.private.accounts.ledger.spent("model/user-replaced")
    assert 0 < simulation.progress.round < 50
    assert spent <= 12
    assert "max-epsilon of model/user-replaced is 12" in simulation.stopped
    longer = finish(
        run(data, Privacy.of("full", dp_noise=2.0), rounds=simulation.progress.round + 1)
    )
    assert longer.private.accounts.ledger.spent("model/user-replaced") > 12
    assert longer.stopped == ""


def test_a_limit_that_is_passed_before_the_start(data):
    privacy = Privacy.of("heat", heat="randomized-response", max_epsilon=1.0)
    simulation = finish(run(data, privacy))
    assert simulation.progress.round == 0
    assert simulation.stopped


def test_a_round_spends_for_ever_less_than_its_bound(data):
    privacy = Privacy.of("index", max_epsilon=4.0)
    simulation = finish(run(data, privacy, rounds=12))
    assert simulation.progress.round == 12
    assert 2 < simulation.private.accounts.ledger.spent("server/value") <= 4


# Bad input


@pytest.mark.parametrize(
    ("dials", "sentence"),
    [
        ({"privacy": "secret"}, "must be one of clear, heat, index, full"),
        ({"privacy": "clear", "heat": "secure"}, "heat is 'secure', which does nothing under"),
        ({"privacy": "heat", "heat": "exact"}, "shows every index set"),
        ({"privacy": "heat", "min_contributors": 3}, "does nothing under privacy 'heat'"),
        ({"privacy": "index", "index_epsilon": 0.0}, "index-epsilon is 0.0, but must be above 0"),
        ({"privacy": "index", "index_epsilon": 5.0}, "must be below the ε for ever"),
        ({"privacy": "index", "index_epsilon_for_ever": None}, "must both be given"),
        ({"privacy": "index", "openers": 1}, "must be above the 1 colluding"),
        ({"privacy": "index", "threshold": 1.5}, "threshold is 1.5, but must be at most 1"),
        ({"privacy": "full", "min_contributors": 2}, "decides over others' part"),
        ({"privacy": "full", "heat": "hashed"}, "a secure sum with noise on it"),
        ({"privacy": "full", "max_epsilon_kind": "model/user"}, "use model/user-replaced"),
        ({"privacy": "full", "max_epsilon": -1.0}, "max-epsilon is -1.0"),
    ],
)
def test_dials_that_do_not_go_together(dials, sentence):
    with pytest.raises(PlanError, match=sentence):
        Privacy.of(**dials)


@pytest.mark.parametrize(
    ("algorithm", "plan", "dials", "sentence"),
    [
        ("scaffold", {}, {}, "scaffold needs to see single uploads"),
        ("steppedmean", {}, {}, "steppedmean needs to see single uploads"),
        ("centralsgd", {}, {}, "puts all data in one place"),
        ("fedavg", {"clients_per_round": 2}, {}, "need 3: ask for more"),
        ("fedavg", {}, {"min_contributors": 9}, "no row would ever be opened"),
        ("fedavg", {}, {"colluding": 7, "openers": 8}, "need 9: ask for more"),
    ],
)
def test_runs_that_could_not_be_private(data, algorithm, plan, dials, sentence):
    with pytest.raises(PlanError, match=sentence):
        run(data, Privacy.of("index", **dials), algorithm, **plan)


def test_a_range_that_no_word_can_hold(data):
    with pytest.raises(RangeError, match="lower the range or cap the correction"):
        run(data, Privacy.of("index", update_range=1e12)).prepare()


def test_a_client_whose_dense_numbers_do_not_fit_is_left_out(data, monkeypatch):
    simulation = run(data, Privacy.of("index", **OPEN), rounds=1)
    fleet, train = simulation.private.inner, simulation.private.inner.train

    def broken(*args: Any) -> Any:
        upload = train(*args)
        bias = upload.update.dense["bias"].clone()
        bias[2] = math.nan
        upload.update.dense["bias"] = bias
        return upload

    monkeypatch.setattr(fleet, "train", broken)
    finish(simulation)
    assert any("outside of the agreed range" in note for note in simulation.private.notes)
    assert bool(torch.isfinite(simulation.progress.params.tables["weight"]).all())


def test_dials_survive_a_config():
    privacy = Privacy.of("full", dp_noise=2.0)
    assert from_config(privacy.config()) == privacy
    assert from_config(None) == Privacy()


def test_what_the_fleet_lets_through(data):
    simulation = run(data, Privacy.of("heat"), "scaffold")
    assert isinstance(simulation.fleet, PrivateFleet)
    assert simulation.fleet.kept is not None
    finish(simulation)
    assert furthest(simulation, finish(run(data, algorithm="scaffold"))) == 0


def test_arithmetic_is_said_once(data, tmp_path: Path):
    simulation = finish(run(data, Privacy.of("index", secure_sum="arithmetic", **OPEN)))
    said = [note for note in simulation.private.notes if "without masks" in note]
    assert len(said) == 1


def test_hidden_rows_in_a_model_with_lists_and_local_rows(two_tables):
    """Lists, padding, two widths and a local table, all with rows that are hidden."""
    privacy = Privacy.of("index", index_epsilon=2.0, index_epsilon_for_ever=5.0, min_contributors=1)
    simulation = run(two_tables, privacy, model=_wide(two_tables), chunk=3)
    simulation.private._seed = seeded
    start = {name: x.clone() for name, x in simulation.progress.params.tables.items()}
    finish(simulation)
    tables = simulation.progress.params.tables
    assert all(bool(torch.isfinite(x).all()) for x in tables.values())
    assert all(not torch.equal(tables[name], start[name]) for name in tables)
    assert torch.equal(tables["word"][0], start["word"][0])  # padding is nobody's
    assert 0 < simulation.private.told.left_out_share < 1


def test_without_its_openers_a_round_holds_every_row_back(data):
    """All but the openers go on: dense tensors move, and the rows arrive with the next upload."""
    simulation = run(data, Privacy.of("index", **OPEN), rounds=1)
    silent = dict.fromkeys(range(data.clients), 5)  # each falls silent once its shares are opened
    simulation.private._drop = lambda round_, use: silent if use == "update" else {}
    start = simulation.progress.params.tables["weight"].clone()
    finish(simulation)
    assert torch.equal(simulation.progress.params.tables["weight"], start)
    assert float(simulation.progress.params.dense["bias"]) != 0
    assert len(simulation.private._held) == 0  # nobody heard the end, so nobody sends it twice
