"""What `privacy explain` says is what the mechanisms do."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from fedrows.privacy.explain import LIAR, ExplainedRun, Speed, explain, text
from fedrows.privacy.ledger import Entry, Event, Ledger
from fedrows.privacy.options import MODES, Privacy

SPEED = Speed(coins=1e6, mask_bytes=1e8)
SETTING = ExplainedRun(
    Privacy.of("full"),
    clients=1000,
    cohort=50,
    rounds=20,
    weighting="uniform",
    rows={"item": 8000},
    widths={"item": 4},
    dense=100,
    set_size=60,
    rows_per_value=3,
    set_values=21,
    value_rows=200,
    values=2700,
    union_bytes=4 * 8000,
)


def under(mode: str, **dials) -> ExplainedRun:
    return replace(SETTING, privacy=Privacy.of(mode, **dials))


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_tells_of_every_part(mode):
    lines = explain(under(mode), SPEED)
    assert {line.part for line in lines} >= {"heat", "index", "updates", "model"}
    said = text(under(mode), SPEED)
    assert said.startswith(f"privacy {mode}: 1,000 clients, 50 a round")
    assert (LIAR in said) == (mode in ("index", "full"))


def test_what_the_clear_shows():
    heat, index, updates, model = explain(under("clear"), SPEED)
    assert "index set of every client" in heat.learns
    assert heat.bytes_up == 4 * 60
    assert index.bytes_down == 4 * (60 * 4 + 100)
    assert updates.bytes_up == 4 * (60 * 4 + 100)
    assert {line.epsilon[:4] for line in (heat, index, updates, model)} == {"none"}


def test_numbers_of_the_private_parts():
    heat, union, others, index, updates, model = explain(SETTING, SPEED)
    assert heat.bytes_up == 4 * 8000 + 300 * 999
    assert union.bytes_up == 4 * 8000 + 300 * 49
    assert others.bytes_down == 4 * 3000  # 50 clients of 60 rows
    assert index.bytes_up == 3000 / 8
    assert "1 in one round" in index.epsilon
    assert "4 for ever" in index.epsilon
    keep, decoy = 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(1))
    asked = 3000 * decoy + 200 * (keep - decoy)  # a value's rows in the union, all together
    assert index.bytes_down == pytest.approx(4 * (asked * 4 + 100), rel=1e-6)
    by_row = explain(under("full", coins="row"), SPEED)[3]
    assert "3 in one round" in by_row.epsilon  # three rows a value
    asked = 3000 * decoy + 60 * (keep - decoy)
    assert by_row.bytes_down == pytest.approx(4 * (asked * 4 + 100), rel=1e-6)
    assert updates.bytes_up == 8 * (3000 * 6 + 100) + 300 * 49
    ledger = Ledger(1e-6)
    mechanism, heat = SETTING.privacy.mechanism, Event((SETTING.privacy.dp_heat_noise,))
    ledger.add_(Entry("model/user-replaced", "heat", 0, event=heat))
    ledger.add_(*(mechanism.entry(n, 50, 1000) for n in range(20)))
    assert model.epsilon.startswith(f"{ledger.spent('model/user-replaced'):.3g} at δ 1e-06")


@pytest.mark.parametrize(
    ("how", "epsilon", "bytes_up"),
    [
        ({"heat": "randomized-response", "coins": "row"}, "6 for one value", 8000 / 8),
        ({"heat": "randomized-response"}, "2 for one value", 2700 / 8),
        ({"heat": "hashed", "heat_epsilon": 1.0}, "3 for one value", 2**15 + 4),
    ],
)
def test_numbers_of_noisy_heat(how, epsilon, bytes_up):
    heat = explain(under("heat", **how), SPEED)[0]
    assert heat.epsilon.startswith(epsilon)
    assert heat.bytes_up == pytest.approx(bytes_up)


def test_speed_is_measured():
    speed = Speed.here()
    assert speed.coins > 0
    assert speed.mask_bytes > 0


@pytest.mark.parametrize(
    ("mode", "dials", "learns", "epsilon"),
    [
        ("clear", {}, "which clients have each item of table item, and which of them", "none"),
        ("heat", {}, "how many clients have each item of table item", "none: a sum has no noise"),
        ("index", {}, "how many of them like it", "none: a sum has no noise"),
        ("heat", {"heat": "randomized-response"}, "two noisy bits of every client", "at most "),
        ("heat", {"heat": "hashed"}, "two noisy sketches of every client", "at most "),
    ],
)
def test_a_counted_start_tells_of_its_counters(mode, dials, learns, epsilon):
    """They are counted as heat is, so two cost twice as many bytes for the same rows."""
    setting = under(mode, **dials)
    assert "counters" not in {line.part for line in explain(setting, SPEED)}
    lines = explain(replace(setting, counted="item"), SPEED)
    heat, (server, others) = lines[0], [line for line in lines if line.part == "counters"]
    assert server.who == "the server"
    assert learns in server.learns
    assert server.epsilon.startswith(epsilon)
    assert server.bytes_up == 2 * heat.bytes_up
    assert others.who == "whoever sees the first model"
    assert "counters: the server learns" in text(replace(setting, counted="item"), SPEED)


@pytest.mark.parametrize("mechanism", ["gaussian", "distributed"])
def test_where_the_model_has_an_epsilon_the_counters_are_in_it(mechanism):
    setting = under("full", mechanism=mechanism)
    with_counters = replace(setting, counted="item")
    server, others = (x for x in explain(with_counters, SPEED) if x.part == "counters")
    assert ("noise clients add before" in server.learns) == (mechanism == "distributed")
    assert others.epsilon.startswith("see `model` below")
    spent = [
        float(next(x for x in explain(one, SPEED) if x.part == "model").epsilon.split()[0])
        for one in (setting, with_counters)
    ]
    assert spent[1] > spent[0]
