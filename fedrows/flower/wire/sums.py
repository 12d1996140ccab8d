"""What both sides of a secure sum work out alike, from its first message and the contract.

    heat      Σ of the weights of a node's clients that hold each row
    union     the rows that any client of a node holds; then which of the union's rows it asks for
    update    what a node's clients made of the rows they have, added up, and which rows they hold

A node is one party: whoever runs it sees its clients' data anyway, so it adds up their part before
anything leaves. Thresholds, openers and contributors come from the contract, not from the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrows.flower.wire.contract import Contract
from fedrows.privacy import union
from fedrows.privacy.layout import SumLayout
from fedrows.privacy.openings import Openings
from fedrows.privacy.ring import Coding
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.server_side import union_plan
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.weighted_mean import WeightedMean
from fedrows.rows.schema import Schema

HELD = 10_000  # rows that a node holds in a round, for a Bloom filter's size


def row_space(schema: Schema, tables: tuple[str, ...]) -> RowSpace:
    """The rows of the shared tables in one line."""
    return RowSpace({table: schema.tables[table].rows for table in tables})


def weighted_mean(contract: Contract, schema: Schema, tables: tuple[str, ...]) -> WeightedMean:
    """How updates are added up."""
    return WeightedMean(
        {table: schema.tables[table].width for table in tables},
        {name: tuple(shape) for name, shape in schema.dense.items()},
        contract.privacy.update_range,
        contract.options.report_loss,
    )


def heat_terms(contract: Contract, facts: Mapping[str, Any], space: RowSpace) -> SumTerms:
    """The terms of a sum of heat."""
    return SumTerms(
        _name(facts),
        cohort(facts),
        threshold(contract, facts),
        space.rows,
        "uint64",
        colluding=contract.privacy.colluding,
    )


def union_terms(
    contract: Contract, facts: Mapping[str, Any], space: RowSpace
) -> tuple[union.UnionPlan, SumTerms]:
    """How a union is found, and the terms of the sum behind it."""
    parties = cohort(facts)
    plan = union_plan(contract.privacy, space, len(parties), HELD, str(facts["sum"]))
    about = union.terms(plan, _name(facts), parties, threshold(contract, facts))
    colluding = contract.privacy.colluding
    return plan, SumTerms(
        about.name, parties, about.threshold, about.length, about.word, colluding=colluding
    )


def update_terms(
    contract: Contract, facts: Mapping[str, Any], layout: SumLayout
) -> tuple[Openings, SumTerms]:
    """Which rows are added up, and the terms of their sum."""
    plan = layout.plan(_name(facts), cohort(facts), contract.privacy, coding_of(facts))
    return plan, plan.terms(threshold(contract, facts), colluding=contract.privacy.colluding)


def coding_of(facts: Mapping[str, Any]) -> Coding:
    """How the numbers of an update are written; the server knows the weights of all parties."""
    return Coding(**{name: facts["coding"][name] for name in Coding.__dataclass_fields__})


def threshold(contract: Contract, facts: Mapping[str, Any]) -> int:
    """How many nodes must stay, or nothing is opened."""
    return contract.privacy.least(len(facts["parties"]))


def cohort(facts: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of the parties."""
    return tuple(sorted(int(number) for number in facts["parties"]))


def _name(facts: Mapping[str, Any]) -> str:
    """What a sum is called: it names every party, so that all agree on who is who."""
    names = ",".join(f"{n}={facts['parties'][str(n)]}" for n in cohort(facts))
    return f"{facts['run']}/{facts['sum']}/{facts['use']} of {names}"
