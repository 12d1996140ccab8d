"""A server that shows two lists of survivors to two parts of a cohort, to open both kinds of share.

The clients of the first list let go of the seeds of its members and of the masking keys of all
others, those of the second list the other way round. Whoever is in both piles is unmasked.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from crypto_twin import node, registry

from fedrows.errors import FedrowsError, PlanError
from fedrows.privacy import union
from fedrows.privacy.keys import AgreementKey, add_stream_, derive
from fedrows.privacy.messages import digest, pack, pack_ids, unpack
from fedrows.privacy.options import Privacy
from fedrows.privacy.session import Session, mask_key
from fedrows.privacy.shamir import SHARE, value_at
from fedrows.privacy.terms import SumTerms

CLIENTS = 10
COHORT = tuple(range(CLIENTS))
PLAN = union.Direct(300)
SIZES = pytest.mark.parametrize("clients", [CLIENTS, pytest.param(50, marks=pytest.mark.slow)])


def index_sets(cohort: tuple[int, ...]) -> dict[int, Any]:
    draw = np.random.default_rng(0)
    return {one: np.unique(draw.integers(0, PLAN.vocabulary, 20)) for one in cohort}


def opened_shares(
    terms: SumTerms, lists: list[tuple[int, ...]], colluding: set[int]
) -> tuple[dict[str, Any], list[dict[int, bytes]]]:
    """Runs a union up to its vectors, shows the lists of survivors, and collects shares.

    Each honest client is shown the first list that it is on. A colluding one signs every list.
    """
    keys, sets = registry(terms.cohort), index_sets(terms.cohort)
    sessions = {one: Session(terms, one, node(one), keys) for one in terms.cohort}
    adverts = {one: session.advertise() for one, session in sessions.items()}
    bodies = {one: advert[:-64] for one, advert in adverts.items()}
    digests = b"".join(digest(bodies[one]) for one in terms.cohort)
    peers = {one: [other for other in terms.cohort if other != one] for one in terms.cohort}
    shares = {
        one: session.share(
            pack(pack_ids(terms.cohort), digests, *(adverts[other] for other in peers[one]))
        )
        for one, session in sessions.items()
    }
    boxes = {
        one: dict(zip(peers[one], unpack(message[:-64]), strict=True))
        for one, message in shares.items()
    }
    masked = {
        one: session.mask(
            pack(pack_ids(peers[one]), *(boxes[other][one] for other in peers[one])),
            PLAN.entries(sets[one], one),
        )
        for one, session in sessions.items()
    }
    let_go: list[dict[int, bytes]] = []
    shown: set[int] = set()
    for survivors in lists:
        audience = [one for one in survivors if one not in shown or one in colluding]
        signed: dict[int, bytes] = {}
        for one in audience:
            try:
                signed[one] = sessions[one].agree(pack_ids(survivors))
            except FedrowsError:
                continue
        shown |= set(audience)
        opened: dict[int, bytes] = {}
        for one in signed:
            others = [other for other in signed if other != one][: terms.threshold - 1]
            kept = dict(sessions[one]._held)
            try:
                opened[one] = sessions[one].open(
                    pack(pack_ids(others), *(signed[other] for other in others))
                )
            except FedrowsError:
                continue
            if one in colluding:
                sessions[one]._held = kept  # it forgets nothing
        let_go.append(opened)
    return {"bodies": bodies, "masked": masked, "sets": sets}, let_go


def unmasked(
    terms: SumTerms, lists: list[tuple[int, ...]], colluding: frozenset[int] = frozenset()
) -> int:
    """How many index sets the server reads."""
    seen, let_go = opened_shares(terms, lists, set(colluding))
    piles: dict[tuple[int, bool], dict[int, int]] = defaultdict(dict)  # client, seed → shares
    for survivors, opened in zip(lists, let_go, strict=True):
        for holder, message in opened.items():
            for place, one in enumerate(terms.cohort):
                share = message[place * SHARE : (place + 1) * SHARE]
                piles[one, one in survivors][holder] = int.from_bytes(share, "little")

    def secret(one: int, seed: bool) -> bytes | None:
        pile = list(piles[one, seed].items())[: terms.threshold]
        if len(pile) < terms.threshold:
            return None
        return value_at(0, dict(pile)).to_bytes(SHARE, "little")[:32]

    right = 0
    for one in terms.cohort:
        seed, key = secret(one, True), secret(one, False)
        if seed is None or key is None:
            continue
        words = np.frombuffer(seen["masked"][one][:-64], dtype=terms.dtype).copy()
        add_stream_(words, derive(seed, b"self" + terms.context), minus=True)
        for other in terms.cohort:
            if other != one:
                mask = mask_key(AgreementKey(key), seen["bodies"][other][32:64], terms.context)
                add_stream_(words, mask, minus=one < other)
        right += np.array_equal(PLAN.rows_in(words), seen["sets"][one])
    return right


def two_lists(cohort: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    return [cohort[:size], cohort[-size:]]


@SIZES
def test_two_lists_of_survivors_open_nothing_at_the_default_threshold(clients: int) -> None:
    """Lists of a half are refused; of the threshold's size, too few sign the second."""
    cohort, threshold = tuple(range(clients)), Privacy.of("index").least(clients)
    terms = union.terms(PLAN, "views", cohort, threshold)
    assert unmasked(terms, two_lists(cohort, clients // 2)) == 0
    assert unmasked(terms, two_lists(cohort, threshold)) == 0


@pytest.mark.parametrize("colluding", [0, 1, 3])
def test_nor_do_they_at_the_lowest_threshold_with_the_colluders_that_it_bears(
    colluding: int,
) -> None:
    """The server's own clients are on both lists, sign both and let go of both kinds of share."""
    low = Privacy.of("index", threshold=0.01, colluding=colluding, openers=colluding + 1)
    threshold = low.least(CLIENTS)
    terms = union.terms(PLAN, "views", COHORT, threshold, colluding)
    own = COHORT[:colluding]
    rest = threshold - colluding
    lists = [own + COHORT[colluding : colluding + rest], own + COHORT[-rest:]]
    assert unmasked(terms, lists, frozenset(own)) == 0


@SIZES
def test_the_attack_reads_every_set_where_two_lists_are_possible(
    clients: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken on purpose: at a threshold of a half everybody is unmasked."""
    cohort = tuple(range(clients))
    with pytest.raises(PlanError, match="shows different survivors to different clients"):
        union.terms(PLAN, "views", cohort, clients // 2)
    monkeypatch.setattr(SumTerms, "_check_guarantee", lambda terms, n: None)
    terms = union.terms(PLAN, "views", cohort, clients // 2)
    assert unmasked(terms, two_lists(cohort, clients // 2)) == clients


def test_one_key_under_two_names_is_refused() -> None:
    """A node that plays others as well would know all their vectors, and so the victim's."""
    terms = union.terms(PLAN, "views", COHORT, Privacy.of("index").least(CLIENTS))
    with pytest.raises(FedrowsError, match="have the same node key"):
        Session(terms, 0, node(0), registry(COHORT) | {5: node(4).public})
