"""A client half whose process ends after every message gives what one that lives on would give."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("cryptography")

from fedrows.files.whole import write_private
from fedrows.privacy import openings, replay, secure_sum
from fedrows.privacy.keys import NodeKey
from fedrows.privacy.openings import Openings
from fedrows.privacy.protocol import ClientHalf, ProtocolError
from fedrows.privacy.randomness import below, replaying
from fedrows.privacy.replay import MOST, Done, SavedHalf
from fedrows.privacy.terms import SumTerms


def carry(server, answer) -> object:  # type: ignore[no-untyped-def]
    requests = next(server)
    while True:
        replies = {one: answer(one, request) for one, request in requests.items()}
        replies = {one: reply for one, reply in replies.items() if isinstance(reply, bytes)}
        try:
            requests = server.send(replies)
        except StopIteration as stop:
            return stop.value


def test_a_sum_of_forgetful_clients_is_exact(tmp_path: Path) -> None:
    cohort = tuple(range(5))
    terms = SumTerms("test", cohort, 4, 100)
    nodes = {i: NodeKey() for i in cohort}
    registry = {i: node.public for i, node in nodes.items()}
    vectors = {i: np.arange(100, dtype=np.uint32) * (i + 1) for i in cohort}
    for i in cohort:
        SavedHalf(tmp_path / f"{i}").begin()

    def answer(one: int, request: bytes) -> bytes | Done[secure_sum.Ending]:
        return SavedHalf(tmp_path / f"{one}").advance(
            lambda: secure_sum.client(terms, one, nodes[one], registry, vectors[one]), request
        )

    total = carry(secure_sum.server(terms, registry), answer)
    assert isinstance(total, secure_sum.SumResult)
    assert (total.values == sum(vectors.values())).all()


def test_rows_are_opened_by_forgetful_clients(tmp_path: Path) -> None:
    cohort = tuple(range(4))
    plan = Openings("test", cohort, rows=6, width=2, minimum=2, openers=2)
    terms = plan.terms(3)
    nodes = {i: NodeKey() for i in cohort}
    registry = {i: node.public for i, node in nodes.items()}
    holds = np.array(
        [[1, 1, 0, 0, 0, 1], [1, 0, 1, 0, 0, 1], [1, 0, 0, 0, 0, 1], [0, 0, 0, 1, 0, 1]], dtype=bool
    )
    values = [np.where(h[:, None], np.uint32(i + 1), 0).repeat(2, 1).astype(np.uint32)
              for i, h in enumerate(holds)]  # fmt: skip
    seen: dict[int, np.ndarray] = {}
    for i in cohort:
        SavedHalf(tmp_path / f"{i}").begin()

    def half(one: int) -> ClientHalf[np.ndarray]:
        return openings.client(plan, terms, one, nodes[one], registry, values[one], holds[one])

    def answer(one: int, request: bytes) -> bytes | None:
        found = SavedHalf(tmp_path / f"{one}").advance(lambda: half(one), request)
        if isinstance(found, Done):
            seen[one] = found.result
            return None
        return found

    opened = carry(openings.server(plan, terms, registry), answer)
    assert isinstance(opened, openings.OpenedSum)
    enough = holds.sum(0) >= 2
    assert (opened.opened == enough).all()
    assert (opened.rows[enough] == sum(values)[enough]).all()
    assert all((mask == enough).all() for mask in seen.values())


def test_a_sum_is_never_begun_twice(tmp_path: Path) -> None:
    kept = SavedHalf(tmp_path / "a")
    kept.begin()
    with pytest.raises(ProtocolError, match="begun before"):
        kept.begin()


def test_a_half_ends_when_its_machine_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut its file may be an older one, from which it would answer a second time."""

    def patient() -> ClientHalf[None]:
        while True:
            yield b"go on"

    monkeypatch.setattr(replay, "BOOT", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("one\n")
    half = SavedHalf(tmp_path / "half")
    half.begin()
    assert half.advance(patient, b"") == b"go on"
    older = (tmp_path / "half").read_bytes()
    assert half.advance(patient, b"first") == b"go on"
    (tmp_path / "half").write_bytes(older)
    (tmp_path / "boot_id").write_text("another\n")
    with pytest.raises(ProtocolError, match="has started since"):
        half.advance(patient, b"second")


def test_where_starts_are_not_told_apart_every_request_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through: list[Path] = []

    def wrote(path: Path, data: bytes) -> None:
        through.append(path)
        write_private(path, data)

    monkeypatch.setattr(replay, "write_private", wrote)
    SavedHalf(tmp_path / "a").begin()
    monkeypatch.setattr(replay, "BOOT", tmp_path / "none")
    SavedHalf(tmp_path / "b").begin()
    assert through == [tmp_path / "b"]


def test_what_is_kept_is_for_its_owner_alone(tmp_path: Path) -> None:
    SavedHalf(tmp_path / "a").begin()
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def test_below_is_uniform_and_repeats_with_its_seed() -> None:
    with replaying(bytes(32)):
        drawn = np.bincount([below(5) for _ in range(5_000)], minlength=5)
    with replaying(bytes(32)):
        again = np.bincount([below(5) for _ in range(5_000)], minlength=5)
    assert (drawn == again).all()
    assert ((drawn - 1_000) ** 2 / 1_000).sum() < 20  # χ² with 4 degrees of freedom: 1 in 2,000
    assert {below(1) for _ in range(10)} == {0}


def test_what_a_server_sends_does_not_pile_up(tmp_path: Path) -> None:
    """The first request says nothing, and is not kept; a half gets no more than a sum has."""
    half = SavedHalf(tmp_path / "half")
    half.begin()

    def patient() -> ClientHalf[None]:
        while True:
            yield b"go on"

    assert half.advance(patient, b"x" * 10**6) == b"go on"
    assert (tmp_path / "half").stat().st_size < 100
    for _ in range(MOST - 2):
        assert half.advance(patient, b"junk") == b"go on"
    size = (tmp_path / "half").stat().st_size
    for _ in range(3):
        with suppress(ProtocolError):
            half.advance(patient, b"junk" * 10)
    with pytest.raises(ProtocolError, match="more requests than a sum has"):
        half.advance(patient, b"junk")
    assert (tmp_path / "half").stat().st_size < size + 100
