"""The ledger: what adds up and what does not, beside dp-accounting called directly; resuming."""

from __future__ import annotations

import builtins
import json
import math
from dataclasses import replace

import dp_accounting
import pytest

from fedrows.errors import FedrowsError, PlanError
from fedrows.privacy.ledger import KINDS, Entry, Event, Ledger

RELATION = dp_accounting.NeighboringRelation


def test_epsilons_add_up_within_a_kind_and_never_across():
    ledger = Ledger()
    ledger.add_(Entry("server/value", "heat", 0, 2.0), Entry("server/value", "index", 1, 0.5))
    ledger.add_(Entry("server/set", "heat", 0, 300.0))
    assert ledger.kinds == ["server/value", "server/set"]
    assert ledger.spent("server/value") == 2.5
    assert ledger.spent("server/set") == 300
    assert ledger.spent("model/user") == 0


def test_a_series_counts_by_its_largest():
    ledger = Ledger()
    for number, epsilon in enumerate([1.0, 1.5, 1.75, 1.75], start=1):
        ledger.add_(Entry("server/value", "index", number, epsilon, series=True))
    ledger.add_(Entry("server/value", "heat", 0, 2.0))
    assert ledger.spent("server/value") == 3.75


def test_delta_is_shared():
    ledger = Ledger(1e-5)
    ledger.add_(Entry("model/user", "a", 1, 1.0, 6e-6), Entry("model/user", "b", 1, 1.0, 4e-6))
    assert ledger.spent("model/user") == 2
    ledger.add_(Entry("model/user", "c", 1, 1.0, 1e-7))
    assert ledger.spent("model/user") == math.inf
    assert replace(ledger, delta=1e-4).spent("model/user") == 3


@pytest.mark.parametrize(
    ("kind", "event", "direct", "relation"),
    [
        (
            "model/user",
            Event((1.1,), "poisson", 50, 5000),
            dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1)),
            RELATION.ADD_OR_REMOVE_ONE,
        ),
        (
            "model/user",
            Event((1.0, 3.0), "poisson", 50, 5000),
            dp_accounting.PoissonSampledDpEvent(
                0.01, dp_accounting.GaussianDpEvent((1 + 1 / 9) ** -0.5)
            ),
            RELATION.ADD_OR_REMOVE_ONE,
        ),
        (
            "model/user-replaced",
            Event((1.1,), "fixed", 50, 5000),
            dp_accounting.SampledWithoutReplacementDpEvent(
                5000, 50, dp_accounting.GaussianDpEvent(1.1)
            ),
            RELATION.REPLACE_ONE,
        ),
    ],
    ids=["poisson", "two sums", "fixed"],
)
def test_events_compose_as_dp_accounting_says(kind, event, direct, relation):
    ledger = Ledger(1e-5)
    ledger.add_(Entry(kind, "heat", 0, event=Event((8.0,))))
    for number in range(1, 31):
        ledger.add_(Entry(kind, "noise", number, event=event))
    accountant = dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)
    accountant.compose(dp_accounting.GaussianDpEvent(8.0))
    accountant.compose(direct, 30)
    expected = accountant.get_epsilon(1e-5)
    assert ledger.spent(kind) == pytest.approx(expected, rel=1e-9)
    ledger.add_(Entry(kind, "other", 31, 0.25, 4e-6))
    assert ledger.spent(kind) == pytest.approx(0.25 + accountant.get_epsilon(6e-6), rel=1e-9)


def test_a_run_that_resumes_has_spent_the_same():
    whole = Ledger(1e-6)
    part = Ledger(1e-6)
    for number in range(1, 21):
        entries = (
            Entry("model/user", "noise", number, event=Event((0.9, 2.0), "poisson", 7, 100)),
            Entry("server/value", "index", number, 1 - 0.7**number, series=True),
            Entry("server/value", "heat", number, 0.1 * number),
            Entry("server/set", "heat", number, math.inf),
        )
        whole.add_(*entries)
        part.add_(*entries)
        if number % 4 == 0:
            part = Ledger.from_json(json.loads(json.dumps(part.to_json(), allow_nan=False)))
        assert [part.spent(kind) for kind in KINDS] == [whole.spent(kind) for kind in KINDS]
    assert sorted(map(repr, part.entries)) == sorted(map(repr, whole.entries))
    assert len(whole.to_json()["entries"]) == 1 + 20 + 20 + 1  # equal ones are written once


def test_a_run_stops_before_its_limit():
    ledger = Ledger()
    entry = Entry("server/value", "index", 1, 1.0)
    ledger.add_(entry, entry)
    assert not ledger.would_exceed(3.0, "server/value", entry)
    assert ledger.would_exceed(2.5, "server/value", entry)
    assert not ledger.would_exceed(2.5, "server/set", entry)
    assert not ledger.would_exceed(2.0, "server/value")
    assert ledger.spent("server/value") == 2  # looking spends nothing
    with pytest.raises(PlanError, match="no kind of privacy 'server'"):
        ledger.would_exceed(1.0, "server")


def test_what_adds_no_noise_is_infinite():
    ledger = Ledger()
    ledger.add_(Entry("server/value", "heat", 0, math.inf))
    assert ledger.spent("server/value") == math.inf
    assert ledger.would_exceed(1e9, "server/value")


def test_epsilons_need_no_accountant(monkeypatch):
    real = builtins.__import__

    def missing(name, *rest):
        if name.startswith("dp_accounting"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    ledger = Ledger()
    ledger.add_(Entry("server/value", "heat", 0, 2.0, 1e-9))
    assert ledger.spent("server/value") == 2
    ledger.add_(Entry("model/user", "noise", 1, event=Event((1.0,))))
    with pytest.raises(FedrowsError, match="pip install 'fedrows\\[privacy\\]'"):
        ledger.spent("model/user")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Ledger(0), "delta is 0"),
        (lambda: Entry("server", "heat", 0, 1.0), "no kind of privacy 'server'"),
        (lambda: Entry("server/value", "heat", 0, -1.0), "spends ε -1.0"),
        (lambda: Entry("server/value", "heat", 0, math.nan), "spends ε nan"),
        (lambda: Event((0.0,)), "above 0"),
        (lambda: Event((1.0,), "poisson", 9, 8), "cohort of 9 cannot be drawn from 8"),
        (lambda: Event((1.0,), "often"), "one of all, poisson, fixed"),
        (
            lambda: Entry("model/user", "noise", 1, event=Event((1.0,), "fixed", 5, 8)),
            "not accounted for neighbours of the kind model/user",
        ),
        (
            lambda: Entry("model/user-replaced", "noise", 1, event=Event((1.0,), "poisson", 5, 8)),
            "not accounted for neighbours",
        ),
    ],
)
def test_bad_input(make, words):
    with pytest.raises(PlanError, match=words):
        make()
