"""The browser's client speaks the secure sums' protocol: bit for bit, with Python's server."""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography")

from browser_sums import BrowserRefuses, BrowserSums, browser_sums  # noqa: F401
from crypto_twin import altered, node, registry, total, vectors

from fedrows.privacy import openings, secure_sum
from fedrows.privacy.families import RowFamilies
from fedrows.privacy.keys import AgreementKey, derive, random_words, seal, signed_by, stream, unseal
from fedrows.privacy.messages import digest, pack, pack_ids, unpack
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import run
from fedrows.privacy.randomness import replaying
from fedrows.privacy.ring import Coding
from fedrows.privacy.shamir import SHARE, share
from fedrows.privacy.terms import SumTerms
from fedrows.privacy.union import Direct
from fedrows.privacy.values import Values

pytestmark = pytest.mark.usefixtures("browser_sums")
SEED = bytes(range(32))


def drawn(count: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(count)


def test_primitives_give_the_same_bytes(browser_sums: BrowserSums) -> None:  # noqa: F811
    make = browser_sums.make
    parts = [b"", b"a", drawn(100)]
    assert make("digest", parts=[x.hex() for x in parts]) == digest(*parts).hex()
    assert make("derive", secret=drawn(32).hex(), info=b"x".hex()) == derive(drawn(32), b"x").hex()
    one, other = AgreementKey(drawn(32, 1)), AgreementKey(drawn(32, 2))
    for own, theirs in ((one, other), (other, one)):
        found = make("agree", secret=own.secret.hex(), other=theirs.public.hex(), info=b"i".hex())
        assert found == [own.public.hex(), one.agree(other.public, b"i").hex()]
    signed = node(0).sign(b"data")
    given = {"secret": node(0).secret.hex(), "data": b"data".hex()}
    assert make("sign", **given) == [node(0).public.hex(), signed.hex()]
    for data, right in ((b"data", True), (b"dato", False)):
        given = {"key": node(0).public.hex(), "signature": signed.hex(), "data": data.hex()}
        assert make("verify", **given) is right is signed_by(node(0).public, signed, data)
    for bits, count in ((32, 100_001), (64, 7), (32, 0)):
        words = stream(drawn(32), count, f"uint{bits}").tobytes().hex()
        assert make("stream", key=drawn(32).hex(), count=count, bits=bits) == words
    with replaying(SEED):
        box = seal(drawn(32), b"text", b"about")
    given = {"key": drawn(32).hex(), "about": b"about".hex()}
    assert make("seal", **given, content=b"text".hex(), seed=SEED.hex()) == box.hex()
    assert bytes.fromhex(make("unseal", **given, box=box.hex())) == b"text"
    wrong = bytes([*box[:-1], box[-1] ^ 1])
    assert make("unseal", **given, box=wrong.hex()) is None is unseal(drawn(32), wrong, b"about")


def test_keys_that_hide_nothing_are_refused(browser_sums: BrowserSums) -> None:  # noqa: F811
    for low in (bytes(32), bytes([1, *bytes(31)])):
        found = browser_sums.make("agree", secret=drawn(32).hex(), other=low.hex(), info="")
        assert found[1] is None


def test_shares_words_and_marks_are_the_same(browser_sums: BrowserSums) -> None:  # noqa: F811
    secret, holders = drawn(32), [0, 3, 4, 999]
    with replaying(SEED):
        shares = share(int.from_bytes(secret, "little"), 3, holders)
    wanted = [shares[one].to_bytes(SHARE, "little").hex() for one in holders]
    given = {"secret": secret.hex(), "threshold": 3, "holders": holders, "seed": SEED.hex()}
    assert browser_sums.make("share", **given) == wanted
    numbers = np.concatenate(
        [[0.0, -4.0, 4.0, 1e-9, -1e-9], np.random.default_rng(0).normal(size=50)]
    )
    for coding in (Coding(4.0, 5, divisor=5), Coding(4.0, 200, 1e5, divisor=3)):
        with replaying(SEED):
            words = coding.encode(numbers).tobytes().hex()
        facts = {"range": coding.range, "fraction": coding.fraction, "bits": coding.bits}
        given = {"numbers": numbers.tolist(), "coding": facts, "seed": SEED.hex()}
        assert browser_sums.make("encode", **given) == words
    assert {Coding(4.0, 5, divisor=5).bits, Coding(4.0, 200, 1e5, divisor=3).bits} == {32, 64}
    with pytest.raises(BrowserRefuses, match="outside of the agreed range"):
        browser_sums.make("encode", numbers=[4.1], coding=facts, seed=SEED.hex())
    with replaying(SEED):
        marks = Direct(9).entries(np.array([0, 2, 8]), 1).tobytes().hex()
    assert browser_sums.make("marks", places=[0, 2, 8], count=9, seed=SEED.hex()) == marks


def test_openers_open_the_same_rows(browser_sums: BrowserSums) -> None:  # noqa: F811
    draw = np.random.default_rng(3)
    for _ in range(60):
        sizes, minimum = draw.integers(1, 6, 2), int(draw.integers(1, 4))
        pieces, turn = {"a": 1, "b": 2}, int(draw.integers(5))
        union = {"a": np.arange(sizes[0]), "b": np.arange(sizes[1])}
        families = RowFamilies.of(union, dict.fromkeys(union, Values()), pieces)
        counts = np.concatenate(
            [draw.integers(0, 5, sizes[0]), np.repeat(draw.integers(0, 5, sizes[1]), 2)]
        )
        tables = [{"rows": int(n), "pieces": p} for n, p in zip(sizes, (1, 2), strict=True)]
        plan = {"tables": tables, "minimum": minimum, "turn": turn, "word": "uint32"}
        plan |= {"rows": len(counts), "width": 1, "extra": 0, "openers": 2, "parties": 5}
        wanted = (
            counts >= 1 if minimum == 1 else families.open(counts.astype(np.uint8), minimum, turn)
        )
        found = browser_sums.make("open", plan=plan, counts=counts.tolist())
        assert found == wanted.astype(int).tolist(), (counts, minimum, turn)


def sum_terms(cohort: int = 5, word: str = "uint32", **more: Any) -> SumTerms:
    given = {"threshold": 4, "length": 50, "word": word, "early_list": True, **more}
    return SumTerms("run 1/sum 2", tuple(range(cohort)), **given)


def listened(half: Generator[bytes, bytes, Any], said: list[bytes]) -> Any:
    """A half whose messages are written down."""
    reply = next(half)
    while True:
        said.append(reply)
        try:
            reply = half.send((yield reply))
        except StopIteration as stop:
            return stop.value


def replayed(half: Any, seed: bytes) -> Any:
    """A half whose secrets are drawn from a seed, by itself alone."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import AES
    from cryptography.hazmat.primitives.ciphers.modes import CTR

    from fedrows.privacy import randomness

    drawing = Cipher(AES(seed), CTR(bytes(16))).encryptor()
    request: bytes | None = None
    while True:
        token = randomness._source.set(lambda count: drawing.update(bytes(count)))
        try:
            reply = next(half) if request is None else half.send(request)
        except StopIteration as stop:
            return stop.value
        finally:
            randomness._source.reset(token)
        request = yield reply


@pytest.mark.parametrize("word", ["uint32", "uint64"])
@pytest.mark.parametrize("drop", [{}, {3: 2}, {3: 1}, {1: 3}])
def test_all_messages_of_a_half_are_pythons(
    browser_sums: BrowserSums,  # noqa: F811
    word: str,
    drop: dict[int, int],
) -> None:
    """The same seeds, the same requests: the same bytes, through every kind of drop-out."""
    terms = sum_terms(word=word)
    parts, keys = vectors(terms), registry(terms.cohort)
    said: dict[str, list[bytes]] = {"python": [], "browser": []}
    results = []
    for whose, messages in said.items():
        halves: dict[int, Any] = {}
        for one in terms.cohort:
            seed = bytes([one]) * 32
            if whose == "browser" and one in (0, 2):
                half = browser_sums.half(terms, one, node(one), keys, parts[one], seed=seed)
            else:
                half = replayed(secure_sum.client(terms, one, node(one), keys, parts[one]), seed)
            halves[one] = listened(half, messages) if one in (0, 2) else half
        outcome = run(secure_sum.server(terms, keys), halves, drop)
        assert not outcome.refused
        results.append(outcome.result)
    assert len(said["python"]) >= 8
    assert said["python"] == said["browser"]
    assert (results[1].values == total(parts, results[1].clients, terms)).all()
    assert len(results[1].clients) == 5 - sum(phase < 3 for phase in drop.values())


def opening(minimum: int, word: str = "uint32", cohort: int = 5) -> tuple[Openings, SumTerms]:
    families = None
    if minimum > 1:
        union = {"a": np.arange(4), "b": np.arange(3)}
        families = RowFamilies.of(union, dict.fromkeys(union, Values()), {"a": 2, "b": 1})
    plan = Openings(
        "run 1/sum 3", tuple(range(cohort)), 11, 2, minimum, 3, word=word, families=families, turn=1
    )  # fmt: skip
    return plan, plan.terms(4, early_list=True)


@pytest.mark.parametrize("word", ["uint32", "uint64"])
@pytest.mark.parametrize("minimum", [1, 2])
@pytest.mark.parametrize("drop", [{}, {4: 2}])
def test_rows_of_too_few_stay_closed_and_wait(
    browser_sums: BrowserSums,  # noqa: F811
    word: str,
    minimum: int,
    drop: dict[int, int],
) -> None:
    """All parties in the browser, or every second: what opens, and what each may send again."""
    plan, terms = opening(minimum, word)
    draw, keys = np.random.default_rng(5), registry(plan.cohort)
    parts = {}
    for one in plan.cohort:
        holds = np.concatenate([np.repeat(draw.random(4) < 0.4, 2), draw.random(3) < 0.3])
        values = random_words(22, word).reshape(11, 2) * holds[:, None].astype(word)
        parts[one] = values, holds, random_words(3, word)
    for mine in (plan.cohort, plan.cohort[::2]):
        halves: dict[int, Any] = {}
        for one in plan.cohort:
            if one in mine:
                given = {"plan": plan, "part": parts[one]}
                halves[one] = browser_sums.half(terms, one, node(one), keys, **given)
            else:
                halves[one] = openings.client(plan, terms, one, node(one), keys, *parts[one])
        outcome = run(openings.server(plan, terms, keys), halves, drop)
        result, inside = outcome.result, [one for one in plan.cohort if one not in drop]
        assert not outcome.refused
        counts = sum(parts[one][1].astype(int) for one in inside)
        opened = plan.may_open(counts.astype(np.uint8))
        assert opened.any()
        lost = drop.keys() & set(result.total.circle.openers)  # without an opener no row opens
        opened &= not lost
        assert (result.opened == opened).all()
        sums = sum((parts[one][0] for one in inside), start=np.zeros((11, 2), dtype=word))
        assert (result.rows == np.where(opened[:, None], sums, 0)).all()
        assert (result.extra == sum((parts[i][2] for i in inside), np.zeros(3, word))).all()
        for one in inside:
            assert (outcome.clients[one] == (opened | bool(lost))).all()


# What a hostile gateway, or another device, may try against one of these halves.


def hostile(browser_sums: BrowserSums, phase: int, change: Any, early: bool = True) -> str:  # noqa: F811
    """Why a browser's half goes no further when the request of a phase is another."""
    terms = sum_terms(6)
    parts, keys = vectors(terms), registry(terms.cohort)
    halves: dict[int, Any] = {
        one: secure_sum.client(terms, one, node(one), keys, parts[one]) for one in terms.cohort
    }
    victim = browser_sums.half(terms, 1, node(1), keys, parts[1])
    halves[1] = altered(victim, phase, down=change)
    outcome = run(secure_sum.server(terms, keys), halves, {} if early else {5: 2})
    return str(outcome.refused[1])


def swapped(message: bytes, at: int, to: Any) -> bytes:
    """A message of parts with one of them changed."""
    parts = unpack(message)
    parts[at] = to(parts[at])
    return pack(*parts)


@pytest.mark.parametrize(
    ("phase", "change", "early", "why"),
    [
        (1, lambda x: pack(*unpack(x)[:-1]), True, "does not show the keys"),
        (1, lambda x: swapped(x, 2, lambda y: y[:-1] + bytes([y[-1] ^ 1])), True, "not signed"),
        (1, lambda x: swapped(x, 1, lambda y: bytes(32) + y[32:]), True, "other keys of party 0"),
        (1, lambda x: swapped(x, 0, lambda y: y[:16]), True, "others than the cohort"),
        (2, lambda x: swapped(x, 1, lambda y: y[:-1] + bytes([y[-1] ^ 1])), True, "cannot be open"),
        (2, lambda x: pack(pack_ids([0]), unpack(x)[1]), True, "holders of this device's shares"),
        (3, lambda x: x[: len(secure_sum._SECOND)] + pack_ids([0, 1, 2]), False, "3 survivors"),
        (3, lambda x: x[: len(secure_sum._SECOND)] + pack_ids([0, 2, 3, 4]), False, "cannot be"),
        (3, lambda x: pack(*unpack(x)[:-1]), True, "others than this device's peers"),
        (3, lambda x: pack(pack_ids([])), True, "1 signatures"),
        (3, lambda x: x[:-3], True, "cut short"),
        (4, lambda x: pack(pack_ids([0, 2]), *unpack(x)[1:3]), False, "3 signatures"),
    ],
)
def test_a_gateway_that_breaks_the_rules_gets_no_further(
    browser_sums: BrowserSums,  # noqa: F811
    phase: int,
    change: Any,
    early: bool,
    why: str,
) -> None:
    assert why in hostile(browser_sums, phase, change, early)


def test_two_lists_of_survivors_open_one_kind_of_share(browser_sums: BrowserSums) -> None:  # noqa: F811
    """After its shares a half signs no other list, and opens nothing more."""
    terms = sum_terms()
    parts, keys = vectors(terms), registry(terms.cohort)
    halves: dict[int, Any] = {
        one: secure_sum.client(terms, one, node(one), keys, parts[one]) for one in terms.cohort
    }
    seen: list[bytes] = []
    halves[1] = listened(browser_sums.half(terms, 1, node(1), keys, parts[1]), seen)
    run(secure_sum.server(terms, keys), halves, {4: 2})
    last = f"half {next(browser_sums._names) - 1}"
    other = secure_sum._SECOND + pack_ids([0, 1, 2, 3])
    assert len(seen) == 5
    for phase in (4, 5, 6):
        with pytest.raises(BrowserRefuses, match="out of turn"):
            browser_sums.ask(ask=last, phase=phase, request=other.hex())


def test_a_broken_upload_gets_the_same_bytes_again(browser_sums: BrowserSums) -> None:  # noqa: F811
    terms = sum_terms()
    parts, keys = vectors(terms), registry(terms.cohort)
    first = browser_sums.half(terms, 1, node(1), keys, parts[1])
    reply = next(first)
    name = f"half {next(browser_sums._names) - 1}"
    assert bytes.fromhex(browser_sums.ask(ask=name, phase=0, request="")["reply"]) == reply
    with pytest.raises(BrowserRefuses, match="out of turn"):
        browser_sums.ask(ask=name, phase=0, request="00")  # another request of the same phase
    with pytest.raises(BrowserRefuses, match="out of turn"):
        browser_sums.ask(ask=name, phase=1, request="")  # and none after it


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"threshold": 3}, "open a sum of 5 devices with 3"),
        ({"cohort": 3, "threshold": 2, "colluding": 0}, "open a sum of 3 devices with 2"),
    ],
)
def test_terms_that_show_too_much_are_refused(
    browser_sums: BrowserSums,  # noqa: F811
    given: dict[str, Any],
    why: str,
) -> None:
    terms = sum_terms()
    weak = SumTerms("weak", tuple(range(given.get("cohort", 5))), 4 if "cohort" not in given else 2,
                    50, colluding=given.get("colluding", 1), early_list=True)  # fmt: skip
    object.__setattr__(weak, "threshold", given["threshold"])
    with pytest.raises(BrowserRefuses, match=why):
        next(browser_sums.half(weak, 1, node(1), registry(terms.cohort), vectors(terms)[1]))


def test_one_key_for_two_parties_is_refused(browser_sums: BrowserSums) -> None:  # noqa: F811
    terms = sum_terms()
    keys = registry(terms.cohort) | {3: node(2).public}
    with pytest.raises(BrowserRefuses, match="one key"):
        next(browser_sums.half(terms, 1, node(1), keys, vectors(terms)[1]))
    strange = registry(terms.cohort) | {1: node(7).public}
    with pytest.raises(BrowserRefuses, match="not among them"):
        next(browser_sums.half(terms, 1, node(1), strange, vectors(terms)[1]))


def test_an_opener_lets_nothing_go_for_wrong_counts(browser_sums: BrowserSums) -> None:  # noqa: F811
    plan, terms = opening(2)
    keys, zeros = registry(plan.cohort), np.zeros((11, 2), dtype="uint32")
    holds = {one: np.arange(11) < 4 + one for one in plan.cohort}
    halves: dict[int, Any] = {}
    for one in plan.cohort:
        part = zeros, holds[one], np.zeros(3, dtype="uint32")
        half = browser_sums.half(terms, one, node(one), keys, plan=plan, part=part)
        halves[one] = altered(half, 4, down=lambda x: bytes([x[0] ^ 1]) + x[1:])
    outcome = run(openings.server(plan, terms, keys), halves)
    assert not outcome.result.opened.any()
    assert sum("lets nothing go" in str(x) for x in outcome.refused.values()) == 2
