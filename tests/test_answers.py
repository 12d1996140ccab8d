"""Two stages of randomized response: ε in closed form, memory that holds, rows that share one."""

from __future__ import annotations

import math
import stat
from itertools import product

import numpy as np
import pytest
from attack import bytes_of, proven_epsilon

from fedrows.errors import PlanError, RunFolderError
from fedrows.privacy.answers import Answers, Asking, TwoStage
from fedrows.privacy.response import Response
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.values import Values, derived, rows_per_value

UNEVEN = TwoStage(Response(0.7, 0.2), Response(0.9, 0.4))


@pytest.mark.parametrize("stages", [TwoStage.of(1, 3), TwoStage.of(0.5, 1), UNEVEN])
@pytest.mark.parametrize("answers", [1, 2, 3, 6])
def test_epsilon_is_the_worst_of_all_sequences(stages, answers):
    def chance(said: tuple[int, ...], permanent: float) -> float:
        ones = math.prod(stages.fresh.keep if y else 1 - stages.fresh.keep for y in said)
        zeros = math.prod(stages.fresh.lie if y else 1 - stages.fresh.lie for y in said)
        return permanent * ones + (1 - permanent) * zeros

    keep, lie = stages.permanent.keep, stages.permanent.lie
    worst = max(
        abs(math.log(chance(said, keep) / chance(said, lie)))
        for said in product((0, 1), repeat=answers)
    )
    assert stages.epsilon_after(answers) == pytest.approx(worst, rel=1e-12)


def test_epsilon_grows_to_the_permanent_stages():
    stages = TwoStage.of(1, 3)
    grown = [stages.epsilon_after(answers) for answers in (1, 2, 5, 20, 10**6)]
    assert grown == sorted(grown)
    assert grown[0] == pytest.approx(1, abs=1e-6)
    assert grown[0] <= 1
    assert grown[-1] == stages.epsilon_for_ever == pytest.approx(3, abs=1e-6)
    assert stages.epsilon_for_ever <= 3


def test_how_often_a_row_is_kept():
    rows, held = np.arange(200_000), np.arange(0, 200_000, 2)
    for stages in (TwoStage.of(1, 3), UNEVEN):
        said = Answers(stages.permanent).answer_(rows, held, stages, source=bytes_of(1))
        assert said[::2].mean() == pytest.approx(stages.keep_probability, abs=0.006)
        assert said[1::2].mean() == pytest.approx(stages.decoy_probability, abs=0.006)


def test_permanent_answers_are_given_once():
    stages = TwoStage.of(1, 3)
    mine, source = Answers(stages.permanent), bytes_of(1)
    first = mine.recall_(np.array([9, 3, 9, 700]), np.array([3]), source)
    assert first[0] == first[2]
    mine.recall_(np.arange(0, 900, 5), np.array([3]), source)  # others in between
    for held in ([3], [], [9, 700]):  # whatever the client comes to hold
        again = mine.recall_(np.array([9, 3, 9, 700]), np.array(held), source)
        assert np.array_equal(first, again)


def test_memory_survives_a_killed_process(tmp_path):
    stages = TwoStage.of(1, 3)
    mine = Answers(stages.permanent)
    asked, held = np.arange(1000), np.arange(0, 1000, 3)
    before = mine.recall_(asked, held)
    mine.save(tmp_path / "answers.npz")
    assert stat.S_IMODE((tmp_path / "answers.npz").stat().st_mode) == 0o600
    back = Answers.open(tmp_path / "answers.npz")
    assert back.permanent == stages.permanent
    assert np.array_equal(back.recall_(asked, held), before)
    with pytest.raises(PlanError, match="answering anew spends anew"):
        back.answer_(asked, held, TwoStage.of(1, 4))
    (tmp_path / "answers.npz").write_bytes(b"PK\x03\x04 half a file")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Answers.open(tmp_path / "answers.npz")
    with pytest.raises(RunFolderError, match="cannot be read"):
        Answers.open(tmp_path / "nothing.npz")


@pytest.mark.parametrize("rounds", [1, 8])
def test_an_attack_over_rounds_proves_no_more_than_epsilon(rounds):
    """And proves more of clients that forget what they said."""
    stages, values = TwoStage.of(1, 2), np.arange(60_000)

    def ones(held: np.ndarray, forget: bool, seed: int) -> np.ndarray:
        source, mine = bytes_of(seed), Answers(stages.permanent)
        said = np.zeros(len(values), dtype=np.int64)
        for _ in range(rounds):
            if forget:
                mine = Answers(stages.permanent)
            said += mine.answer_(values, held, stages, source=source)
        return said

    def attack(forget: bool) -> float:
        with_it, without = ones(values, forget, 1), ones(values[:0], forget, 2)
        cuts = range((rounds + 1) // 2, rounds + 1)
        return max(proven_epsilon(with_it >= cut, without >= cut) for cut in cuts)

    assert attack(forget=False) <= stages.epsilon_after(rounds)
    assert attack(forget=False) > 0.8 * stages.epsilon_after(rounds)
    if rounds > 1:
        assert attack(forget=True) > stages.epsilon_for_ever


def test_rows_of_one_value_share_an_answer():
    values = derived({"sex": (0, 2), "movie": (2, 102), "sex×movie": (102, 302)})
    stages, mine = TwoStage.of(1, 3), Answers(TwoStage.of(1, 3).permanent)
    held = np.array([1, 2 + 7, 2 + 9, 202 + 7, 202 + 9])  # the second sex, movies 7 and 9
    for seed in range(5):
        said = mine.answer_(np.arange(302), held, stages, values, bytes_of(seed))
        assert np.array_equal(said[2:102], said[202:302])
        assert np.array_equal(said[2:102], said[102:202])  # the other sex's as well
    assert len(mine.values) == 102


def test_answers_row_by_row_are_independent():
    space = RowSpace({"x": 302})
    values = {"x": derived({"sex": (0, 2), "movie": (2, 102), "sex×movie": (102, 302)})}
    stages, held = TwoStage.of(1, 3), np.array([1, 2 + 7, 202 + 7])
    by_row = Asking(space, stages, values, None, bytes_of(1), "row")
    said = np.isin(np.arange(302), by_row.wanted(0, np.arange(302), held))
    assert not np.array_equal(said[2:102], said[202:302])
    by_value = Asking(space, stages, values, None, bytes_of(1))
    said = np.isin(np.arange(302), by_value.wanted(0, np.arange(302), held))
    assert np.array_equal(said[2:102], said[202:302])


def test_values_by_hand():
    values = derived({"sex": (0, 2), "movie": (2, 5), "sex×movie": (5, 11)})
    value, variant = values.of(np.array([1, 2, 4, 5, 8, 10, 40]))
    assert value.tolist() == [1, 2, 4, 2, 2, 4, 40]
    assert len(set(variant.tolist())) == 5  # sex, movie, first sex, second sex, none
    assert values.crossed(np.array([1, 2, 5, 7, 8, 40])).tolist() == [-1, -1, 0, 0, 1, -1]
    owner = np.zeros(5, dtype=np.int64)
    held = np.array([0, 2, 3, 5, 6])  # the first sex and two movies: 2 rows a movie, 3 of the sex
    assert rows_per_value(values, owner, held) == 3
    hidden = derived({"movie": (0, 3), "hour×movie": (3, 9)})  # the hour has no row of its own
    first, *others = hidden.crossed(np.array([3, 4, 6])).tolist()
    assert others[0] == first < -1
    assert others[1] not in (first, -1)
    assert Values().of(np.array([7]))[0].tolist() == [7]
    with pytest.raises(PlanError, match="which is no group"):
        derived({"age×movie": (0, 4)})
    with pytest.raises(PlanError, match="no multiple"):
        derived({"movie": (0, 3), "age×movie": (3, 8)})


@pytest.mark.parametrize("epsilons", [(0, 1), (-1, 1), (1, 1), (2, 1), (1, math.inf)])
def test_bad_epsilons(epsilons):
    with pytest.raises(PlanError, match="The ε"):
        TwoStage.of(*epsilons)
