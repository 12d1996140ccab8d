"""What both sides of a secure sum work out alike, from its first message and the contract.

    heat      how many of a node's clients hold each row; before a counted start, also the two
              counters of its labels (`labels` names the table), in the same vector
    union     the rows that any client of a node holds; then which of the union's rows it asks for
    update    what a node's clients made of the rows they have, added up, and which rows they hold

A node is one party: whoever runs it sees its clients' data anyway, so it adds up their part before
anything leaves. Thresholds, openers and contributors come from the contract, not from the message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

from fedrows.flower.wire.contract import Contract
from fedrows.flower.wire.names import round_of
from fedrows.privacy import union
from fedrows.privacy.distributed_mean import DistributedMean
from fedrows.privacy.layout import SumLayout
from fedrows.privacy.messages import digest
from fedrows.privacy.noisy_coding import WordCoding
from fedrows.privacy.openings import Openings
from fedrows.privacy.randomness import fresh
from fedrows.privacy.ring import Coding
from fedrows.privacy.row_space import RowSpace
from fedrows.privacy.server_side import union_plan
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.values import derived
from fedrows.privacy.weighted_mean import WeightedMean
from fedrows.rows.heat import Heat
from fedrows.rows.schema import Schema

WHO = ("contract", "round")  # facts that are alike for all parties and known before all others
# facts about what is added up, alike for all parties
WHAT = ("union", "tag", "coding", "model", "labels", "prior")
USES = ("heat", "union", "update")
VECTORS = 2  # the phase that brings what is added up, if keys were exchanged ahead
ASKED = "asked"  # what a node signs when a union is over: the rows it asks for
Groups = Mapping[str, Mapping[str, tuple[int, int]]]
HELD = 10_000  # rows that a node holds in a round, for a Bloom filter's size


def row_space(schema: Schema, tables: tuple[str, ...]) -> RowSpace:
    """The rows of the shared tables in one line."""
    return RowSpace({table: schema.tables[table].rows for table in tables})


def weighted_mean(
    contract: Contract, schema: Schema, tables: tuple[str, ...], groups: Groups
) -> WeightedMean:
    """How updates are added up. groups: table → its groups of rows, by which values open."""
    values = {table: derived(groups.get(table, {})) for table in tables}
    return WeightedMean(
        {table: schema.tables[table].width for table in tables},
        {name: tuple(shape) for name, shape in schema.dense.items()},
        contract.privacy.update_range,
        contract.options.report_loss,
        values if contract.privacy.min_contributors > 1 else None,
    )


def distributed_mean(
    contract: Contract,
    schema: Schema,
    tables: tuple[str, ...],
    parties: int,
    heat: Mapping[str, Heat],
) -> DistributedMean:
    """How updates with noise are added up, if each of so many nodes adds its share."""
    mechanism = contract.privacy.mechanism
    assert mechanism is not None, "noise inside the sum is a mechanism's"
    return DistributedMean(
        mechanism,
        {table: schema.tables[table].width for table in tables},
        {name: tuple(shape) for name, shape in schema.dense.items()},
        {table: schema.tables[table].rows for table in tables},
        contract.algorithm,
        heat,
        contract.plan.clients_per_round,
        fresh,
        parties,
    )


def heat_terms(contract: Contract, facts: Mapping[str, Any], space: RowSpace) -> SumTerms:
    """The terms of a sum of heat."""
    table = facts.get("labels")
    return SumTerms(
        _name(facts),
        cohort(facts),
        threshold(contract, facts),
        space.rows + (0 if table is None else 2 * space.sizes[table]),
        "uint64",
        colluding=contract.privacy.colluding,
        early_list=True,
        about=_digest_of(facts, WHAT),
    )


def union_terms(
    contract: Contract, facts: Mapping[str, Any], space: RowSpace
) -> tuple[union.UnionPlan, SumTerms]:
    """How a union is found, and the terms of the sum behind it."""
    parties = cohort(facts)
    plan = union_plan(contract.privacy, space, len(parties), HELD, str(facts["sum"]))
    least, colluding = threshold(contract, facts), contract.privacy.colluding
    terms = union.terms(plan, _name(facts), parties, least, colluding)
    return plan, replace(terms, early_list=True, about=_digest_of(facts, WHAT))


def update_terms(
    contract: Contract,
    facts: Mapping[str, Any],
    layout: SumLayout,
    coding: WordCoding | None = None,
) -> tuple[Openings, SumTerms]:
    """Which rows are added up, and the terms of their sum. coding: the facts' own if not given."""
    turn, coding = round_of(facts["tag"]), coding or coding_of(facts)
    plan = layout.plan(_name(facts), cohort(facts), contract.privacy, coding, turn)
    plan = replace(plan, about=f"{_digest_of(facts, WHAT)}, over {_digest(layout)}")
    privacy, least = contract.privacy, threshold(contract, facts)
    return plan, plan.terms(least, colluding=privacy.colluding, early_list=True)


def update_parties(contract: Contract, facts: Mapping[str, Any]) -> SumTerms:
    """The terms of a sum of updates as far as its keys need them: who takes part."""
    privacy, least = contract.privacy, threshold(contract, facts)
    return SumTerms(
        _name(facts),
        cohort(facts),
        least,
        0,
        colluding=privacy.colluding,
        openers=privacy.openers,
        early_list=True,
    )


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
    """What a sum is called: all that the parties agree on at first, who is who among it."""
    names = ",".join(f"{n}={facts['parties'][str(n)]}" for n in cohort(facts))
    return f"{facts['run']}/{facts['sum']}/{facts['use']} of {names}, {_digest_of(facts, WHO)}"


def _digest_of(facts: Mapping[str, Any], names: tuple[str, ...]) -> str:
    about = json.dumps({name: facts.get(name) for name in names}, sort_keys=True)
    return digest(about.encode()).hex()


def _digest(layout: SumLayout) -> str:
    """The rows that are added up: a server may not tell two nodes two unions."""
    parts = ((table.encode(), ids.astype("<i8").tobytes()) for table, ids in layout.union.items())
    return digest(*chain(*parts)).hex()
