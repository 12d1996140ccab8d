"""The climb behind the search of settings, on hills whose top is known."""

from __future__ import annotations

from math import log

from benchmarks.recommenders_search import climb, found, moved


def top(start, lists, height):
    """Where a climb ends, and how many trials it took."""
    climbing, tried = climb(start, lists), []
    setting = next(climbing)
    while setting is not None:
        tried.append((height(setting), setting))
        try:
            setting = climbing.send(tried[-1][0])
        except StopIteration:
            setting = None
    return max(tried, key=lambda one: one[0])[1], len(tried)


def test_a_rate_climbs_past_any_edge_and_lists_end():
    lists = {"rounds": (100, 200, 400), "start": ("zero", "counted")}

    def height(setting):
        far = abs(log(setting["lr"] / 64))
        return -far + setting["rounds"] / 1000 + (setting["start"] == "zero")

    best, trials = top({"lr": 1.0, "rounds": 100, "start": "counted"}, lists, height)
    assert best == {"lr": 64.0, "rounds": 400, "start": "zero"}
    assert trials < 20
    assert found("x", (1.0, best), [], lists)["at_the_end_of"] == ["rounds"]


def test_no_setting_is_tried_twice():
    climbing, seen = climb({"lr": 1.0}, {}), []
    setting = next(climbing)
    while setting is not None:
        seen.append(setting["lr"])
        try:
            setting = climbing.send(-abs(log(setting["lr"] / 4)))
        except StopIteration:
            setting = None
    assert seen == [1.0, 2.0, 4.0, 8.0]  # and 2 is known when it looks back


def test_a_value_between_those_of_a_list_moves_to_its_neighbours():
    assert moved("rounds", 300, 1, {"rounds": (100, 400)}) == 400
    assert moved("rounds", 300, -1, {"rounds": (100, 400)}) == 100
    assert moved("rounds", 400, 1, {"rounds": (100, 400)}) is None
    assert moved("lr", 0.1, -1, {}) == 0.05
