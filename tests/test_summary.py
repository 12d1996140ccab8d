"""The summary, on numbers small enough to work out by hand."""

import json
import math
from typing import Any

import pytest

from fedrows.measure.summary import (
    VIRTUAL,
    Target,
    by_algorithm,
    show,
    show_bytes,
    show_rounds,
    show_speed_up,
    spread,
    summarise,
    table,
)


def curve(algorithm: str, losses: list[Any], seed: int = 0, **more: Any) -> list[dict[str, Any]]:
    """Train losses at rounds 10, 20, 30, …"""
    return [
        {"algorithm": algorithm, "seed": seed, "round": 10 * (i + 1), "train_loss": loss} | more
        for i, loss in enumerate(losses)
    ]


def of(summary: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [a for a in summary["algorithms"] if a["name"] == name]
    return found


THREE = [
    *curve("centralsgd", [0.6, 0.5, 0.55]),
    *curve("fedavg", [0.7, 0.6, 0.5]),
    *curve("fedsubavg", [0.5, 0.4, 0.45]),
]


def test_target_is_the_best_central_loss_and_a_tie_reaches_it() -> None:
    summary = summarise(THREE)
    assert summary["target"]["rule"] == "centralsgd"
    assert summary["target"]["by_seed"] == {"0": 0.5}
    rounds = {a["name"]: a["rounds_to_target"]["mean"] for a in summary["algorithms"]}
    assert rounds == {"centralsgd": 20, "fedavg": 30, "fedsubavg": 10}
    assert of(summary, "fedsubavg")["speed_up"] == {"value": 3.0, "lower_bound": False}
    assert of(summary, "fedavg")["speed_up"] == {"value": 1.0, "lower_bound": False}


def test_target_rounds_look_only_at_the_start_of_centralsgd() -> None:
    summary = summarise(THREE, Target(rounds=10))
    assert summary["target"]["by_seed"] == {"0": 0.6}
    assert of(summary, "fedavg")["rounds_to_target"]["values"] == [20]


def test_not_reached_is_null_and_shown_as_the_last_round_plus() -> None:
    lines = [*curve("fedavg", [0.7, 0.6, 0.55]), *curve("fedsubavg", [0.5]), *THREE[:3]]
    summary = summarise(lines)
    fedavg, fedsubavg = of(summary, "fedavg"), of(summary, "fedsubavg")
    assert fedavg["rounds_to_target"] == {"mean": None, "spread": None, "values": [None]}
    assert show_rounds(fedavg) == "30+"
    assert fedavg["speed_up"] is None
    assert show_speed_up(fedsubavg["speed_up"]) == "> 3.0×"


def test_each_seed_has_its_own_target_and_seeds_may_reach_it_partly() -> None:
    lines = [
        *curve("centralsgd", [0.5, 0.5], seed=0),
        *curve("centralsgd", [0.4, 0.4], seed=1),
        *curve("centralsgd", [0.3, 0.3], seed=2),
        *curve("fedavg", [0.5, 0.5], seed=0),
        *curve("fedavg", [0.45, 0.4], seed=1),
        *curve("fedavg", [0.45, 0.4], seed=2),
    ]
    fedavg = of(summarise(lines), "fedavg")
    assert fedavg["rounds_to_target"]["values"] == [10, 20, None]
    assert fedavg["rounds_to_target"]["mean"] == 15
    assert show_rounds(fedavg) == "15 ± 7 (2 of 3 seeds)"
    assert fedavg["speed_up"] is None  # of the two seeds alone it would flatter


def test_seeds_without_centralsgd_have_no_target() -> None:
    summary = summarise([*THREE, *curve("fedavg", [0.1], seed=7)])
    assert summary["target"]["by_seed"] == {"0": 0.5, "7": None}
    assert of(summary, "fedavg")["rounds_to_target"]["values"] == [30]


def test_no_centralsgd_no_target_unless_a_number_is_given() -> None:
    lines = curve("fedsubavg", [0.7, 0.6])
    summary = summarise(lines)
    assert summary["target"]["rule"] is None
    assert of(summary, "fedsubavg")["rounds_to_target"]["values"] == []
    assert table(summary)[0] == ["Algorithm", "Best train loss"]
    given = summarise(lines, Target(value=0.65))
    assert given["target"]["rule"] == "given"
    assert of(given, "fedsubavg")["rounds_to_target"]["mean"] == 20


def test_target_of_a_metric_that_grows() -> None:
    lines = [
        {"algorithm": "fedavg", "seed": 0, "round": r, "test_auc": v}
        for r, v in ((1, 0.5), (2, 0.6), (3, 0.58))
    ]
    fedavg = of(summarise(lines, Target("test_auc", 0.6)), "fedavg")
    assert fedavg["rounds_to_target"]["mean"] == 2
    assert fedavg["metrics"]["test_auc"]["best"]["mean"] == 0.6
    assert fedavg["metrics"]["test_auc"]["final"]["mean"] == 0.58


def test_unknown_target_metric_is_refused() -> None:
    with pytest.raises(ValueError, match="'loss' is not one of train_loss"):
        Target("loss")


def test_mean_and_sample_spread_over_seeds() -> None:
    lines = [*curve("fedavg", [0.5, 0.6], seed=0), *curve("fedavg", [0.7, 0.8], seed=1)]
    stat = of(summarise(lines), "fedavg")["metrics"]["train_loss"]
    assert stat["best"]["values"] == [0.5, 0.7]
    assert stat["best"]["mean"] == pytest.approx(0.6)
    assert stat["best"]["spread"] == pytest.approx(math.sqrt(0.02))
    assert stat["final"]["mean"] == pytest.approx(0.7)
    assert show(stat["best"], 3) == "0.600 ± 0.141"


def test_one_seed_shows_no_spread() -> None:
    assert spread([0.5]) == {"mean": 0.5, "spread": None, "values": [0.5]}
    assert show(spread([0.5]), 2) == "0.50"


def test_nan_infinity_and_null_never_reach_the_json() -> None:
    summary = summarise(curve("fedavg", [math.nan, 0.6, math.inf]) + curve("x", [None, None]))
    json.dumps(summary, allow_nan=False)
    assert of(summary, "fedavg")["metrics"]["train_loss"]["best"]["mean"] == 0.6
    assert of(summary, "fedavg")["metrics"]["train_loss"]["final"]["values"] == [None]
    assert of(summary, "x")["metrics"]["train_loss"]["best"]["mean"] is None


def test_a_seed_that_diverged_is_counted_not_hidden() -> None:
    lines = [*curve("fedavg", [0.5], seed=0), *curve("fedavg", [math.nan], seed=1)]
    stat = of(summarise(lines), "fedavg")["metrics"]["train_loss"]["final"]
    assert show(stat, 2) == "0.50 (1 of 2 seeds)"


def test_a_round_evaluated_again_after_a_resume_counts_once() -> None:
    lines = curve("fedavg", [0.5, 0.6]) + curve("fedavg", [0.9])
    assert [line["train_loss"] for line in by_algorithm(lines)["fedavg"][0]] == [0.9, 0.6]


def test_bytes_and_time() -> None:
    lines = [
        {"algorithm": "fedavg", "seed": 0, "round": 0, "bytes_down": 0, "seconds": 0.0},
        {"algorithm": "fedavg", "seed": 0, "round": 20, "bytes_down": 2000, "seconds": 4.0},
    ]
    fedavg = of(summarise(lines, bytes_full_model=10_000), "fedavg")
    assert fedavg["bytes_down"] == 2000
    assert fedavg["down_share"] == 0.2
    assert fedavg["bytes_up"] is None
    assert fedavg["rounds_per_second"]["mean"] == 5
    assert show_bytes(2000, 0.2) == "2.00 kB (20.0 %)"
    assert show_bytes(17) == "17 B"
    assert show_bytes(999_600) == "1.00 MB"


def test_table_for_the_terminal() -> None:
    columns, rows = table(summarise(THREE))
    assert columns == ["Algorithm", "Rounds to train loss 0.5000", "Speed-up", "Best train loss"]
    assert rows == [
        ["CentralSGD", "20", "1.5×", "0.5000"],
        ["FedAvg", "30", "1.0×", "0.5000"],
        ["FedSubAvg", "10", "3.0×", "0.4000"],
    ]


def test_virtual_time_of_runs_with_a_clock() -> None:
    timed = curve("fedavg", [0.7, 0.6, 0.4]) + curve("fedavg", [0.7, 0.5, 0.4], seed=1)
    for line in timed:
        line |= {"virtual_seconds": 7.5 * line["round"], "client_hours": 2.0, "wasted_hours": 0.5}
    summary = summarise(timed, Target(value=0.5))
    assert of(summary, "fedavg")["virtual_seconds_to_target"]["values"] == [225, 150]
    columns, rows = table(summary)
    shown = dict(zip(columns, rows[0], strict=True))
    assert shown["Virtual s to target"] == "188 ± 53"
    assert (shown["Virtual s"], shown["Wasted hours"]) == ("225 ± 0", "0.500 ± 0.000")
    without = table(summarise(timed))[0]  # no target
    assert "Virtual s" in without
    assert "Virtual s to target" not in without
    missed = table(summarise(timed, Target(value=0.1)))
    assert "Virtual s to target" not in missed[0]
    assert not {*VIRTUAL.values()} & {*table(summarise(THREE))[0]}
