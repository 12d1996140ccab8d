"""What a server that follows every protocol learns: `honest_server` has the attacks."""

from __future__ import annotations

import math
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("cryptography")

from attack import bytes_of, proven_epsilon
from deployed import CONFIG, examples, shards_of, task_of
from honest_server import (
    AGES,
    GENDERS,
    differences,
    guesses,
    one_leaves_and_one_comes,
    one_round,
    ratings,
    secret_numbers,
    single_holders_named,
)
from loopback import federation
from private_runs import run

from fedrows.errors import RunFolderError
from fedrows.flower.server.heat_sum import load_heat
from fedrows.flower.server.private_fleet import PrivateFlowerFleet
from fedrows.flower.wire.message import Message, pack, unpack
from fedrows.privacy.answers import Answers, TwoStage
from fedrows.privacy.counting import Counting, heats
from fedrows.privacy.heat_counts import HeatCounts, Member
from fedrows.privacy.options import Privacy
from fedrows.privacy.values import derived
from fedrows.rows.heat import heat_of

# Heat


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_heat_and_known_weights_name_no_single_holder(weighting: str) -> None:
    """Of sums of weights the attack names most of the 943 holders; of counts, nobody."""
    data = secret_numbers(100)
    summed = data.heat("examples")["item"]
    named, alone = single_holders_named(data, summed.ids, summed.counts)
    assert named > 0.8 * alone
    heat = heats(data, weighting, Counting("secure"))["item"].heat
    assert single_holders_named(data, heat.ids, heat.counts) == (0, alone)


def test_a_leaver_and_a_joiner_are_not_shown(tmp_path: Path) -> None:
    before, after, left, came = one_leaves_and_one_comes(tmp_path)
    assert left - came
    assert came - left
    assert differences(before, after, 40) == (set(), set())


def test_enough_new_nodes_are_counted(tmp_path: Path) -> None:
    """Three nodes that come together are counted, unless one of all falls silent or declines."""
    data = examples(clients=7, rows=40, each=12)
    config = CONFIG | {"privacy": "index", "clients-per-round": 4, "timeout": 5.0}
    fleet, loopback = federation(task_of(data), config, shards_of(data, 7), tmp_path)
    assert isinstance(fleet, PrivateFlowerFleet)
    late = {place: loopback.here.pop(place) for place in (5, 6, 7)}
    fleet.keep_in(tmp_path / "heat.safetensors")
    fleet.gather()
    first = fleet.heat()["item"]
    assert first.total == 4
    for place in (5, 6):
        loopback.here[place] = late[place]
        fleet.gather()
        assert fleet.heat()["item"] is first
    loopback.here[7] = late[7]
    declined = pack(Message("declined", {"node": "n1"}, {}))
    loopback.meddle = lambda node, answer: (
        declined if node == 2 and unpack(answer).kind == "sum" else answer
    )
    fleet.gather()
    assert fleet.heat()["item"] is first
    assert len(fleet.registry.nodes) == 7  # it is asked for everything else as before
    loopback.meddle = lambda node, answer: answer
    fleet.gather()
    whole, heat = heat_of(data.index["item"], torch.ones(7)), fleet.heat()["item"]
    assert torch.equal(heat.ids, whole.ids)
    assert torch.equal(heat.counts, whole.counts.double())
    again, counts, labels = load_heat(tmp_path / "heat.safetensors")
    assert torch.equal(again["item"].counts, heat.counts)
    assert [len(count) for count in counts] == [4, 7]
    assert labels is None
    (tmp_path / "heat.safetensors").write_bytes(b"half a file")
    with pytest.raises(RunFolderError, match="counting again would show more"):
        fleet.keep_in(tmp_path / "heat.safetensors")


def test_no_combination_of_counts_shows_fewer_than_agreed() -> None:
    """All sums and differences of the counts that are allowed, by brute force."""
    rng, least, allowed = np.random.default_rng(0), 2, 0
    for _ in range(300):
        history, here = HeatCounts(least), set(range(8))
        history.add_(_members(here))
        for _ in range(6):
            moved = rng.choice(14, rng.integers(1, 5), replace=False)
            here = here ^ set(moved.tolist())
            if history.may_count(_members(here)):
                history.add_(_members(here))
        allowed += len(history.counts) > 2
        counts = np.array([[(f"n{i}", i) in count for i in range(14)] for count in history.counts])
        for factors in product((-2, -1, 0, 1, 2), repeat=min(len(counts), 4)):
            shown = np.flatnonzero(np.array(factors) @ counts[: len(factors)].astype(int))
            assert len(shown) == 0 or len(shown) >= least
    assert allowed > 20


def test_joiners_do_not_make_up_for_leavers() -> None:
    history = HeatCounts(2)
    assert history.may_count([])  # the first count is up to its terms
    history.add_(_members(range(4)))
    assert not history.may_count(_members(range(4)))  # nobody is new
    assert not history.may_count(_members([1, 2, 3, 4]))
    assert not history.may_count(_members(range(5)))
    assert not history.may_count([*_members(range(4)), ("n9", 8), ("n9", 9)])  # one party
    assert history.may_count(_members([2, 3, 4, 5]))
    history.add_(_members(range(6)))
    assert not history.may_count(_members([0, 1, 2, 3, 4, 6]))  # 5 against 6, by the difference
    assert history.may_count(_members(range(8)))


def _members(clients: object) -> list[Member]:
    return [(f"n{one}", one) for one in clients]  # type: ignore[attr-defined]


# Answers


def test_gender_and_age_do_not_follow_from_answers() -> None:
    """With rows of movies alone the attack is at chance, with all rows within ε."""
    data, clients = ratings(210), 210
    privacy = Privacy.of("index", secure_sum="arithmetic")
    union, asked = one_round(run(data, privacy, clients_per_round=clients).private, clients)
    for which, variants in enumerate((GENDERS, AGES)):
        for plain, most in ((False, 1 / variants), (True, math.e**2 / (math.e**2 + variants - 1))):
            found = [guesses(rows, union, plain)[which] for rows in asked]
            right = sum(guess == i % variants for i, guess in enumerate(found))
            assert right <= clients * most + 4 * math.sqrt(clients * most * (1 - most))


# Rows of one client: F, M, two movies, two of F×movie, two of M×movie.
F_WITH_BOTH, M_WITH_BOTH, F_WITH_ONE = [0, 2, 3, 4, 5], [1, 2, 3, 6, 7], [0, 3, 5]
STAGES, TRIALS = TwoStage.of(1, 2), 6000


def _said(held: list[int], rounds: int, seed: int, leaks: bool = False) -> np.ndarray:
    """How often clients that hold the same rows ask for each in some rounds: (trials, 8).

    All trials are one client, whose coins are independent, with values of their own for each trial.
    leaks: as if clients asked for their own variants alone.
    """
    ends = np.array([0, 2, 4, 8]) * TRIALS
    values = derived(dict(zip(("gender", "movie", "gender×movie"), pairwise(ends), strict=True)))
    first = np.array([0, 1, 0, 1, 0, 1, 0, 1]) + np.repeat([0, 2, 4, 6], 2) * TRIALS
    rows = first + 2 * np.arange(TRIALS)[:, None]  # (trials, 8)
    own = np.array([not leaks or column < 4 or column in held for column in range(8)])
    answers, source = Answers(STAGES.permanent), bytes_of(seed)
    said = np.zeros(rows.shape, dtype=np.int64)
    for _ in range(rounds):
        yes = answers.answer_(
            np.arange(ends[-1]), np.sort(rows[:, held].ravel()), STAGES, values, source
        )
        said += yes[rows] & own
    return said


def _proven(one: np.ndarray, other: np.ndarray, signs: list[int]) -> float:
    """The ε that is proven by how often rows are asked for, those of sign −1 against the others."""
    gaps = [said @ np.array(signs) for said in (one, other)]
    cuts = np.unique(np.concatenate(gaps))
    return max(proven_epsilon(gaps[0] >= cut, gaps[1] >= cut) for cut in cuts)


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_game_on_a_value_is_within_epsilon(rounds: int) -> None:
    """A client with the first movie, or without: all rows of the movie are looked at."""
    with_it, without = _said(F_WITH_BOTH, rounds, 1), _said(F_WITH_ONE, rounds, 2)
    claimed = STAGES.epsilon_after(rounds)
    rows = [0, 0, 1, 0, 1, 0, 1, 0]
    assert 0.5 * claimed < _proven(with_it, without, rows) <= claimed
    assert _proven(without, with_it, [-x for x in rows]) <= claimed


def test_a_game_on_a_variant_is_within_epsilon() -> None:
    """A client of either gender: rows of movies show nothing, and would if only own ones did."""
    claimed = 2 * STAGES.epsilon_after(1)  # one value less, another more
    crossed, every = [0, 0, 0, 0, 1, 1, -1, -1], [1, -1, 0, 0, 1, 1, -1, -1]
    one, other = _said(F_WITH_BOTH, 1, 1), _said(M_WITH_BOTH, 1, 2)
    assert _proven(one, other, crossed) <= 0
    assert 0.5 * claimed < _proven(one, other, every) <= claimed
    one, other = (_said(held, 1, 3, leaks=True) for held in (F_WITH_BOTH, M_WITH_BOTH))
    assert _proven(one, other, crossed) > claimed
